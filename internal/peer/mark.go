package peer

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// FadeFor is how long a call that is marked may take to end by itself. A cancellation
	// besides has servers of the Python SDK (1.x) answer twice and die; it is sent all the
	// same if the call has not ended then.
	FadeFor = 30 * time.Second

	// Lingering is how long the server may still speak of a call that was cancelled: it was
	// about to when the cancellation reached it.
	Lingering = time.Second
)

// Answers to requests of a server that no client gets or can answer.
var (
	ErrClientGone   = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientGone, jsonrpc.InFlight)
	ErrUnattributed = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cannot attribute server request"}
)

// Servers of the commonest SDK answer a request twice, and die, when its handler is woken by
// the error of its own question and cancelled besides. So each call gets one stimulus: a
// call is marked when a request that it possibly waits for gets the one error, and a call
// that is marked is not cancelled.

// waitsFor reports whether c possibly waits for the answer to r: it was sent before, works
// on something, is the same owner's, and nothing says otherwise.
func (c *Call) waitsFor(r *Request) bool {
	return c.sent && c.Works && c.Owner == r.Owner && c.n <= r.seq &&
		(!r.says || r.Of == c) && (r.Task == "" || r.Task == c.Task)
}

// MayWait reports whether the call possibly waits for the answer to r, and whether r says so.
func (c *Call) MayWait(r *Request) (may, sure bool) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.waitsFor(r), r.Of == c
}

// Mark marks the calls that possibly wait for the request, which is to be answered with
// the one connection-closed error.
func (r *Request) Mark() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.over.Load() {
		return
	}
	r.p.calls.Any(func(c *Call) bool { // none ends the search: all are looked at, in no order
		c.marked = c.marked || c.waitsFor(r)
		return false
	})
}

// Refuse answers the request with the one connection-closed error, and marks the calls that
// possibly wait for it. It reports false if the request was cancelled or answered before.
func (r *Request) Refuse(err *jsonrpc.Error) bool {
	r.Mark()
	return r.Fail(err)
}

// Forget takes out the requests for which c alone possibly waits, which is cancelled: who is
// told of its cancellation must not hear of the end of what it asked besides.
func (c *Call) Forget() {
	p := c.p
	p.mu.Lock()
	forgotten := p.requests.TakeIf(func(r *Request) bool { return c.waitsFor(r) && !p.awaitedLocked(r, c) })
	p.overLocked(nil, forgotten)
	p.owed += len(forgotten)
	p.mu.Unlock()
	for _, r := range forgotten {
		r.Answer(nil)
		if to := r.Forwarded(); to != nil {
			to.Take()
		}
	}
}

// awaitedLocked reports whether another open call than but possibly waits for r.
func (p *Peer) awaitedLocked(r *Request, but *Call) bool {
	return p.calls.Any(func(c *Call) bool { return c != but && c.waitsFor(r) })
}

// Marked reports whether the call is open and was marked.
func (c *Call) Marked() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.marked && !c.over
}
