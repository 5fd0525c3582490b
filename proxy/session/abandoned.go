package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A request that was cancelled or timed out, or whose client has left, is over for the client, but
// its server may still work on it. So it counts for its principal until the server answers it or
// ends, for a limited time: most servers never answer it.

// abandoned are the requests of an upstream connection that still count for a principal, by id.
// session.mu guards it.
type abandoned struct {
	uses  map[int64]*policy.Use
	sweep int // at this many entries, those that no longer count are removed
}

func (a *abandoned) put(id int64, use *policy.Use) {
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
	a.uses[id].End()
	delete(a.uses, id)
}

// end ends all counts.
func (a *abandoned) end() {
	for _, use := range a.uses {
		use.End()
	}
	a.uses = nil
}

// takeUse takes the count out of a request; the caller ends it.
func (s *session) takeUse(r *request) (use *policy.Use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use, r.use = r.use, nil
	return use
}

// giveUp sends m, the cancellation of c, to its upstream. The caller has taken the request. The
// request keeps counting if the upstream may still work on it.
func (c *call) giveUp(use *policy.Use, m *jsonrpc.Message) {
	id, _ := c.ID.Answered()
	if use != nil { // before the cancellation, because the answer may come next
		c.conn.s.mu.Lock()
		c.conn.abandoned.put(id, use)
		c.conn.s.mu.Unlock()
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
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.abandoned.answered(n)
}

// abandon keeps a request counting for a while if upstreams may still work on it. Subscriptions and
// handshakes are no work.
func (s *session) abandon(r *request, use *policy.Use) {
	s.mu.Lock()
	asks := r.cancel != nil
	s.mu.Unlock()
	switch call := r.Forwarded(); {
	case r.Method == mcp.MethodListen, r.Method == mcp.MethodInitialize, r.Method == mcp.MethodDiscover:
		use.End()
	case asks, call != nil && call.Sent():
		use.Abandon()
	default:
		use.End()
	}
}
