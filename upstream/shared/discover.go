package shared

import (
	"errors"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

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
