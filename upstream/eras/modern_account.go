package eras

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	maxSessions = 32       // of one key on one upstream; beyond, the one longest idle makes room, or see minSuspended
	maxSpelled  = 64       // ways to write capabilities that are remembered
	maxKept     = 64 << 20 // bytes of answers to suspended calls of one key on one upstream; beyond, errors take their place

	// returnFor is how long the sessions of one connection, and what is suspended there,
	// wait for it when its stream ended on this side.
	returnFor = 30 * time.Second

	// minSuspended is how long a call is surely suspended. It is far more than a program takes
	// to answer, and time for a user to read a form. After it a call may still be suspended for
	// SuspendFor, but not when others need what it holds: clients that closed a dialog
	// never come back, and nobody can tell them from those that think. Then the oldest ends as
	// if its time were over.
	minSuspended = 30 * time.Second
)

// A lifetime is what all accounts of a Bridge have in common: its settings and its end.
type lifetime struct {
	// Static once there is an account.
	open             func(upstream, key string) jsonrpc.Conn // opens a legacy stream
	relates          func(upstream string) bool              // see Bridge.Relates
	idle, suspendFor time.Duration
	logger           func() *slog.Logger
	forget           func(accountID) // forgets an account without uses, with mu held

	asking sync.Map       // upstreams that send requests which do not say what they belong to
	timers timers.Set     // of all accounts
	wg     sync.WaitGroup // sessions

	mu      sync.Mutex // guards stopped, account.uses and Bridge.accounts
	stopped bool
}

type accountID struct{ upstream, key string }

// An account is what one key has on one upstream: its sessions, the calls in them,
// and the streams of its clients. It is there as long as one of these is.
type account struct {
	// Static after construction.
	life   *lifetime
	id     accountID
	holder mcp.Holder // of the key

	uses int // guarded by lifetime.mu

	mu          sync.Mutex // guards the fields below, and those of everything in them
	streams     map[*modernClient]struct{}
	groups      map[string]*group           // by their capabilities
	spelled     map[string]*group           // by capabilities as requests write them
	sessions    [maxSessions]*legacySession // by number
	suspensions map[string]*suspension      // by requestState
	answers     storedAnswers
	kept        int // bytes of answers to suspended calls

	left time.Time     // when the last stream was lost: see leftLocked
	gone *timers.Timer // since then
}

func newAccount(life *lifetime, id accountID) *account {
	return &account{life: life, id: id, holder: mcp.HolderOf(id.key),
		streams: make(map[*modernClient]struct{}), groups: make(map[string]*group),
		spelled: make(map[string]*group), suspensions: make(map[string]*suspension)}
}

// hold counts one more use of a, by somebody who is kept by a itself.
func (a *account) hold() {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	a.uses++
}

// release ends a use. An account without any is forgotten.
func (a *account) release() {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	if a.uses--; a.uses == 0 {
		a.life.forget(a.id)
	}
}

// locked runs fn with a's lock held.
func (a *account) locked(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn()
}

// after runs fn with a's lock held, d from now, unless it is stopped or the Bridge stops
// before. One that is stopped too late still runs: fn must look whether it is wanted.
func (a *account) after(d time.Duration, fn func()) *timers.Timer {
	return a.life.timers.After(d, func() { a.locked(fn) })
}

// stopLocked ends everything of a but its streams.
func (a *account) stopLocked() {
	for s := range a.streams {
		for l := range s.listens {
			l.finish()
		}
	}
	for _, l := range a.sessions {
		if l != nil {
			l.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true})
		}
	}
	for _, p := range a.suspensions { // of sessions that had ended
		p.forget()
	}
}

// endAllLocked ends what is suspended and then the sessions, as their servers wish.
func (a *account) endAllLocked() {
	for _, p := range a.suspensions {
		p.end(peer.ErrClientGone)
	}
	for _, l := range a.sessions {
		if l != nil {
			l.end(nil)
		}
	}
}

// leftLocked handles that a stream of the account has ended. With the last one of one
// connection goes all that it had, also when the link was lost; that of a principal is
// there for when it comes back, or until Forget.
func (a *account) leftLocked(end error) {
	switch {
	case len(a.streams) > 0 || a.holder.Principal:
		return
	case !mayReturn(end):
		a.endAllLocked()
		return
	}
	a.left = time.Now()
	a.gone.Stop()
	a.gone = a.after(returnFor, func() {
		if len(a.streams) == 0 && time.Since(a.left) >= returnFor {
			a.endAllLocked()
		}
	})
}

