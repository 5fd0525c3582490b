package upstream

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// probeTime is how long a process may be silent when it is asked whether it speaks
// modern. Then it does not, or is slow to start.
const probeTime = 5 * time.Second

// probe asks an upstream whether it speaks modern. A process that does is kept: it
// is the modern server from then on. One that does not is thrown away, since some
// do not survive a request before initialize. told is false if it gave no answer
// that shows it.
func (h *Host) probe(t target) (modern, told bool, err error) {
	sh, ctx, err := h.beginProbe(t)
	if err != nil {
		return false, false, err
	}
	if sh == nil {
		ctx, cancel := context.WithTimeout(ctx, t.up.startTimeout())
		defer cancel()
		modern, err = t.up.Probe(ctx)
		return modern, true, err
	}
	<-sh.modern.decided
	return sh.modern.modern, sh.modern.told, sh.modern.err
}

// beginProbe starts a process on trial; nil for a remote server, which is to be
// asked until ctx is done.
func (h *Host) beginProbe(t target) (sh *shared, ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared.stopped {
		return nil, nil, &jsonrpc.ClosedError{Cause: causeHostStopped, Err: errStops}
	}
	h.forcedLocked()
	if t.up.Command == nil {
		return nil, h.shared.probing, nil
	}
	sh, start := h.newSharedLocked(t, claimID{t.name, sharedKey, mcp.Modern}, true)
	start()
	return sh, nil, nil
}

// discover makes the first call of the modern era.
func (sh *shared) discover() {
	n := sh.mintLocked(&sharedCall{method: mcp.MethodDiscover, then: sh.discovered})
	sh.queue = append(sh.queue, outgoing{m: mcp.Discover(jsonrpc.IntID(n)), call: sh.calls[n]})
	if sh.modern.trial.Load() {
		sh.modern.silence = time.AfterFunc(probeTime, sh.insist)
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
		m.eras.forget()
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
	m.silence.Stop()
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
	case errors.Is(err, errTried):
		err = nil
	case cause != "":
		err = &jsonrpc.ClosedError{Cause: cause, Err: err}
	}
	sh.decide(false, false, err)
	if stale {
		sh.modern.eras.forget()
	}
}
