package pool

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

const (
	maxLanes       = 32   // of one key on one upstream; beyond, the one longest idle makes room, or see minPark
	maxGroupLanes  = 16   // of them for the same capabilities; beyond, calls wait: see minPark
	maxWaiting     = 1024 // calls that wait for a lane in one group; beyond, they are refused
	maxQueued      = 1024 // messages on their way to a server; beyond, calls are refused
	maxQueuedBytes = 16 << 20

	maxSpelled = 64 // ways to write capabilities that are remembered

	maxKept = 64 << 20 // bytes of answers to parked calls of one key on one upstream; beyond, errors take their place
)

// A pool holds what a Bridge keeps for modern clients between their requests.
type pool struct {
	asking sync.Map // upstream names: its questions cannot all be told whose they are

	mu      sync.Mutex // guards the fields below
	tenants map[tenantID]*tenant
	ctx     context.Context // of all sessions; made with the first tenant
	force   context.CancelFunc
	stopped bool
	wg      sync.WaitGroup // lanes

	timers timers.Set // all that tenants have to do later, with their locks
}

type tenantID struct{ upstream, key string }

// A tenant is what one key has on one upstream: its sessions, the calls in them,
// and the streams of its clients. It is there as long as one of these is.
type tenant struct {
	// Static after construction.
	b  *Bridge
	id tenantID

	uses int // guarded by pool.mu

	mu       sync.Mutex // guards the fields below, and those of everything in them
	streams  map[*client]struct{}
	groups   map[string]*group // by their capabilities
	spelled  map[string]*group // by capabilities as requests write them
	lanes    [maxLanes]*lane   // by number
	parks    map[string]*park  // by requestState
	receipts receipts
	kept     int // bytes of answers to parked calls

	left time.Time     // when the last stream was lost: see leftLocked
	gone *timers.Timer // since then
}

// A group is the lanes whose servers were told the same capabilities. Guarded by
// tenant.mu.
type group struct {
	t       *tenant
	text    json.RawMessage // of the capabilities, for initialize
	can     mcp.Abilities
	lanes   []*lane
	waiting []*bridged    // for a lane of their own, in order
	room    *timers.Timer // see roomLocked
	listens map[*modernListen]struct{}
}

// tenant returns the tenant of a key on an upstream, held; nil if the pool has
// stopped.
func (b *Bridge) tenant(id tenantID) *tenant {
	p := &b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	if p.tenants == nil {
		p.tenants = make(map[tenantID]*tenant)
		p.ctx, p.force = context.WithCancel(context.Background())
	}
	t := p.tenants[id]
	if t == nil {
		t = &tenant{b: b, id: id,
			streams: make(map[*client]struct{}), groups: make(map[string]*group),
			spelled: make(map[string]*group), parks: make(map[string]*park)}
		p.tenants[id] = t
	}
	t.uses++
	return t
}

// hold counts one more use of t, by somebody who is kept by t itself.
func (t *tenant) hold() {
	t.b.pool.mu.Lock()
	defer t.b.pool.mu.Unlock()
	t.uses++
}

// release ends a use. A tenant without any is forgotten.
func (t *tenant) release() {
	p := &t.b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.uses--; t.uses == 0 {
		delete(p.tenants, t.id)
	}
}

// begin counts a lane in, unless the pool has stopped.
func (p *pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.wg.Add(1)
	return true
}

func (p *pool) stop(ctx context.Context) {
	p.mu.Lock()
	p.stopped = true
	all := slices.Collect(maps.Values(p.tenants))
	force := p.force
	p.mu.Unlock()
	if force == nil {
		return // nobody was ever here
	}
	context.AfterFunc(ctx, force) // of servers that still take their leave, too
	p.timers.End()
	for _, t := range all {
		t.stop()
	}
	p.wg.Wait()
	p.timers.Wait()
}

// after runs fn with t's lock held, d from now, unless it is stopped or the pool stops
// before. One that is stopped too late still runs: fn must look whether it is wanted.
func (t *tenant) after(d time.Duration, fn func()) *timers.Timer {
	return t.b.pool.timers.After(d, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		fn()
	})
}

// stop ends everything of t but its streams.
func (t *tenant) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.streams {
		for l := range s.listens {
			l.finishLocked()
		}
	}
	for _, l := range t.lanes {
		if l != nil {
			l.endLocked(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true})
		}
	}
	for _, p := range t.parks { // of sessions that had ended
		p.forgetLocked()
	}
}

