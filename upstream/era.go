package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// believed is how long an upstream counts as not modern. This expires because silence also
	// means not modern (1.7 of 2026-07-28 basic/transports/stdio), and a slow start is silent.
	believed = 10 * time.Minute

	// doubted is the same for an upstream that also failed in the legacy era: it was probably
	// down.
	doubted = 30 * time.Second
)

// An opinion tells whether an upstream speaks an era.
type opinion byte

const (
	unknown opinion = iota
	no
	yes
)

// An eraFinder finds out which eras an upstream speaks, and remembers it until the upstream is replaced.
type eraFinder struct {
	// Static after construction.
	only  mcp.Era                                                  // the configured era; "" if it has to be found out
	probe func(ctx context.Context) (modern, told bool, err error) // the headers in ctx go with it
	wg    *sync.WaitGroup                                          // probes

	mu     sync.Mutex // guards the fields below; taken last
	legacy opinion    // yes once initialize was answered
	modern opinion
	until  time.Time // when modern == no expires
	unsure bool      // modern == no without an answer that says so
	asking *probeRun // in progress; nil for none

	other *mcp.VersionError // what its last answer about versions means; nil for nothing
}

// A probeRun is one probe, which all concurrent callers share.
type probeRun struct {
	done   chan struct{} // closed with the fields below set
	modern bool
	told   bool  // an answer decided it
	err    error // why it was not decided
}

// speaksTo returns the era in which to talk to the upstream for a client of an era: the client's own if the
// upstream speaks it. It may take as long as a probe.
func (f *eraFinder) speaksTo(ctx context.Context, client mcp.Era) (mcp.Era, error) {
	if f.only != "" {
		return f.only, nil
	}
	if client == mcp.Legacy {
		if f.onlyModern() {
			return mcp.Modern, nil
		}
		return mcp.Legacy, nil // until it refuses initialize
	}
	modern, err := f.speaksModern(ctx, ctx.Done())
	if err != nil || modern {
		return mcp.Modern, err
	}
	return mcp.Legacy, nil
}

var errGone = &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Err: errors.New("while determining the upstream's era")}

// speaksModern reports whether the upstream speaks modern, with a probe if that is not known. It returns early if
// done is closed.
func (f *eraFinder) speaksModern(ctx context.Context, done <-chan struct{}) (bool, error) {
	a, first := f.ask(ctx)
	for {
		select {
		case <-a.done:
		case <-done:
			return false, errGone
		}
		if a.err == nil || first || jsonrpc.ForwardedIn(ctx) == nil {
			return a.modern, a.err
		}
		a, first = f.ask(ctx) // the server may have rejected the other client's credentials
	}
}

// ask returns the probe to wait for, and whether it has begun it. The probe has ended already if the
// answer is known.
func (f *eraFinder) ask(ctx context.Context) (a *probeRun, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asking != nil {
		return f.asking, false
	}
	a = &probeRun{done: make(chan struct{}), modern: f.modern == yes}
	if a.modern || f.modern == no && time.Now().Before(f.until) {
		close(a.done)
		return a, true
	}
	f.asking = a
	f.wg.Go(func() {
		a.modern, a.told, a.err = f.probe(ctx)
		f.learn(a)
		close(a.done)
	})
	return a, true
}

// learn stores the result of a probe.
func (f *eraFinder) learn(a *probeRun) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asking = nil
	if f.other, _ = errors.AsType[*mcp.VersionError](a.err); f.other != nil {
		a.err = nil
	}
	switch {
	case a.err != nil:
	case a.modern:
		f.modern = yes
	default:
		f.modern, f.until, f.unsure = no, time.Now().Add(believed), !a.told
	}
}

// misread forgets that the upstream speaks modern: it does not answer in that era.
func (f *eraFinder) misread() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.modern = unknown
	if f.legacy == no {
		f.legacy = unknown
	}
}

// initialized records that the upstream answered initialize.
func (f *eraFinder) initialized() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.legacy, f.other = yes, nil
}

// refused records the error with which the upstream has refused initialize. A probe may have found more.
func (f *eraFinder) refused(failed json.RawMessage) {
	other := mcp.OtherVersions(&jsonrpc.Message{Error: failed})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.other = cmp.Or(f.other, other)
}

// notInitialized records that the upstream refused initialize. It reports whether the upstream
// speaks the modern era instead, and whether that was unknown before. It may take as long as a probe, and
// returns early if done is closed. The headers in ctx go with the probe. The error is that of the probe.
func (f *eraFinder) notInitialized(ctx context.Context, done <-chan struct{}) (modern, news bool, err error) {
	if f.only != "" || !f.doubt() {
		return false, false, nil
	}
	modern, err = f.speaksModern(ctx, done)
	if err != nil {
		return false, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case modern:
		news = f.legacy != no
		f.legacy = no
	case f.modern == no && f.legacy != yes:
		if soon := time.Now().Add(doubted); soon.Before(f.until) {
			f.until = soon
		}
	}
	return modern, news, nil
}

// doubt forgets old opinions about an upstream that did not accept initialize: if it did before, it was replaced
// and may speak modern now; if no answer ever said that it does not speak modern, it may. It reports false, and
// forgets nothing, if the upstream speaks both.
func (f *eraFinder) doubt() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.legacy == yes && f.modern == yes {
		return false
	}
	if f.legacy == yes || f.unsure {
		f.legacy, f.unsure = unknown, false
		if f.modern == no {
			f.modern = unknown
		}
	}
	return true
}

// onlyModern reports whether the upstream refuses legacy and speaks modern.
func (f *eraFinder) onlyModern() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.legacy == no && f.modern == yes
}

// otherVersions returns the versions that the upstream has named instead of one that we speak; nil for none.
func (f *eraFinder) otherVersions() *mcp.VersionError {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.other
}

// known returns the eras that the upstream is known to speak.
func (f *eraFinder) known() (all []mcp.Era) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.legacy == yes {
		all = append(all, mcp.Legacy)
	}
	if f.modern == yes {
		all = append(all, mcp.Modern)
	}
	return all
}
