package session

import (
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A request that was cancelled or timed out, or whose client has left, is over for the client, but
// its server may still work on it. So it counts for its principal until the server answers it or
// ends, for a limited time: most servers never answer it.

// abandoned are the requests of an upstream connection that still count for a principal, by id.
type abandoned struct {
	mu    sync.Mutex // guards the fields below
	uses  map[int64]*policy.Use
	sweep int // at this many entries, those that no longer count are removed
}

func (a *abandoned) put(id int64, use *policy.Use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.uses) >= max(a.sweep, 64) {
		for id, use := range a.uses {
			if use.Over() {
				delete(a.uses, id)
			}
		}
		a.sweep = 2 * len(a.uses)
	}
	if a.uses == nil {
		a.uses = make(map[int64]*policy.Use)
	}
	a.uses[id] = use
}

// answered ends the count of a call.
func (a *abandoned) answered(id int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uses[id].End()
	delete(a.uses, id)
}

// end ends all counts.
func (a *abandoned) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, use := range a.uses {
		use.End()
	}
	a.uses = nil
}

// giveUp sends m, the cancellation of c, to its upstream. The caller has taken the request. The
// request keeps counting if the upstream may still work on it.
func (c *call) giveUp(use *policy.Use, m *jsonrpc.Message) {
	id, _ := c.ID.Answered()
	if use != nil { // before the cancellation, because the answer may come next
		c.conn.abandoned.put(id, use)
	}
	if open := c.CancelWith(m); open && c.Sent() {
		use.Abandon()
		return
	}
	c.conn.answeredLate(c.ID)
}

// answeredLate ends the count of an abandoned call.
func (u *upstreamConn) answeredLate(id jsonrpc.ID) {
	n, ok := id.Answered()
	if !ok || u.s.router.Policies == nil {
		return
	}
	u.abandoned.answered(n)
}

// abandon keeps a request counting for a while if upstreams may still work on it. Subscriptions and
// handshakes are no work.
func (s *session) abandon(r *request, use *policy.Use) {
	switch call := r.Forwarded(); {
	case r.Method == mcp.MethodListen, r.Method == mcp.MethodInitialize, r.Method == mcp.MethodDiscover:
		use.End()
	case r.works(), call != nil && call.Sent():
		use.Abandon()
	default:
		use.End()
	}
}
