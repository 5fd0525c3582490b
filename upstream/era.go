package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Bridge translates streams between the eras. Legacy and Modern own client, and return
// its end when nothing is left of it; what they need of the upstream they get from
// [Host.Open].
type Bridge interface {
	// Legacy serves a legacy client's stream on an upstream that speaks modern.
	Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error

	// Modern serves a modern client's stream on an upstream that speaks legacy.
	Modern(ctx context.Context, upstream, key string, client jsonrpc.Conn) error

	// Unattributed says that a shared upstream asked something and it could not be
	// told of whom, since several clients have calls there. The Bridge keeps some
	// for clients that may never come back, and can give up those.
	Unattributed(upstream string)
}

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

// eras is what is known about the eras of one upstream, until that is replaced.
type eras struct {
	mu     sync.Mutex // guards the fields below; taken last
	legacy opinion    // whether initialize was ever answered
	modern opinion
	until  time.Time // modern is no
	unsure bool      // it is, though no answer said so
	asking *asking   // under way; nil for none

	trouble  jsonrpc.ClosedError // of the last asking that failed and was told, see notAsked
	troubled time.Time
}

// An asking is one probe, which all share that need to know.
type asking struct {
	done   chan struct{} // closed with the fields below set
	modern bool
	told   bool  // by an answer
	err    error // it could not be told
}

// A target is what a stream is to be attached to.
type target struct {
	name string
	up   *Upstream
	eras *eras
}

// target returns the upstream of that name with what is known of it.
func (h *Host) target(name string) (target, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	up, ok := h.Upstreams[name]
	if !ok {
		return target{}, false
	}
	e := h.eras[name]
	if e == nil {
		if h.eras == nil {
			h.eras = make(map[string]*eras)
		}
		e = new(eras)
		h.eras[name] = e
	}
	return target{name, &up, e}, true
}

// only returns the era that is not in question; "" finds out.
func (u *Upstream) only() mcp.Era {
	switch {
	case u.Era != "":
		return u.Era
	case u.Command == nil && (u.DialModern == nil || u.Probe == nil):
		return mcp.Legacy
	}
	return ""
}

// eraFor returns the era in which an upstream is spoken to for a client of an era:
// the client's own if the upstream speaks it. It may take as long as a probe.
func (h *Host) eraFor(ctx context.Context, t target, client mcp.Era) (mcp.Era, error) {
	if era := t.up.only(); era != "" {
		return era, nil
	}
	if client == mcp.Legacy {
		if t.eras.onlyModern() {
			return mcp.Modern, nil
		}
		return mcp.Legacy, nil // until it has refused that
	}
	modern, err := h.speaksModern(ctx.Done(), t)
	if err != nil || modern {
		return mcp.Modern, err
	}
	return mcp.Legacy, nil
}

var errGone = &jsonrpc.ClosedError{Cause: causeHostStopped, Err: errors.New("while the upstream was asked for its era")}

// speaksModern reports whether an upstream speaks modern, and asks it if that is
// not known. Whoever is done does not wait.
func (h *Host) speaksModern(done <-chan struct{}, t target) (bool, error) {
	a := h.ask(t)
	select {
	case <-a.done:
		return a.modern, a.err
	case <-done:
		return false, errGone
	}
}

// ask returns the asking that tells, one that has ended if it is known already.
func (h *Host) ask(t target) *asking {
	e := t.eras
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asking != nil {
		return e.asking
	}
	a := &asking{done: make(chan struct{}), modern: e.modern == yes}
	if a.modern || e.modern == no && time.Now().Before(e.until) {
		close(a.done)
		return a
	}
	e.asking = a
	h.wg.Go(func() {
		a.modern, a.told, a.err = h.probe(t)
		e.learn(a)
		close(a.done)
	})
	return a
}

// learn keeps what an asking has told, if it has.
func (e *eras) learn(a *asking) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asking = nil
	switch {
	case a.err != nil:
	case a.modern:
		e.modern = yes
	default:
		e.modern, e.until, e.unsure = no, time.Now().Add(believed), !a.told
	}
}

// forget makes the modern era unknown: a server was thought to speak it, and does
// not answer.
func (e *eras) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.modern = unknown
	if e.legacy == no {
		e.legacy = unknown
	}
}

// greeted notes that a server answered initialize.
func (e *eras) greeted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.legacy = yes
}

// doubt is what a server deserves that does not take initialize, and either did
// once, so that it was replaced and may speak modern since, or has never said that
// it does not speak modern.
func (e *eras) doubt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.legacy != yes && !e.unsure {
		return
	}
	e.legacy, e.unsure = unknown, false
	if e.modern == no {
		e.modern = unknown
	}
}

// snubbed notes that a server did not take initialize, and is modern or is not.
// It reports whether that is news.
func (e *eras) snubbed(modern bool) (news bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case modern:
		news = e.legacy != no
		e.legacy = no
	case e.modern == no && e.legacy != yes:
		if soon := time.Now().Add(doubted); soon.Before(e.until) {
			e.until = soon
		}
	}
	return news
}

// onlyModern reports whether the upstream refuses legacy and speaks modern.
func (e *eras) onlyModern() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.legacy == no && e.modern == yes
}

// both reports whether the upstream is known to speak both eras.
func (e *eras) both() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.legacy == yes && e.modern == yes
}

// known returns the eras that the upstream is known to speak.
func (e *eras) known() (all []mcp.Era) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.legacy == yes {
		all = append(all, mcp.Legacy)
	}
	if e.modern == yes {
		all = append(all, mcp.Modern)
	}
	return all
}
