package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A call that was cancelled or has timed out, or whose client has left, is over for its client
// and not for the server, which may go on. So it counts for its principal until the server
// answers it or ends, and for a while at most: most servers never answer it.

// abandoned are the requests of an upstream connection that still count for a principal, by
// their ids. It is guarded by session.mu.
type abandoned struct {
	uses  map[int64]*policy.Use
	sweep int // when there are so many, those that count no more are left out
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

// answered ends what counts for a request.
func (a *abandoned) answered(id int64) {
	a.uses[id].End()
	delete(a.uses, id)
}

// end ends what counts for all of them.
func (a *abandoned) end() {
	for _, use := range a.uses {
		use.End()
	}
	a.uses = nil
}

// takeUse takes what is counted for a call out of it, for who knows better when it ends.
func (s *session) takeUse(r *request) (use *policy.Use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use, r.use = r.use, nil
	return use
}

// giveUp cancels r, whose call was taken, at its upstream, with m. What is counted for it goes
// on if the upstream may work on it.
func (c *call) giveUp(use *policy.Use, m *jsonrpc.Message) {
	id, _ := c.ID.Answered()
	if use != nil { // before it is cancelled: the answer may be next
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

// answeredLate ends what counts for a request that nobody waits for.
func (u *upstreamConn) answeredLate(id jsonrpc.ID) {
	n, ok := id.Answered()
	if !ok || u.s.router.Policies == nil {
		return
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.abandoned.answered(n)
}

// abandon is what becomes of a count when nobody can tell when the call is over for those who
// work on it. A subscription and a handshake are no work.
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
