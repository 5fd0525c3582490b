package pool

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
func (sh *shared) discover() {
	n := sh.mintLocked(&sharedCall{method: mcp.MethodDiscover, then: sh.discovered})
	sh.queue = append(sh.queue, outgoing{m: mcp.Discover(jsonrpc.IntID(n)), call: sh.calls[n]})
	if sh.modern.trial.Load() {
		sh.modern.silence = sh.timers.after(probeTime, sh.insist)
	}
}

// insist asks a silent process what every legacy server answers: one that does not
// know server/discover may not answer that at all, and one that is slow to start
// has not read it yet, and will answer it first. StartTimeout ends the wait.
func (sh *shared) insist() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ended || closed(sh.modern.decided) {
		return
	}
	sh.initializeLocked(func(answer *jsonrpc.Message) {
		if answer.Result != nil {
			sh.decide(false, true, nil)
		}
	})
	sh.wake.Broadcast()
}

// discovered handles the answer to the first call.
func (sh *shared) discovered(answer *jsonrpc.Message) {
	m := sh.modern
	switch {
	case !m.pinned && !mcp.DiscoversModern(answer) && m.trial.Load():
		sh.decide(false, true, nil)
	case !m.pinned && !mcp.DiscoversModern(answer): // it was another when this was learned
		m.misread()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.retireLocked(jsonrpc.CauseOtherEra)
	default:
		if !mcp.DiscoversModern(answer) {
			m.log.Warn("upstream is pinned to the modern era, and does not answer server/discover as of that era")
		}
		sh.decide(true, true, nil)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.welcome = noResult
		sh.queue = append(sh.queue, sh.held...)
		sh.held = nil
		sh.idleLocked()
		sh.wake.Broadcast()
	}
}

// decide ends a trial; the first decision counts. A server that is not modern, or
// does not say so, is thrown away.
func (sh *shared) decide(modern, told bool, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	m := sh.modern
	if !m.trial.Load() || closed(m.decided) {
		return
	}
	m.silence.stop()
	m.modern, m.told, m.err = modern, told, err
	if modern {
		m.trial.Store(false)
	} else {
		sh.retireLocked(causeWrongEra)
	}
	close(m.decided)
}

// modernEnded draws conclusions from the end of the session: a server on trial that
// exits is not modern, and one that was believed to be is not any more.
func (sh *shared) modernEnded(err error) {
	sh.mu.Lock()
	stale := sh.welcome == nil && !sh.modern.pinned && !sh.closing && !sh.modern.trial.Load()
	cause := sh.cause
	sh.mu.Unlock()
	switch {
	case errors.Is(err, ErrTried):
		err = nil
	case cause != "":
		err = &jsonrpc.ClosedError{Cause: cause, Err: err}
	}
	sh.decide(false, false, err)
	if stale {
		sh.modern.misread()
	}
}