// mayReturn reports whether a client whose stream has ended may still be there, and
// come back under the same key: it did not close the stream.
func mayReturn(end error) bool {
	closed, ok := errors.AsType[*jsonrpc.ClosedError](end)
	return ok && (closed.Class() == jsonrpc.ClassClientSlow || errors.Is(closed, mcp.ErrOtherEra))
}

// groupLocked returns the group for the capabilities of a request, as it writes
// them.
func (a *account) groupLocked(capabilities json.RawMessage) *group {
	if g := a.spelled[string(capabilities)]; g != nil {
		return g
	}
	text := canonical(Capabilities(capabilities))
	g := a.groups[string(text)]
	if g == nil {
		g = &group{a: a, text: text, can: AbilitiesOf(text), listens: make(map[*modernListen]struct{})}
		a.groups[string(text)] = g
	}
	if len(a.spelled) >= maxSpelled {
		clear(a.spelled)
	}
	a.spelled[string(capabilities)] = g
	return g
}

// numberLocked returns the number for one more session; false if there is no room for it.
func (a *account) numberLocked() (number int, ok bool) {
	if number = slices.Index(a.sessions[:], nil); number >= 0 {
		return number, true
	}
	spare := a.spareLocked()
	if spare == nil {
		return 0, false
	}
	spare.endSuspended()
	spare.end(nil)
	return spare.number, a.sessions[spare.number] == nil
}

// spareLocked returns a session that others can do without: the longest idle, or else one
// that has been suspended for long enough; nil for none.
func (a *account) spareLocked() *legacySession {
	if idle := a.longestIdleLocked(); idle != nil {
		return idle
	}
	var spare *legacySession
	var since time.Time
	for _, g := range a.groups {
		l, at := g.longestSuspended()
		if l != nil && time.Since(at) >= minSuspended && l.onlyWorks() && (spare == nil || at.Before(since)) {
			spare, since = l, at
		}
	}
	return spare
}

// longestIdleLocked returns the session without use for the longest time, nil if all
// are in use.
func (a *account) longestIdleLocked() (idle *legacySession) {
	for _, l := range a.sessions {
		if l != nil && !l.busy() && (idle == nil || l.used.Before(idle.used)) {
			idle = l
		}
	}
	return idle
}

// giveUpOldestLocked ends the oldest of some suspended calls, if it is old enough. It
// reports whether there was one.
func (a *account) giveUpOldestLocked(some func(*suspension) bool) bool {
	var oldest *suspension
	for _, p := range a.suspensions {
		inUse := p.call != nil && p.call.state != suspended
		if !inUse && time.Since(p.since) >= minSuspended && (oldest == nil || p.since.Before(oldest.since)) && some(p) {
			oldest = p
		}
	}
	if oldest != nil {
		oldest.giveUp()
	}
	return oldest != nil
}

// suspendedLocked returns how many suspended calls the server has not answered.
func (a *account) suspendedLocked() (n int) {
	for _, p := range a.suspensions {
		if p.isAtServer() && p.call.state == suspended {
			n++
		}
	}
	return n
}

// refusal is what is said when there is no room for one more session.
func (a *account) refusal() *jsonrpc.Message {
	if a.life.isStopped() {
		return jsonrpc.Failure(jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, a.id.upstream, jsonrpc.CauseHostStopped, jsonrpc.NotSent))
	}
	return jsonrpc.Failure(jsonrpc.Overloaded(a.id.upstream))
}

// begin counts a session in, unless the Bridge has stopped.
func (b *lifetime) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.wg.Add(1)
	return true
}

func (b *lifetime) isStopped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopped
}

const (
	maxGroupSessions = 16   // for the same capabilities; beyond, calls wait: see minSuspended
	maxWaiting       = 1024 // calls that wait for a session in one group; beyond, they are refused
)

