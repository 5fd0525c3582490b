package peer

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// FadeFor is how long a marked call may take to end by itself. Then its cancellation is sent
	// nevertheless. A cancellation any earlier makes servers of the Python SDK (1.x) answer twice
	// and crash.
	FadeFor = 30 * time.Second

	// Lingering is how long the server may still mention a cancelled call, because its messages can
	// cross the cancellation.
	Lingering = time.Second
)

// Answers to requests of a server that no client receives or can answer.
var (
	ErrClientGone   = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientGone, jsonrpc.InFlight)
	ErrUnattributed = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cannot attribute server request"}
)

// Servers of the commonest SDK answer a request twice, and crash, if its handler is both woken by
// the error for its own question and cancelled. So each call gets one stimulus: when a request that
// a call possibly waits for gets the connection-closed error, the call is marked, and a marked call
// is not cancelled.

// waitsFor reports whether c possibly waits for the answer to r: c was sent before r came, may have
// questions, has the same owner, and nothing contradicts it.
func (c *Call) waitsFor(r *Request) bool { return c.Owner == r.Owner && c.asks(r) }

// asks is waitsFor, whatever the owners.
func (c *Call) asks(r *Request) bool {
	return c.sent && c.Works && c.n <= r.seq &&
		(!r.says || r.Of == c) && (r.Task == "" || r.Task == c.Task)
}

// MayAsk reports whether the call possibly waits for the answer to r, which has no owner.
func (c *Call) MayAsk(r *Request) bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.asks(r)
}

// MayWait reports whether the call possibly waits for the answer to r, and whether r says that it
// does.
func (c *Call) MayWait(r *Request) (may, sure bool) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.waitsFor(r), r.Of == c
}

// Mark marks the calls that possibly wait for the request. Its caller then answers the request with
// the connection-closed error.
func (r *Request) Mark() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.over.Load() {
		return
	}
	r.p.calls.Any(func(c *Call) bool { // always false: visit all calls, in any order
		c.marked = c.marked || c.waitsFor(r)
		return false
	})
}

// Refuse answers the request with the connection-closed error, and marks the calls that possibly
// wait for it. It returns false if the request was already cancelled or answered.
func (r *Request) Refuse(err *jsonrpc.Error) bool {
	r.Mark()
	return r.Fail(err)
}

// Forget drops the requests for which only c, which is being cancelled, possibly waits. The server
// gets the cancellation of c, and must not also get errors for the questions of c.
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

// awaitedLocked reports whether an open call other than but possibly waits for r.
func (p *Peer) awaitedLocked(r *Request, but *Call) bool {
	return p.calls.Any(func(c *Call) bool { return c != but && c.waitsFor(r) })
}

// Marked reports whether the call is open and was marked.
func (c *Call) Marked() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.marked && !c.over
}
