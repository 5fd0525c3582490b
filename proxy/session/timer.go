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

// askers returns the requests that a server request may be asked for: the one that
// it belongs to, or if it does not say, all that the upstream has.
func (u *upstreamConn) askers(in incoming) (all []*request) {
	if u.up.RequestTimeout <= 0 {
		return nil
	}
	if !in.m.Related.IsZero() {
		if r := requestOf(in.of); r != nil {
			return []*request{r}
		}
		return nil
	}
	for _, c := range in.a.peer.Calls(nil) {
		if r := requestOf(c); r != nil && r.call != nil && c.Sent() {
			all = append(all, r)
		}
	}
	return all
}

// waitLocked makes the requests that a server request is asked for not late as long as it
// is open.
func (sr *serverRequest) waitLocked(askers []*request) {
	sr.askers = askers
	for _, r := range askers {
		r.asks++
	}
}

// goOn starts their time anew. One that was answered meanwhile has none: expire
// finds nothing to settle.
func (s *session) goOn(sr *serverRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range sr.askers {
		r.asks--
		r.extendLocked()
	}
	sr.askers = nil
}

// expire settles the call of a request whose upstream took too long, and cancels
// it there. A timeout is not a close: the upstream stays.
func (s *session) expire(r *request) {
	c := r.call
	s.mu.Lock()
	late := c.sent == r && r.asks == 0
	s.mu.Unlock()
	if !late || !s.take(c) {
		return
	}
	r.giveUp(s.takeUse(c), mcp.Cancellation(r.ID, "timeout"))
	s.deliver(c, jsonrpc.NewError(c.ID, jsonrpc.TimedOut(r.conn.up.Name)), c.AnswerWhenRoom)
}
