package eras

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// lastWords is how long a server may take to read what it is told last.
const lastWords = 250 * time.Millisecond

type sessionState int // only moves forward

const (
	sessionOpening sessionState = iota // initialize is not answered
	sessionReady
	sessionEnded
)

// A legacySession is one that modern clients use, whose client this side is. Its methods are
// called with account.mu held, but for run and answered.
type legacySession struct {
	// Static after construction.
	a      *account
	g      *group
	number int
	info   json.RawMessage // of the client, for initialize; nil for ours
	log    *slog.Logger
	server *peer.Peer

	relates bool // what the server sends is surely related to what it says; owned by run

	// Guarded by account.mu.
	state   sessionState
	waiting []*modernCall            // until the server has answered what comes first
	calls   map[*modernCall]struct{} // forwarded, suspended, or given up a moment ago
	working int                      // of calls and waiting, those that the server works on
	level   callLevel
	warned  bool // of a request that cannot be attributed
	subs    mcp.Subscriptions[*modernListen]
	listens map[*modernListen]struct{} // that hear from this session
	began   time.Time                  // the session, with initialize answered
	used    time.Time                  // the last time
	idle    *timers.Timer              // that reaps

	welcome Welcome // written once, before the session is ready
}

func newLegacySession(g *group, number int, info json.RawMessage) *legacySession {
	l := &legacySession{a: g.a, g: g, number: number, info: bytes.Clone(info), used: time.Now(),
		log:   g.a.life.logger().With("upstream", g.a.id.upstream, "session", number),
		calls: make(map[*modernCall]struct{}), listens: make(map[*modernListen]struct{})}
	l.server = peer.New(peer.Options{
		Name: g.a.id.upstream, Room: jsonrpc.Room{Messages: maxQueued, Bytes: maxQueuedBytes}, Refuse: peer.DropDuplicates, Apart: true,
		Request:  func(r *peer.Request) { l.a.locked(func() { l.asked(r) }) },
		Notified: func(m *jsonrpc.Message, of *peer.Call) { l.a.locked(func() { l.heard(m, of) }) },
		Dropped:  func(_ string, m *jsonrpc.Message) { l.a.locked(func() { l.late(m) }) },
	})
	l.subs.Ask = func(method string, params json.RawMessage, _ mcp.Subscribing[*modernListen], answered func(*jsonrpc.Message)) {
		l.ask(method, params, answered)
	}
	l.idle = g.a.after(g.a.life.idle, l.reap)
	return l
}

// run is the session from its beginning to its end. When it is ended from here, the Conn
// is closed as soon as what was said last is sent, or a server that does not read has had
// time for it. To the host it means that the server is to end as it wishes.
func (l *legacySession) run() {
	life := l.a.life
	defer life.wg.Done()
	c := life.open(l.a.id.upstream, l.a.id.key+"-"+strconv.Itoa(l.number))
	l.relates = life.relates(l.a.id.upstream)
	l.a.locked(l.initialize)
	err := l.server.Run(context.Background(), c)
	l.a.locked(func() { l.end(jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)) })
	l.server.End(err)
}

// initialize makes the first call.
func (l *legacySession) initialize() {
	if l.state == sessionOpening {
		l.ask(mcp.MethodInitialize, mcp.InitializeParams(l.g.text, l.info), l.welcomed)
	}
}

// ask makes a call of this side, whose answer is handled with the lock held.
func (l *legacySession) ask(method string, params json.RawMessage, answered func(*jsonrpc.Message)) {
	c := l.server.NewCall(method)
	c.Done = func(m *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			l.a.locked(func() { answered(m) })
		}
	}
	_ = c.Send(&jsonrpc.Message{Params: params}) // if the session is over, so is everybody who waits
}

// welcomed handles the answer to initialize. Everything else was waiting for
// it.
func (l *legacySession) welcomed(m *jsonrpc.Message) {
	w, ok := ReadWelcome(m.Result)
	if !ok {
		if len(m.Result) > 0 && m.Result[0] == '{' { // else the host ends the stream, and says which event that is
			l.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Lasting: true})
		}
		return
	}
	l.welcome, l.state, l.began = w, sessionReady, time.Now()
	l.server.Send(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	l.forwardAll()
	for li := range l.listens {
		li.begin()
	}
}

// forwardAll sends what was waiting.
func (l *legacySession) forwardAll() {
	calls := l.waiting
	l.waiting = nil
	for _, c := range calls {
		l.forward(c)
	}
}

// take gives a call to the session.
func (l *legacySession) take(c *modernCall) {
	c.session = l
	if c.works() {
		l.working++
	}
	if l.state == sessionReady {
		l.forward(c)
		return
	}
	c.state = waiting
	l.waiting = append(l.waiting, c)
}

// forward sends a call to the server, which has said its welcome.
func (l *legacySession) forward(c *modernCall) {
	switch {
	case c.method == mcp.MethodDiscover:
		c.leaveSession()
		c.settle(&jsonrpc.Message{Result: l.welcome.Discover})
		return
	case !l.server.Roomy(1):
		c.leaveSession()
		c.settle(jsonrpc.Failure(jsonrpc.Overloaded(l.a.id.upstream)))
		return
	case l.raiseLevel(c):
		c.state = waiting
		l.waiting = append(l.waiting, c)
		return
	}
	c.state, c.serverInfo = forwarded, l.welcome.Info
	c.Call = l.server.NewCall(c.method)
	c.Works, c.Owner, c.Value = c.works(), c, c
	c.Done = func(m *jsonrpc.Message, lost *peer.Lost) { l.answered(c, m, lost) }
	c.Progress = func(m *jsonrpc.Message, _ jsonrpc.Span) { l.a.locked(func() { l.progress(c, m) }) }
	l.calls[c] = struct{}{}
	n, _ := c.ID.Int()
	_ = c.Send(&jsonrpc.Message{Params: c.LegacyParams(c.params, n), Extra: c.extra})
	c.extra = nil
	if c.digest != nil {
		c.params = nil
		c.LetGo()
	}
}