// A group is the sessions whose servers were told the same capabilities. Guarded by
// account.mu.
type group struct {
	a        *account
	text     json.RawMessage // of the capabilities, for initialize
	can      mcp.Abilities
	sessions []*legacySession
	waiting  []*modernCall // for a session of their own, in order
	room     *timers.Timer // see makeRoom
	listens  map[*modernListen]struct{}
}

// forget drops a group that holds nothing.
func (g *group) forget() {
	if len(g.sessions)+len(g.waiting)+len(g.listens) > 0 {
		return
	}
	delete(g.a.groups, string(g.text))
	for spelling, other := range g.a.spelled {
		if other == g {
			delete(g.a.spelled, spelling)
		}
	}
}

// place brings a call to a session, or lets it wait for one. Servers that never
// ask anything run all calls in one session. In one that does, a call has a session of its
// own: then whatever is asked there belongs to it.
func (g *group) place(c *modernCall) {
	_, asks := g.a.life.asking.Load(g.a.id.upstream)
	alone := asks && c.works()
	l := g.free(alone)
	if l == nil && (!alone || len(g.sessions) < maxGroupSessions) {
		l = g.open(c.ClientInfo)
	}
	switch {
	case l != nil:
		l.take(c)
	case len(g.sessions) == 0 || len(g.waiting) >= maxWaiting:
		c.settle(g.a.refusal())
		g.forget()
	default:
		c.state = waiting
		g.waiting = append(g.waiting, c)
		g.makeRoom()
	}
}

// free returns a session for one more call, nil if there is none. Always the first
// one: calls that follow each other have one session, so that what a server
// remembers of it is there.
func (g *group) free(alone bool) *legacySession {
	for _, l := range g.sessions {
		if !alone || l.working == 0 {
			return l
		}
	}
	return nil
}

// next gives sessions to calls that wait for them.
func (g *group) next() {
	for len(g.waiting) > 0 {
		l := g.free(true)
		if l == nil && len(g.sessions) < maxGroupSessions {
			l = g.open(g.waiting[0].ClientInfo)
		}
		c := g.waiting[0]
		switch {
		case l != nil:
			g.waiting = g.waiting[1:]
			l.take(c)
		case len(g.sessions) == 0:
			g.waiting = g.waiting[1:]
			c.settle(g.a.refusal())
		default:
			return
		}
	}
}

// leave takes a call out that waits for a session.
func (g *group) leave(c *modernCall) {
	g.waiting = slices.DeleteFunc(g.waiting, func(other *modernCall) bool { return other == c })
}

// open begins one more session; nil if there is no room for it. The info is
// of the client that it is begun for.
func (g *group) open(info json.RawMessage) *legacySession {
	number, ok := g.a.numberLocked()
	if !ok || !g.a.life.begin() {
		return nil
	}
	l := newLegacySession(g, number, info)
	g.a.hold()
	g.a.sessions[number] = l
	g.sessions = append(g.sessions, l)
	go l.run() // Bridge.wg waits for it
	return l
}

// remove takes out a session that has ended.
func (g *group) remove(l *legacySession) {
	g.sessions = slices.DeleteFunc(g.sessions, func(other *legacySession) bool { return other == l })
}

// makeRoom ends suspended calls, the oldest first, as calls that wait need their sessions.
// When all were suspended too briefly, it is called again when it is time for one.
func (g *group) makeRoom() {
	for need := len(g.waiting) - g.emptying(); need > 0; need-- {
		l, since := g.longestSuspended()
		if l == nil {
			return
		}
		if wait := minSuspended - time.Since(since); wait > 0 {
			g.room.Stop()
			g.room = g.a.after(wait, g.makeRoom)
			return
		}
		l.endSuspended()
	}
}

// emptying returns how many sessions will soon be free, as nothing but cancelled
// calls is in them.
func (g *group) emptying() (n int) {
	for _, l := range g.sessions {
		if since, serves := l.suspendedSince(); since.IsZero() && !serves {
			n++
		}
	}
	return n
}

// longestSuspended returns the session that has been of use to suspended calls alone for
// the longest time, and since when; nil for none.
func (g *group) longestSuspended() (longest *legacySession, since time.Time) {
	for _, l := range g.sessions {
		at, serves := l.suspendedSince()
		if !serves && !at.IsZero() && (longest == nil || at.Before(since)) {
			longest, since = l, at
		}
	}
	return longest, since
}
