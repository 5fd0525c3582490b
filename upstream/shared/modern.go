package shared

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// modernIdle is how long a server of the modern era stays without a stream. Nothing
// is lost with it: it has no sessions.
const modernIdle = time.Minute

// ErrTried is the end of a server that has not said that it speaks the era.
var ErrTried = errors.New("it does not speak this era")

// A modernServer is what a session has besides in the modern era, in which all
// streams of an upstream have one process or WebSocket, whoever they are: nothing
// there belongs to a connection, but for the requests in flight.
//
// Its first call is server/discover, as initialize is in the legacy era: what has
// to be sent waits until it is answered, so that a server which fails to start has
// received nothing. On trial, that is when it is not known whether the server
// speaks the era at all, the answer decides (era_probe.go).
type modernServer struct {
	// Static after construction.
	pinned  bool   // whatever answers is of this era
	misread func() // what was learned of the upstream's era is wrong

	trial   atomic.Bool   // until it is decided, if it was ever in question
	decided chan struct{} // closed with the fields below set; only of a trial
	modern  bool
	told    bool  // by an answer
	err     error // it could not be told

	// Guarded by session.mu.
	silence *timers.Timer // until server/discover is answered on trial; else nil
	idle    *timers.Timer // while there is no member
	retired bool          // no more members: it ends
}

func newModernServer(up Upstream, trial bool) *modernServer {
	m := &modernServer{pinned: up.Modern, misread: up.Misread, decided: make(chan struct{})}
	m.trial.Store(trial)
	return m
}

// stopIdleLocked, with a legacy session too, forgets that it was without members.
func (s *sharedSession) stopIdleLocked() {
	if s.modern != nil {
		s.modern.idle.Stop()
		s.modern.idle = nil
	}
}

// idleLocked lets a modern server end when it stays without members.
func (s *sharedSession) idleLocked() {
	if s.modern == nil || s.over || s.welcome == nil || len(s.members) > 0 {
		return
	}
	s.stopIdleLocked()
	s.modern.idle = s.timers.After(modernIdle, s.idled)
}

func (s *sharedSession) idled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.members) == 0 {
		s.retireLocked(jsonrpc.CauseIdle)
	}
}

func (s *sharedSession) endIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.modern != nil && s.modern.idle != nil && len(s.members) == 0 {
		s.retireLocked(jsonrpc.CauseIdle)
	}
}

// retireLocked ends the session; whoever comes next gets another.
func (s *sharedSession) retireLocked(cause string) {
	s.modern.retired = true
	s.stopLocked(cause)
}

// forwardModern passes on a request of a modern client. All of them go to the server:
// what it does not know it refuses itself.
func (m *member) forwardModern(r *peer.Request, notes *mcp.Notes) {
	if err := notes.Err(mcp.InMeta, mcp.Token, mcp.LogLevel); err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	c := &memberCall{listens: r.Method == mcp.MethodListen}
	if !c.listens { // which never logs
		c.logs = levelOf(notes.Raw(mcp.LogLevel))
	}
	m.pass(r, c, notes)
}

// notifiedModern handles a notification of a modern server. It has an owner, by the
// token, by the subscription, or by being the only one that it can be for; what has
// none goes to nobody (2026-07-28 basic/patterns).
func (s *sharedSession) notifiedModern(m *jsonrpc.Message) {
	switch m.Method {
	case mcp.MethodProgress: // of what is over
	case mcp.MethodCancelled:
		s.listenCancelled(m)
	case mcp.MethodLog:
		s.logged(m)
	default:
		s.listened(m)
	}
}

// listened passes a frame of a listen on to whose it is.
func (s *sharedSession) listened(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	if c := s.listenOf(notes, mcp.Subscription); c != nil {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: notes.At(mcp.Subscription), With: c.request.ID.Raw()})
		c.member.put(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.request.ID})
	}
}

// listenOf returns the listen whose id with the server a notification has; nil for none.
func (s *sharedSession) listenOf(notes *mcp.Notes, in mcp.Member) *memberCall {
	id, ok := notes.ID(in)
	if c := s.server.Call(id); ok && c != nil && callOf(c).listens && c.Sent() {
		return callOf(c)
	}
	return nil
}

// listenCancelled makes of the server's cancellation of a listen what ends it
// gracefully: cancellation says that a server MUST send the one, subscriptions that
// it SHOULD send the other (2026-07-28 basic/patterns). It may cancel nothing else.
func (s *sharedSession) listenCancelled(m *jsonrpc.Message) {
	if c := s.listenOf(mcp.Read(m), mcp.Key); c != nil && c.Take() {
		c.member.sent.Store(true)
		c.request.Respond(listenResult(c, &jsonrpc.Message{Result: []byte(`{"resultType":"complete"}`)}))
	}
}