// groupLocked returns the group for the capabilities of a request, as it writes
// them.
func (t *tenant) groupLocked(capabilities json.RawMessage) *group {
	if g := t.spelled[string(capabilities)]; g != nil {
		return g
	}
	text := canonical(translate.Capabilities(capabilities))
	g := t.groups[string(text)]
	if g == nil {
		g = &group{t: t, text: text, can: translate.AbilitiesOf(text), listens: make(map[*modernListen]struct{})}
		t.groups[string(text)] = g
	}
	if len(t.spelled) >= maxSpelled {
		clear(t.spelled)
	}
	t.spelled[string(capabilities)] = g
	return g
}

// forgetLocked drops a group that holds nothing.
func (g *group) forgetLocked() {
	if len(g.lanes)+len(g.waiting)+len(g.listens) > 0 {
		return
	}
	delete(g.t.groups, string(g.text))
	for spelling, other := range g.t.spelled {
		if other == g {
			delete(g.t.spelled, spelling)
		}
	}
}

// placeLocked brings a call to a lane, or lets it wait for one. Servers that never
// ask anything run all calls in one lane. In one that does, a call has a lane of its
// own: then whatever is asked there is its.
func (g *group) placeLocked(c *bridged) {
	_, asks := g.t.b.pool.asking.Load(g.t.id.upstream)
	alone := asks && mcp.MethodOf(c.method).Works
	l := g.freeLocked(alone)
	if l == nil && (!alone || len(g.lanes) < maxGroupLanes) {
		l = g.openLocked(c.ClientInfo)
	}
	switch {
	case l != nil:
		l.takeLocked(c)
	case len(g.lanes) == 0 || len(g.waiting) >= maxWaiting:
		c.settleLocked(g.t.refusal())
		g.forgetLocked()
	default:
		c.state = waiting
		g.waiting = append(g.waiting, c)
		g.roomLocked()
	}
}

// refusal is what is said when there is no room for one more session.
func (t *tenant) refusal() *jsonrpc.Message {
	if t.b.pool.isStopped() {
		return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, t.id.upstream, jsonrpc.CauseHostStopped, jsonrpc.NotSent))
	}
	return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.Overloaded(t.id.upstream))
}

func (p *pool) isStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// freeLocked returns a lane for one more call, nil if there is none. Always the first
// one: calls that follow each other have one session, so that what a server
// remembers of it is there.
func (g *group) freeLocked(alone bool) *lane {
	for _, l := range g.lanes {
		if !alone || l.working == 0 {
			return l
		}
	}
	return nil
}

// nextLocked gives lanes to calls that wait for them.
func (g *group) nextLocked() {
	for len(g.waiting) > 0 {
		l := g.freeLocked(true)
		if l == nil && len(g.lanes) < maxGroupLanes {
			l = g.openLocked(g.waiting[0].ClientInfo)
		}
		c := g.waiting[0]
		switch {
		case l != nil:
			g.waiting = g.waiting[1:]
			l.takeLocked(c)
		case len(g.lanes) == 0:
			g.waiting = g.waiting[1:]
			c.settleLocked(g.t.refusal())
		default:
			return
		}
	}
}

// leaveLocked takes a call out that waits for a lane.
func (g *group) leaveLocked(c *bridged) {
	g.waiting = slices.DeleteFunc(g.waiting, func(other *bridged) bool { return other == c })
}

// openLocked begins one more session; nil if there is no room for it. The info is
// of the client that it is begun for.
func (g *group) openLocked(info json.RawMessage) *lane {
	number := slices.Index(g.t.lanes[:], nil)
	if number < 0 {
		spare := g.t.spareLocked()
		if spare == nil {
			return nil
		}
		number = spare.number
		spare.endParksLocked()
		spare.endLocked(nil)
	}
	if g.t.lanes[number] != nil || !g.t.b.pool.begin() {
		return nil
	}
	l := newLane(g, number, info)
	g.t.hold()
	g.t.lanes[number] = l
	g.lanes = append(g.lanes, l)
	go l.run() // pool.wg waits for it
	return l
}

// longestIdleLocked returns the lane without use for the longest time, nil if all
// are in use.
func (t *tenant) longestIdleLocked() (idle *lane) {
	for _, l := range t.lanes {
		if l != nil && !l.busyLocked() && (idle == nil || l.used.Before(idle.used)) {
			idle = l
		}
	}
	return idle
}

// reap ends a session that nobody has used for a while.
func (l *lane) reapLocked() {
	if l.state == laneEnded {
		return
	}
	if left := l.t.b.idle() - time.Since(l.used); l.busyLocked() || left > 0 {
		if left <= 0 {
			left = l.t.b.idle()
		}
		l.idle = l.t.after(left, l.reapLocked)
		return
	}
	l.log.Debug("session ends for want of use")
	l.endLocked(nil)
}

func (g *group) removeLocked(l *lane) {
	g.lanes = slices.DeleteFunc(g.lanes, func(other *lane) bool { return other == l })
}
