package pool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

// lastWords is how long a server may take to read what it is told last.
const lastWords = 250 * time.Millisecond

type laneState int // only moves forward

const (
	laneOpening laneState = iota // initialize is not answered
	laneReady
	laneEnded
)

// A lane is one legacy session that modern clients use, whose client this side is.
type lane struct {
	// Static after construction.
	t      *tenant
	g      *group
	number int
	info   json.RawMessage // of the client, for initialize; nil for ours
	log    *slog.Logger
	server *peer.Peer

	relates bool // what the server sends is surely related to what it says; owned by run

	// Guarded by tenant.mu.
	state   laneState
	waiting []*bridged            // until the server has answered what comes first
	calls   map[*bridged]struct{} // forwarded, suspended, or given up a moment ago
	working int                   // of calls and waiting, those that the server works on
	level   laneLevel
	warned  bool // of a request that cannot be attributed
	subs    subscriptions[*modernListen]
	listens map[*modernListen]struct{} // that hear from this lane
	began   time.Time                  // the session, with initialize answered
	used    time.Time                  // the last time
	idle    *timers.Timer              // that reaps

	welcome translate.Welcome // written once, before the lane is ready
}

func newLane(g *group, number int, info json.RawMessage) *lane {
	l := &lane{t: g.t, g: g, number: number, info: bytes.Clone(info), used: time.Now(),
		log:   g.t.b.logger().With("upstream", g.t.id.upstream, "lane", number),
		calls: make(map[*bridged]struct{}), listens: make(map[*modernListen]struct{})}
	l.server = peer.New(peer.Options{
		Name: g.t.id.upstream, Room: jsonrpc.Room{Messages: maxQueued, Bytes: maxQueuedBytes}, Twin: noAnswer, Apart: true,
		Request: l.asked, Notified: l.heard, Dropped: l.late,
	})
	l.subs.ask = func(method string, params json.RawMessage, _ subscribing[*modernListen], answered func(*jsonrpc.Message)) {
		l.askLocked(method, params, answered)
	}
	l.idle = g.t.after(g.t.b.idle(), l.reapLocked)
	return l
}

// run is the session from its beginning to its end. When it is ended from here, the Conn
// is closed as soon as what was said last is sent, or a server that does not read has had
// time for it. To the host it means that the server is to end as it wishes.
func (l *lane) run() {
	b := l.t.b
	defer b.pool.wg.Done()
	c := b.Open(b.pool.ctx, l.t.id.upstream, l.t.id.key+"-"+strconv.Itoa(l.number), mcp.Legacy)
	l.relates = b.relates(l.t.id.upstream)
	l.begin()
	err := l.server.Run(context.Background(), c)
	l.end(err)
	l.server.End(err)
}

// ourInfo is what a server is told of a client that says nothing of itself.
var ourInfo = json.RawMessage(`{"name":"mcp-proxy","version":"1"}`)

// begin says initialize.
func (l *lane) begin() {
	info := l.info
	if info == nil {
		info = ourInfo
	}
	params := jsonrpc.Set(nil,
		jsonrpc.Value{Key: "protocolVersion", Text: jsonrpc.Quote(mcp.LegacyVersions[0])},
		jsonrpc.Value{Key: "capabilities", Text: l.g.text},
		jsonrpc.Value{Key: "clientInfo", Text: info})
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.state == laneOpening {
		l.askLocked(mcp.MethodInitialize, params, l.welcomeLocked)
	}
}

// askLocked makes a call of this side, whose answer is handled with the lock held.
func (l *lane) askLocked(method string, params json.RawMessage, answered func(*jsonrpc.Message)) {
	c := l.server.NewCall(method)
	c.Done = func(m *jsonrpc.Message, lost *peer.Lost) {
		l.t.mu.Lock()
		defer l.t.mu.Unlock()
		if lost == nil {
			answered(m)
		}
	}
	_ = c.Send(&jsonrpc.Message{Params: params}) // if the session is over, so is everybody who waits
}

// welcomeLocked handles the answer to initialize. Everything else was waiting for
// it.
func (l *lane) welcomeLocked(m *jsonrpc.Message) {
	w, ok := translate.ReadWelcome(m.Result)
	if !ok {
		if len(m.Result) > 0 && m.Result[0] == '{' { // else the host ends the stream, and says which event that is
			l.endLocked(&jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Lasting: true})
		}
		return
	}
	l.welcome, l.state, l.began = w, laneReady, time.Now()
	l.server.Send(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	l.forwardAllLocked()
	for li := range l.listens {
		li.beginLocked()
	}
}

// forwardAllLocked sends what was waiting.
func (l *lane) forwardAllLocked() {
	calls := l.waiting
	l.waiting = nil
	for _, c := range calls {
		l.forwardLocked(c)
	}
}

// takeLocked gives a call to the lane.
func (l *lane) takeLocked(c *bridged) {
	c.lane = l
	if mcp.MethodOf(c.method).Works {
		l.working++
	}
	if l.state == laneReady {
		l.forwardLocked(c)
		return
	}
	c.state = waiting
	l.waiting = append(l.waiting, c)
}