// listenResult returns an answer with the client's own id of the subscription.
func listenResult(c *memberCall, m *jsonrpc.Message) *jsonrpc.Message {
	result := mcp.SetMeta(m.Result, jsonrpc.Value{Key: mcp.KeySubscription, Text: c.request.ID.Raw()})
	return &jsonrpc.Message{Result: result, Extra: m.Extra}
}

// logged passes a log message of a modern server on to whose it is. It belongs to a
// request, and names none. If it can be of one client alone, the newest of its calls that
// asked for such messages has it; else nobody has.
func (s *sharedSession) logged(m *jsonrpc.Message) {
	level := levelIn(mcp.Read(m))
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.callsOfOneLocked()
	if len(calls) == 0 {
		s.dropLocked(m)
		return
	}
	for _, c := range slices.Backward(calls) {
		if wants(level, c.logs) {
			c.member.put(&jsonrpc.Message{Method: m.Method, Params: m.Params, Extra: m.Extra, Related: c.request.ID})
			return
		}
	}
}

// callsOfOneLocked returns the calls at the server, the oldest first, if the server can log
// for nobody but the one client that has made them; nil if it can. Servers log unasked, and
// late, so that it does not matter who asked for log messages, and whoever has given up a
// call or was given a task may still be meant. Clients of another principal may be meant
// because of a subscription, too, and at any time after they have given up; other clients of
// the same principal, who may know what it knows, for peer.Lingering after a call.
func (s *sharedSession) callsOfOneLocked() []*memberCall {
	meant := s.gaveUp
	var calls []*memberCall
	for _, c := range s.atServer() {
		meant.add(c.member.holder.Who)
		switch {
		case c.listens:
		case len(calls) > 0 && (c.member != calls[0].member || c.member.holder.Principal):
			return nil
		default:
			calls = append(calls, c)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	m := calls[0].member
	switch {
	case meant.others(m.holder.Who), s.othersGaveUpLocked(m, peer.Lingering),
		m.holder.Principal && time.Since(m.gaveUp) < peer.Lingering:
		return nil
	}
	return calls
}

// probeTime is how long a process may be silent when it is asked whether it speaks
// modern. Then it does not, or is slow to start.
const probeTime = 5 * time.Second

// discover makes the first call of the modern era.
func (s *sharedSession) discover() {
	first := mcp.Discover(jsonrpc.ID{})
	s.ask(mcp.MethodDiscover, first.Params, queuedRequest{}, s.discovered)
	if s.modern.trial.Load() {
		s.modern.silence = s.timers.After(probeTime, s.insist)
	}
}

// insist asks a silent process what every legacy server answers: one that does not
// know server/discover may not answer that at all, and one that is slow to start
// has not read it yet, and will answer it first. StartTimeout ends the wait.
func (s *sharedSession) insist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || isClosed(s.modern.decided) {
		return
	}
	s.initialize(func(answer *jsonrpc.Message) {
		if answer.Result != nil {
			s.decide(false, true, nil)
		}
	})
}

// discovered handles the answer to the first call.
func (s *sharedSession) discovered(answer *jsonrpc.Message) {
	m := s.modern
	switch {
	case !m.pinned && !mcp.DiscoversModern(answer) && m.trial.Load():
		s.decide(false, true, nil)
	case !m.pinned && !mcp.DiscoversModern(answer): // it was another when this was learned
		m.misread()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.otherEra = true
		s.retireLocked(jsonrpc.CauseStartFailed)
	default:
		if !mcp.DiscoversModern(answer) {
			s.log.Warn("upstream is configured as modern, but does not answer server/discover")
		}
		s.decide(true, true, nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.welcome = noResult
		s.server.Release(afterWelcome)
		s.idleLocked()
	}
}

// decide ends a trial; the first decision counts. A server that is not modern, or
// does not say so, is thrown away.
func (s *sharedSession) decide(modern, told bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.modern
	if !m.trial.Load() || isClosed(m.decided) {
		return
	}
	m.silence.Stop()
	m.modern, m.told, m.err = modern, told, err
	if modern {
		m.trial.Store(false)
	} else {
		s.retireLocked(jsonrpc.CauseWrongEra)
	}
	close(m.decided)
}

// modernEnded draws conclusions from the end of the session: a server on trial that
// exits is not modern, and one that was believed to be is not any more.
func (s *sharedSession) modernEnded(err error) {
	s.mu.Lock()
	stale := s.welcome == nil && !s.modern.pinned && s.cause == "" && !s.modern.trial.Load()
	cause := s.cause
	s.mu.Unlock()
	switch {
	case errors.Is(err, ErrTried):
		err = nil
	case cause != "":
		err = &jsonrpc.ClosedError{Cause: cause, Err: err}
	}
	s.decide(false, false, err)
	if stale {
		s.modern.misread()
	}
}

func isClosed(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}
