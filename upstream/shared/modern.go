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

// ErrTried is the end of a server on trial that turned out not to speak the era.
var ErrTried = errors.New("it does not speak this era")

// A modernServer is the additional state of a session in the modern era. All streams of an upstream share one
// process or WebSocket there, whoever their clients are: only requests in flight belong to a connection.
//
// The first call is server/discover. As with initialize in the legacy era, other messages wait for its answer, so
// that a server which fails to start has received nothing. A server is on trial while it is not known whether it
// speaks the modern era; the answer decides.
type modernServer struct {
	trial   atomic.Bool   // the era is not known yet
	decided chan struct{} // closed when modern, told and err are set; of a trial alone
	modern  bool
	told    bool  // an answer decided it
	err     error // why it was not decided

	// Guarded by session.mu.
	silence *timers.Timer // runs until server/discover is answered on trial
	misfit  bool          // the session ends because the server speaks the other era
}

func newModernServer(trial bool) *modernServer {
	m := &modernServer{decided: make(chan struct{})}
	m.trial.Store(trial)
	return m
}

// forwardModern forwards a request of a modern client. The server itself refuses unknown methods.
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

// notifiedModern routes a notification of a modern server to the client that owns it: by the request that it
// names, or because only one client is possible. Others are dropped (2026-07-28 basic/patterns). of is the call
// on whose stream it came.
func (s *sharedSession) notifiedModern(m *jsonrpc.Message, of *peer.Call) {
	switch m.Method {
	case mcp.MethodProgress: // of a call that has ended
	case mcp.MethodCancelled:
		s.listenCancelled(m)
	default:
		if c, said := s.callNamed(m, of); said {
			c.notify(m)
			return
		}
		s.unnamed(m)
	}
}

// notify passes on a notification that names the call, unless it is one that only other calls get. c may be nil.
func (c *memberCall) notify(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	switch {
	case c == nil || notes.Method.OnListen && !c.listens:
	case m.Method == mcp.MethodLog && !wants(levelIn(notes), c.logs):
		c.member.s.dropUnasked()
	default:
		if params, ok := c.params(m); ok {
			c.member.put(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.request.ID})
		}
	}
}

// listenOf returns the subscriptions/listen call that a notification names; nil if there is none.
func (s *sharedSession) listenOf(notes *mcp.Notes, in mcp.Member) *memberCall {
	id, ok := notes.ID(in)
	if c := s.server.Call(id); ok && c != nil && callOf(c).listens && c.Sent() {
		return callOf(c)
	}
	return nil
}

// listenCancelled ends a subscription gracefully when the server cancels it: a server MUST send a cancellation
// according to cancellation, and SHOULD send a result according to subscriptions (2026-07-28 basic/patterns). A
// server may cancel nothing else.
func (s *sharedSession) listenCancelled(m *jsonrpc.Message) {
	if c := s.listenOf(mcp.Read(m), mcp.Key); c != nil && c.Take() {
		c.member.sent.Store(true)
		c.request.Respond(listenResult(c, &jsonrpc.Message{Result: []byte(`{"resultType":"complete"}`)}))
	}
}

// unnamed routes a notification of a modern server that names no request. If only one client is possible, its
// newest call that asked for log messages gets a log message, and its only call a notification of an unknown
// method, while all that the server was ever told is of one principal. Others are dropped.
func (s *sharedSession) unnamed(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	logs := m.Method == mcp.MethodLog
	if !logs && notes.Method.Name != "" { // of a listen, which it must name
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.callsOfOneLocked()
	if len(calls) == 0 || !logs && (len(calls) > 1 || s.users.several) {
		s.dropLocked(m)
		return
	}
	level := levelIn(notes)
	for _, c := range slices.Backward(calls) {
		if !logs || wants(level, c.logs) {
			c.member.put(&jsonrpc.Message{Method: m.Method, Params: m.Params, Extra: m.Extra, Related: c.request.ID})
			return
		}
	}
	s.dropUnasked()
}

// callsOfOneLocked returns the calls at the server, oldest first, if a log message can only concern the client
// that made them; otherwise nil. Servers log unasked and late. So any call counts, whether or not it asked for log
// messages, and so do abandoned calls and tasks. Clients of other principals also count because of a subscription,
// and for ever after they have abandoned a call; other clients of the same principal count for peer.Lingering
// after a call.
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

// probeTime is how long a process may be silent when it is asked whether it speaks modern. After that it is a
// legacy server, or slow to start.
const probeTime = 5 * time.Second

// discover makes the first call of the modern era.
func (s *sharedSession) discover() {
	first := mcp.Discover(jsonrpc.ID{})
	s.ask(mcp.MethodDiscover, first.Params, s.discovered)
	if s.modern.trial.Load() {
		s.modern.silence = s.timers.After(probeTime, s.insist)
	}
}

// insist sends initialize to a silent process. A legacy server may not answer server/discover, but answers
// initialize. A slow modern server answers server/discover first. StartTimeout bounds the wait.
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

// discovered handles the answer to server/discover.
func (s *sharedSession) discovered(answer *jsonrpc.Message) {
	modern := mcp.DiscoversModern(answer)
	switch misread := !modern && !s.up.Modern; {
	case misread && s.modern.trial.Load():
		s.decide(false, true, nil)
	case misread: // the upstream was replaced since its era was learned
		s.up.Misread()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.modern.misfit = true
		s.retireLocked(jsonrpc.CauseStartFailed)
	default:
		if !modern {
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

// decide ends a trial. The first decision counts. A server that is not known to be modern is stopped.
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

// modernEnded evaluates the end of the session: a server on trial that exits is not modern, and a server that was
// believed to be modern may have been replaced.
func (s *sharedSession) modernEnded(err error) {
	s.mu.Lock()
	stale := s.welcome == nil && !s.up.Modern && s.cause.IsZero() && !s.modern.trial.Load()
	cause := s.cause
	s.mu.Unlock()
	switch {
	case errors.Is(err, ErrTried):
		err = nil
	case !cause.IsZero():
		err = &jsonrpc.ClosedError{Cause: cause, Err: err}
	}
	s.decide(false, false, err)
	if stale {
		s.up.Misread()
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
