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

// lastWords is how long a server may take to read the last messages.
const lastWords = 250 * time.Millisecond

type sessionState int // only moves forward

const (
	sessionOpening sessionState = iota // initialize is not answered
	sessionReady
	sessionEnded
)

// A legacySession is a session with a legacy server, which modern clients use. Its methods are called with
// account.mu held, except for run and answered.
type legacySession struct {
	// Static after construction.
	a      *account
	g      *group
	number int
	info   json.RawMessage // of the client, for initialize; nil for ours
	log    *slog.Logger
	server *peer.Peer

	relates bool // the Related of the server's messages is certain; owned by run

	// Guarded by account.mu.
	state   sessionState
	waiting []*modernCall            // until initialize or setLevel is answered
	notices []*jsonrpc.Message       // of clients, until initialize is answered
	calls   map[*modernCall]struct{} // forwarded, suspended, or cancelled recently
	working int                      // number of calls, sent or waiting, that the server works on
	warned  bool                     // a request could not be attributed, and was logged
	subs    mcp.Subscriptions[*modernListen]
	listens map[*modernListen]struct{} // that use this session
	began   time.Time                  // when initialize was answered
	used    time.Time                  // last
	idle    *timers.Timer              // runs until reap

	level struct { // of the server's log messages
		told    int  // the level that was sent last; zero for none
		asking  bool // the server has not answered
		refused bool
	}

	welcome welcome // written once, before state is sessionReady
}

func newLegacySession(g *group, number int, info json.RawMessage) *legacySession {
	l := &legacySession{a: g.a, g: g, number: number, info: bytes.Clone(info), used: time.Now(),
		log:   g.a.life.log.With("upstream", g.a.id.upstream, "session", number),
		calls: make(map[*modernCall]struct{}), listens: make(map[*modernListen]struct{})}
	l.server = peer.New(peer.Options{
		Name: g.a.id.upstream, Room: jsonrpc.Room{Messages: maxQueued, Bytes: maxQueuedBytes}, Refuse: peer.DropDuplicates, Apart: true,
		Request:  func(r *peer.Request) { l.a.locked(func() { l.asked(r) }) },
		Notified: func(m *jsonrpc.Message, of *peer.Call) { l.a.locked(func() { l.notified(m, of) }) },
		Dropped:  func(m *jsonrpc.Message) { l.a.locked(func() { l.late(m) }) },
	})
	l.subs.Ask = func(method string, params json.RawMessage, _ mcp.Subscribing[*modernListen], answered func(*jsonrpc.Message)) {
		l.ask(method, params, answered)
	}
	l.idle = g.a.after(l.idleFor(), l.reap)
	return l
}

// run runs the session from its beginning to its end. If this side ends it, the Conn is closed once the last
// messages are sent or lastWords has passed. The host then stops the server gracefully.
func (l *legacySession) run() {
	life := l.a.life
	defer life.wg.Done()
	c := life.open(l.a.headers, l.a.id.upstream, l.a.id.key+"-"+strconv.Itoa(l.number))
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

// ask makes a call of this side. answered gets the answer with the lock held. Once the session has ended, answers are
// dropped: end has failed everything that waited for them.
func (l *legacySession) ask(method string, params json.RawMessage, answered func(*jsonrpc.Message)) {
	c := l.server.NewCall(method)
	c.Done = func(m *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			l.a.locked(func() {
				if l.state != sessionEnded {
					answered(m)
				}
			})
		}
	}
	_ = c.Send(&jsonrpc.Message{Params: params}) // if the session has ended, so have all waiting calls
}

// welcomed handles the answer to initialize, for which all other messages wait.
func (l *legacySession) welcomed(m *jsonrpc.Message) {
	w, ok := readWelcome(m.Result)
	if !ok {
		if len(m.Result) > 0 && m.Result[0] == '{' { // otherwise the host ends the stream, with its event
			l.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Lasting: true})
		}
		return
	}
	l.welcome, l.state, l.began = w, sessionReady, time.Now()
	l.server.Send(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	l.forwardAll()
	for _, m := range l.notices {
		l.server.Send(m)
	}
	l.notices = nil
	for li := range l.listens {
		li.begin()
	}
}

// notice sends a notification of a client to the server, unless there is no room for it.
func (l *legacySession) notice(m *jsonrpc.Message) {
	l.used = time.Now()
	switch {
	case l.state == sessionOpening && len(l.notices) < maxQueued:
		l.notices = append(l.notices, m)
	case l.state == sessionReady && l.server.Roomy(1):
		l.server.Send(m)
	default:
		l.log.Debug("notification of a client dropped: no room", "method", m.Method)
	}
}

// forwardAll sends the waiting calls.
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

// forward sends a call to the server, which has answered initialize.
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
	_ = c.Send(&jsonrpc.Message{Params: c.legacyParams(c.params, n), Extra: c.extra, Forwarded: c.headers})
	c.extra = nil
	if c.digest != nil {
		c.params = nil
		c.letGo()
	}
}

// answered handles the server's answer to a call. The end of the session is handled by end.
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

// late handles the answer to a call that was cancelled: the server has stopped working on it.
func (l *legacySession) late(m *jsonrpc.Message) {
	n, _ := m.ID.Answered()
	for c := range l.calls {
		if c.state == cancelled && c.ID == jsonrpc.IntID(n) {
			c.leaveSession()
			return
		}
	}
}

// leaveSession removes a call from its session, which then serves others. Open requests of the server for the call
// are refused.
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

// busy reports whether the session is in use.
func (l *legacySession) busy() bool {
	return l.state == sessionOpening || len(l.calls)+len(l.waiting)+len(l.listens) > 0
}

// end is the one place through which every end passes; the first one counts. It is nil if this side ends an unused
// session. Waiting clients get the cause at once, those of suspended calls when they come back.
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
		l.log.Debug("session of modern clients ended", "cause", end.Cause.String(), "event", end.Event, "in_flight", len(l.calls), "err", end.Err)
		l.fail(end)
	}
	l.g.next()
	l.g.forget()
	l.a.release()
}

// sendAway ends all streams of the key without any answer, because the upstream turned out to speak modern:
// clients that come again are not translated. Calls of other sessions may have run.
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

// suspendedSince reports whether the session serves a waiting client. If not, since is when the newest of its
// suspended calls was suspended; zero if there is none.
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

// onlyWorks reports whether the session is used by nothing but calls that the server works on.
func (l *legacySession) onlyWorks() bool {
	return l.state == sessionReady && len(l.calls) == l.working && len(l.listens) == 0
}

// idleFor returns how long the session is kept without use.
func (l *legacySession) idleFor() time.Duration { return l.a.life.idle(l.a.id.upstream) }

// reap ends a session that has not been used for a while.
func (l *legacySession) reap() {
	if l.state == sessionEnded {
		return
	}
	if left := l.idleFor() - time.Since(l.used); l.busy() || left > 0 {
		if left <= 0 {
			left = l.idleFor()
		}
		l.idle = l.a.after(left, l.reap)
		return
	}
	l.log.Debug("idle session ended")
	l.end(nil)
}