// answered handles the server's answer to a call. The end of the session is end's.
func (l *legacySession) answered(c *modernCall, m *jsonrpc.Message, lost *peer.Lost) {
	l.a.mu.Lock()
	if lost != nil || c.session != l {
		l.a.mu.Unlock()
		return
	}
	c.leaveSession()
	was := c.state
	if was == suspended {
		c.keep(m)
	}
	l.a.mu.Unlock()
	if was == forwarded {
		c.finish(m)
	}
}

// late handles an answer that nobody waits for. One to a call that was cancelled tells that
// the server is not at it any more.
func (l *legacySession) late(m *jsonrpc.Message) {
	n, _ := m.ID.Answered()
	for c := range l.calls {
		if c.state == cancelled && c.ID == jsonrpc.IntID(n) {
			c.leaveSession()
			return
		}
	}
}

// leaveSession takes a call out of its session, which may then be somebody else's.
// What the server asked for it and nobody has answered is refused.
func (c *modernCall) leaveSession() {
	l := c.session
	if l == nil {
		return
	}
	c.refuse(errNotNeeded)
	c.session = nil
	delete(l.calls, c)
	l.used = time.Now()
	if c.works() {
		l.working--
		l.g.next()
	}
}

// busy reports whether the session is of use to anybody.
func (l *legacySession) busy() bool {
	return l.state == sessionOpening || len(l.calls)+len(l.waiting)+len(l.listens) > 0
}

// end is the one place through which every end passes; the first one counts.
// It is nil if this side ends a session that nobody uses. Who waits for an answer
// hears of it; who is suspended, when the call comes back.
func (l *legacySession) end(end *jsonrpc.ClosedError) {
	if l.state == sessionEnded {
		return
	}
	l.state = sessionEnded
	l.idle.Stop()
	l.server.Finish(jsonrpc.ErrClosed, lastWords)
	l.a.sessions[l.number] = nil
	l.g.remove(l)
	if end != nil {
		end.Event = cmp.Or(end.Event, jsonrpc.NewEvent())
		l.log.Debug("session of modern clients ended", "cause", end.Cause, "event", end.Event, "in_flight", len(l.calls), "err", end.Err)
		l.fail(end)
	}
	l.g.next()
	l.g.forget()
	l.a.release()
}

// sendAway ends all streams of the key, without an answer to anything, because
// the upstream turned out to speak modern: whoever comes again is not translated, and
// nobody is placed in a session any more. Calls of other sessions may have run.
func (l *legacySession) sendAway(end *jsonrpc.ClosedError) {
	for _, c := range l.waiting {
		c.session = nil
	}
	for c := range l.calls {
		c.session = nil
	}
	l.waiting = nil
	for _, g := range l.a.groups {
		g.waiting = nil
	}
	for s := range l.a.streams {
		mine := *end
		for _, r := range s.peer.TakeRequests(nil) {
			r.Answer(nil)
			switch of := r.Value.(type) {
			case *modernCall:
				mine.Delivered = mine.Delivered || of.state == forwarded
				of.cancel(nil)
			case *modernListen:
				of.end()
			}
		}
		s.leaveLocked()
		s.end(&mine)
	}
}

func (l *legacySession) fail(end *jsonrpc.ClosedError) {
	if errors.Is(end, mcp.ErrOtherEra) {
		l.sendAway(end)
	}
	closed := func(phase jsonrpc.Phase) *jsonrpc.Message {
		return jsonrpc.Failure(end.Wire(jsonrpc.CodeInternalError, l.a.id.upstream, phase))
	}
	phase := jsonrpc.NotSent
	if end.Delivered {
		phase = jsonrpc.InFlight
	}
	for _, c := range l.waiting {
		c.session = nil
		c.settle(closed(jsonrpc.NotSent))
	}
	for c := range l.calls {
		c.session, c.requests = nil, nil
		switch c.state {
		case suspended:
			c.keep(closed(jsonrpc.InFlight))
		case forwarded:
			c.settle(closed(phase))
		}
	}
	l.waiting = nil
	clear(l.calls)
	for li := range l.listens {
		li.lost(closed(jsonrpc.NotSent))
	}
}

// suspendedSince reports whether the session works for a client that waits. If it does not,
// since is when the newest of its suspended calls was suspended; zero if there is none.
func (l *legacySession) suspendedSince() (since time.Time, serves bool) {
	n := 0
	for c := range l.calls {
		switch {
		case !c.works():
			continue
		case c.state == suspended && c.suspension.since.After(since):
			since = c.suspension.since
		case c.state == forwarded:
			return since, true
		}
		n++
	}
	return since, n < l.working // some are not sent yet
}

// endSuspended ends the suspended calls of a session.
func (l *legacySession) endSuspended() {
	for c := range l.calls {
		if c.state == suspended {
			c.suspension.giveUp()
		}
	}
}

// onlyWorks reports whether nobody uses the session but for calls that work.
func (l *legacySession) onlyWorks() bool {
	return l.state == sessionReady && len(l.calls) == l.working && len(l.listens) == 0
}

// reap ends a session that nobody has used for a while.
func (l *legacySession) reap() {
	if l.state == sessionEnded {
		return
	}
	if left := l.a.life.idle - time.Since(l.used); l.busy() || left > 0 {
		if left <= 0 {
			left = l.a.life.idle
		}
		l.idle = l.a.after(left, l.reap)
		return
	}
	l.log.Debug("idle session ended")
	l.end(nil)
}