// forwardLocked sends a call to the server, which has said its welcome.
func (l *lane) forwardLocked(c *bridged) {
	switch {
	case c.method == mcp.MethodDiscover:
		c.leaveLaneLocked()
		c.settleLocked(&jsonrpc.Message{Result: l.welcome.Discover})
		return
	case !l.server.Roomy(1):
		c.leaveLaneLocked()
		c.settleLocked(jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.Overloaded(l.t.id.upstream)))
		return
	case l.levelLocked(c):
		c.state = waiting
		l.waiting = append(l.waiting, c)
		return
	}
	c.state, c.serverInfo = forwarded, l.welcome.Info
	c.Call = l.server.NewCall(c.method)
	c.Works, c.Owner, c.Value = mcp.MethodOf(c.method).Works, c, c
	c.Done = func(m *jsonrpc.Message, lost *peer.Lost) { l.answered(c, m, lost) }
	c.Progress = func(m *jsonrpc.Message, _ jsonrpc.Span) { l.progress(c, m) }
	l.calls[c] = struct{}{}
	n, _ := c.ID.Int()
	_ = c.Send(&jsonrpc.Message{Params: c.LegacyParams(c.params, n), Extra: c.extra})
	c.extra = nil
	if c.digest != nil {
		c.params = nil
		c.LetGo()
	}
}

// answered handles the server's answer to a call. The end of the session is endLocked's.
func (l *lane) answered(c *bridged, m *jsonrpc.Message, lost *peer.Lost) {
	l.t.mu.Lock()
	if lost != nil || c.lane != l {
		l.t.mu.Unlock()
		return
	}
	c.leaveLaneLocked()
	was := c.state
	if was == parked {
		c.keepLocked(m)
	}
	l.t.mu.Unlock()
	if was == forwarded {
		c.finish(m)
	}
}

// late handles an answer that nobody waits for. One to a call that was cancelled tells that
// the server is not at it any more.
func (l *lane) late(_ string, m *jsonrpc.Message) {
	n, _ := m.ID.Answered()
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	for c := range l.calls {
		if c.state == ghost && c.ID == jsonrpc.IntID(n) {
			c.leaveLaneLocked()
			return
		}
	}
}

// leaveLaneLocked takes a call out of its lane, which may then be somebody else's.
// What the server asked for it and nobody has answered is refused.
func (c *bridged) leaveLaneLocked() {
	l := c.lane
	if l == nil {
		return
	}
	c.refuseLocked(errNotNeeded)
	c.lane = nil
	delete(l.calls, c)
	l.used = time.Now()
	if mcp.MethodOf(c.method).Works {
		l.working--
		l.g.nextLocked()
	}
}

// busyLocked reports whether the lane is of use to anybody.
func (l *lane) busyLocked() bool {
	return l.state == laneOpening || len(l.calls)+len(l.waiting)+len(l.listens) > 0
}

// end ends the lane because its stream has.
func (l *lane) end(err error) {
	end := jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.endLocked(end)
}

// endLocked is the one place through which every end passes; the first one counts.
// It is nil if the bridge ends a lane that nobody uses. Who waits for an answer
// hears of it; who is parked, when the call comes back.
func (l *lane) endLocked(end *jsonrpc.ClosedError) {
	if l.state == laneEnded {
		return
	}
	l.state = laneEnded
	l.idle.Stop()
	l.server.Finish(jsonrpc.ErrClosed, lastWords)
	l.t.lanes[l.number] = nil
	l.g.removeLocked(l)
	if end != nil {
		end.Event = cmp.Or(end.Event, jsonrpc.NewEvent())
		l.log.Debug("session of modern clients ended", "cause", end.Cause, "event", end.Event, "in_flight", len(l.calls), "err", end.Err)
		l.failLocked(end)
	}
	l.g.nextLocked()
	l.g.forgetLocked()
	l.t.release()
}

// sendAwayLocked ends all streams of the key, without an answer to anything, because
// the upstream turned out to speak modern: whoever comes again is not translated, and
// nobody is placed in a session any more. Calls of other sessions may have run.
func (l *lane) sendAwayLocked(end *jsonrpc.ClosedError) {
	for _, c := range l.waiting {
		c.lane = nil
	}
	for c := range l.calls {
		c.lane = nil
	}
	l.waiting = nil
	for _, g := range l.t.groups {
		g.waiting = nil
	}
	for s := range l.t.streams {
		mine := *end
		for _, r := range s.peer.TakeRequests(nil) {
			r.Answer(nil)
			switch of := r.Value.(type) {
			case *bridged:
				mine.Delivered = mine.Delivered || of.state == forwarded
				of.cancelLocked(nil)
			case *modernListen:
				of.endLocked()
			}
		}
		s.leaveLocked()
		s.end(&mine)
	}
}

func (l *lane) failLocked(end *jsonrpc.ClosedError) {
	if end.Cause == jsonrpc.CauseOtherEra {
		l.sendAwayLocked(end)
	}
	closed := func(phase jsonrpc.Phase) *jsonrpc.Message {
		return jsonrpc.NewError(jsonrpc.ID{}, end.Wire(jsonrpc.CodeInternalError, l.t.id.upstream, phase))
	}
	phase := jsonrpc.NotSent
	if end.Delivered {
		phase = jsonrpc.InFlight
	}
	for _, c := range l.waiting {
		c.lane = nil
		c.settleLocked(closed(jsonrpc.NotSent))
	}
	for c := range l.calls {
		c.lane, c.questions = nil, nil
		switch c.state {
		case parked:
			c.keepLocked(closed(jsonrpc.InFlight))
		case forwarded:
			c.settleLocked(closed(phase))
		}
	}
	l.waiting = nil
	clear(l.calls)
	for li := range l.listens {
		li.lostLocked(closed(jsonrpc.NotSent))
	}
}
