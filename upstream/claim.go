package upstream

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// freeFailures start failures in a row cost no waiting: the first restart is
	// at once. A server that did start and then died gets more credit, since a
	// call of its client may be what it died of.
	freeFailures = 1
	freeDeaths   = 3

	// A claim with that many failures in a row is in a crash loop. Nothing
	// changes for it, but it is said.
	crashLoop = 5

	// stableAfter is how long a server must live to be forgiven.
	stableAfter = 10 * time.Second

	// remembered is how long a claim without a stream is kept: a client that has
	// left does not come back to its key.
	remembered = 5 * time.Minute
)

var errWaits = errors.New("waiting before the next start")

// claimID names a claim: what key has on an upstream in one era.
type claimID struct {
	upstream, key string
	era           mcp.Era
}

// A claim is what the host knows about one key's use of one upstream, apart from
// the streams that come and go: the failures in a row, and when the next start
// is allowed. Its fields are guarded by Host.mu.
type claim struct {
	id      claimID
	streams int         // attached
	current *stream     // the newest that has started a process; nil while streams is zero
	last    Status      // of current's process, when that is nil
	expire  *time.Timer // set while streams is zero

	failures int                  // starts that did not come to an answer
	deaths   int                  // servers that died young
	end      *jsonrpc.ClosedError // the last of either
	wait     backoff.ExponentialBackOff
	next     time.Time // no start before
}

// An outcome is what the end of a process means for its claim.
type outcome int

const (
	intended    outcome = iota // the stream was closed, or the host stops
	startFailed                // it ended before it answered anything
	died                       // it ended later
	tried                      // it does not speak this era, which nobody had promised
)

// attach counts a stream in and returns its claim. With an error, the end that the
// last server came to, the claim has to wait before its next start.
func (h *Host) attach(id claimID) (*claim, *jsonrpc.ClosedError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cl := h.claims[id]
	if cl == nil {
		cl = &claim{id: id, wait: backoff.ExponentialBackOff{
			InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
		}}
		if h.claims == nil {
			h.claims = make(map[claimID]*claim)
		}
		h.claims[id] = cl
	}
	if cl.expire != nil {
		cl.expire.Stop()
		cl.expire = nil
	}
	cl.streams++
	if time.Now().Before(cl.next) {
		wait := jsonrpc.EndOf(cl.end, "")
		wait.Delivered, wait.Err = false, errWaits
		return cl, wait
	}
	return cl, nil
}

// detach counts a stream out. A claim with nothing to remember is forgotten at
// once, any other after a while.
func (h *Host) detach(cl *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cl.streams--; cl.streams > 0 {
		return
	}
	if cl.inARow() == 0 {
		delete(h.claims, cl.id)
		return
	}
	cl.last, cl.current = cl.status(), nil // keep no stream alive
	cl.expire = time.AfterFunc(remembered, func() { h.forget(cl) })
}

func (h *Host) forget(cl *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cl.streams == 0 && h.claims[cl.id] == cl {
		delete(h.claims, cl.id)
	}
}

// ended counts the end of a server that lived for life. It returns the number of
// failures in a row.
func (h *Host) ended(cl *claim, how outcome, end *jsonrpc.ClosedError, life time.Duration) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if how == tried {
		return cl.inARow()
	}
	cl.end = end
	switch {
	case how == intended:
		cl.reset() // its client has left: nobody will use the claim again
	case how == died && life >= stableAfter:
		cl.reset()
	case how == died:
		cl.deaths++
	default:
		cl.failures++
	}
	if cl.failures > freeFailures || cl.deaths > freeDeaths {
		cl.next = time.Now().Add(cl.wait.NextBackOff())
	}
	return cl.inARow()
}

func (cl *claim) reset() {
	cl.failures, cl.deaths, cl.next = 0, 0, time.Time{}
	cl.wait.Reset()
}

func (cl *claim) inARow() int { return cl.failures + cl.deaths }
