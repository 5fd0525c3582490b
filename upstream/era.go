package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// believed is how long an upstream counts as not modern: a verdict that a
	// slow start has caused would never be put right by itself (1.7 of
	// 2026-07-28 basic/transports/stdio lets silence mean that).
	believed = 10 * time.Minute

	// doubted is the same when its legacy era failed, too: then it was down
	// rather than old.
	doubted = 30 * time.Second
)

// An opinion is what is known of an upstream about one era.
type opinion byte

const (
	unknown opinion = iota
	no
	yes
)

// An eraFinder finds out which eras one upstream speaks, and remembers it until the
// upstream is replaced.
type eraFinder struct {
	// Static after construction.
	only  mcp.Era // the one that is not in question; "" finds out
	probe func() (modern, told bool, err error)
	wg    *sync.WaitGroup // of probes

	mu     sync.Mutex // guards the fields below; taken last
	legacy opinion    // whether initialize was ever answered
	modern opinion
	until  time.Time // modern is no
	unsure bool      // it is, though no answer said so
	asking *asking   // under way; nil for none
}

// An asking is one probe, which all share that need to know.
type asking struct {
	done   chan struct{} // closed with the fields below set
	modern bool
	told   bool  // by an answer
	err    error // it could not be told
}

// speaksTo returns the era in which the upstream is spoken to for a client of an era:
// the client's own if the upstream speaks it. It may take as long as a probe.
func (f *eraFinder) speaksTo(ctx context.Context, client mcp.Era) (mcp.Era, error) {
	if f.only != "" {
		return f.only, nil
	}
	if client == mcp.Legacy {
		if f.onlyModern() {
			return mcp.Modern, nil
		}
		return mcp.Legacy, nil // until it has refused that
	}
	modern, err := f.speaksModern(ctx.Done())
	if err != nil || modern {
		return mcp.Modern, err
	}
	return mcp.Legacy, nil
}

var errGone = &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Err: errors.New("while the upstream was asked for its era")}

// speaksModern reports whether the upstream speaks modern, and asks it if that is not
// known. Whoever is done does not wait.
func (f *eraFinder) speaksModern(done <-chan struct{}) (bool, error) {
	a := f.ask()
	select {
	case <-a.done:
		return a.modern, a.err
	case <-done:
		return false, errGone
	}
}

// ask returns the asking that tells, one that has ended if it is known already.
func (f *eraFinder) ask() *asking {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asking != nil {
		return f.asking
	}
	a := &asking{done: make(chan struct{}), modern: f.modern == yes}
	if a.modern || f.modern == no && time.Now().Before(f.until) {
		close(a.done)
		return a
	}
	f.asking = a
	f.wg.Go(func() {
		a.modern, a.told, a.err = f.probe()
		f.learn(a)
		close(a.done)
	})
	return a
}

// learn keeps what an asking has told, if it has.
func (f *eraFinder) learn(a *asking) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asking = nil
	switch {
	case a.err != nil:
	case a.modern:
		f.modern = yes
	default:
		f.modern, f.until, f.unsure = no, time.Now().Add(believed), !a.told
	}
}

// misread makes the modern era unknown: the upstream was thought to speak it, and does
// not answer.
func (f *eraFinder) misread() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.modern = unknown
	if f.legacy == no {
		f.legacy = unknown
	}
}

// initialized notes that the upstream answered initialize.
func (f *eraFinder) initialized() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.legacy = yes
}

// notInitialized notes that the upstream took no initialize, or began no session with
// it. It reports whether it speaks the modern era instead, and whether that is news. It
// may take as long as a probe, unless done.
func (f *eraFinder) notInitialized(done <-chan struct{}) (modern, news bool) {
	if f.only != "" || !f.doubt() {
		return false, false
	}
	modern, err := f.speaksModern(done)
	if err != nil {
		return false, false
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
	return modern, news
}

// doubt is what an upstream deserves that does not take initialize, and either did once,
// so that it was replaced and may speak modern since, or has never said that it does not
// speak modern. One that speaks both eras is not doubted.
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
