package session

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The requestTimeout of an upstream is how long a request may be without an answer
// and without progress. It does not run while the upstream waits for the client: as
// long as one of its server requests is open there that the request may be the reason of.

// startTimerLocked begins the upstream's requestTimeout, if it has one.
func (r *request) startTimerLocked() {
	if d := r.conn.up.RequestTimeout; d > 0 {
		r.timer = time.AfterFunc(d, func() { r.conn.s.expire(r) })
	}
}

// extendLocked starts the time anew: a request that makes progress is not late.
func (r *request) extendLocked() {
	if r.timer != nil {
		r.timer.Reset(r.conn.up.RequestTimeout)
	}
}

// askersLocked returns the requests that a server request may be asked for: the one that
// it belongs to, or if it does not say, all that the upstream has.
func (u *upstreamConn) askersLocked(related jsonrpc.ID) []*request {
	if u.up.RequestTimeout <= 0 {
		return nil
	}
	if !related.IsZero() {
		n, _ := related.Int()
		if r := u.pending[n]; r != nil {
			return []*request{r}
		}
		return nil
	}
	var all []*request
	for _, r := range u.pending {
		if r.sent && r.timer != nil {
			all = append(all, r)
		}
	}
	return all
}

// markAll notes that a server request which the requests may have asked gets the one error.
// That ends them; a cancellation besides would be one stimulus too many (hosts know
// which of the others wait for it, too).
func markAll(askers []*request) {
	for _, r := range askers {
		r.marked = true
	}
}

// waitLocked makes the requests that a server request is asked for not late as long as it
// is open.
func (sr *serverRequest) waitLocked() {
	for _, r := range sr.askers {
		r.asks++
	}
}

// goOnLocked starts their time anew. One that was answered meanwhile has none: expire
// finds nothing to settle.
func (sr *serverRequest) goOnLocked() {
	for _, r := range sr.askers {
		r.asks--
		r.extendLocked()
	}
}

// expire settles the call of a request whose upstream took too long, and cancels
// it there. A timeout is not a close: the upstream stays.
func (s *session) expire(r *request) {
	c := r.call
	s.mu.Lock()
	late := c.request == r && r.asks == 0
	s.mu.Unlock()
	if !late || !s.take(c) {
		return
	}
	if r.sent && !r.marked {
		r.conn.tell(mcp.Cancellation(r.id, "timeout"))
	}
	s.deliver(c, jsonrpc.NewError(c.id, jsonrpc.TimedOut(r.conn.up.Name)), s.out.wait)
}
