package session

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// take takes a request and reports whether it was open. Whoever takes it settles it. Once the
// session's ctx has ended, only end takes requests, because errors that this end caused are no
// answers.
func (s *session) take(r *request) bool { return s.ctx.Err() == nil && r.Take() }

// settle answers r, unless it was already taken. It waits for room, which slows the stream of the
// answer.
func (s *session) settle(r *request, answer *jsonrpc.Message) {
	if !s.take(r) {
		s.drop("late answer", answer)
		return
	}
	s.deliver(r, answer, r.AnswerWhenRoom)
}

// settleNow is settle without waiting for room.
func (s *session) settleNow(r *request, answer *jsonrpc.Message) {
	if s.take(r) {
		s.deliver(r, answer, r.Answer)
	}
}

// fail settles r with an error of the proxy, without waiting.
func (s *session) fail(r *request, err *jsonrpc.Error) {
	s.settleNow(r, jsonrpc.NewError(r.ID, err))
}

// deliver ends the work on a taken request, and passes the answer to put. All requests end here.
func (s *session) deliver(r *request, answer *jsonrpc.Message, put func(*jsonrpc.Message)) {
	if after := r.stop(); after != nil {
		after(answer)
	}
	s.release(r) // afterwards, because after has counted what it keeps
	s.observeAnswer(r, answer)
	put(answer)
}

// stop ends the goroutine and the timer of a taken request, and returns the function to call with
// the answer.
func (r *request) stop() (after func(answer *jsonrpc.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.use.End()
	if r.cancel != nil {
		r.cancel()
	}
	if r.sent != nil {
		r.sent.timeout.stop()
	}
	return r.after
}

// whenAnswered sets the function to call with the answer to the request before the client gets it.
func (r *request) whenAnswered(fn func(answer *jsonrpc.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.after = fn
}

// work runs fn in a goroutine, for a request that needs more than one call. fn must settle the
// request. Its ctx ends when the request is cancelled or the session ends. If the request is
// already over, work returns false and does not run fn.
func (s *session) work(r *request, fn func(ctx context.Context)) bool {
	ctx, cancel := context.WithCancel(r.in(s.ctx))
	r.mu.Lock()
	r.cancel = cancel
	r.mu.Unlock()
	if !r.Open() {
		cancel()
		return false
	}
	s.wg.Go(func() {
		defer cancel()
		fn(ctx)
	})
	return true
}

// keep counts bytes of a request that are kept until its answer. It returns false if there is no
// room for them.
func (s *session) keep(r *request, bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	more := bytes - r.kept
	if more <= 0 || !r.Open() { // release has been called, or will not free more
		return true
	}
	if s.kept.Add(int64(more)) > maxKept {
		s.kept.Add(-int64(more))
		return false
	}
	r.kept = bytes
	return true
}

// release undoes keep.
func (s *session) release(r *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.kept.Add(-int64(r.kept))
	r.kept = 0
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

// abandon keeps a request counting for a while if upstreams may still work on it. Subscriptions and
// handshakes are no work.
func (r *request) abandon(use *policy.Use) {
	switch call := r.Forwarded(); {
	case r.Method == mcp.MethodListen, r.Method == mcp.MethodInitialize, r.Method == mcp.MethodDiscover:
		use.End()
	case r.works(), call != nil && call.Sent():
		use.Abandon()
	default:
		use.End()
	}
}
