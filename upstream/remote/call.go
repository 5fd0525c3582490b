package remote

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A call is a request that has no answer yet. Whoever takes it out of
// session.calls answers it: its own goroutine, or on HTTP+SSE the one that reads
// the stream.
type call struct {
	// Static after construction.
	m      *jsonrpc.Message
	gate   <-chan struct{} // what it waits for before it is posted; nil: nothing
	ctx    context.Context
	cancel context.CancelCauseFunc
	reach  *reach
	taken  chan struct{} // closed by whoever takes the call out
	ended  chan struct{} // closed by run at its end

	release func() // gives its slot back; repeatable. Owned by run

	// Guarded by session.mu.
	state  callState // only moves forward
	peer   *peer     // that it was posted to
	stream bool      // the response has begun
}

type callState byte

const (
	queued callState = iota
	started
	cancelled // it gets no answer any more
)

// request begins a call.
func (s *session) request(m *jsonrpc.Message, gate <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return
	}
	if refusal := s.server.refusal(m.ID, s.calls[m.ID] != nil, len(s.calls)); refusal != nil {
		s.wg.Go(func() { s.put(received{m: refusal}) }) // for which Send must not wait
		return
	}
	c := &call{m: m, gate: gate, reach: newReach(s.counted(m)), taken: make(chan struct{}), ended: make(chan struct{}), release: func() {}}
	c.ctx, c.cancel = context.WithCancelCause(s.work)
	s.calls[m.ID] = c
	if m.Method == mcp.MethodInitialize {
		s.state.params = m.Params
	}
	s.wg.Go(func() { s.run(c) })
}

// counted returns what notes that m reached the server, nil for initialize: a
// server that saw only that has run nothing.
func (s *session) counted(m *jsonrpc.Message) *atomic.Bool {
	if m.Method == mcp.MethodInitialize {
		return nil
	}
	return &s.delivered
}

// run brings a call to its end.
func (s *session) run(c *call) {
	defer s.over(c)
	if !s.await(c) {
		return
	}
	defer c.release()
	if !s.start(c) {
		return
	}
	switch {
	case c.m.Method == mcp.MethodInitialize:
		s.initialize(c)
	case s.current().legacy:
		s.runLegacy(c)
	default:
		s.runStreamable(c)
	}
}

// await waits until the call may be posted. With true it has a slot.
func (s *session) await(c *call) bool {
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-c.ctx.Done():
			return false
		}
	}
	release, ok := s.server.acquire(c.ctx, c.m.Method)
	if ok {
		c.release = release
	}
	return ok
}

// start moves a call on that was not cancelled meanwhile.
func (s *session) start(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.state != queued || s.leaving && c.m.Method != mcp.MethodTasksCancel {
		return false
	}
	c.state = started
	return true
}

// over clears up behind a call.
func (s *session) over(c *call) {
	s.take(c)
	c.cancel(nil)
	c.reach.done()
	close(c.ended)
}

// take takes a call out. With true the caller is the one to answer it.
func (s *session) take(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.m.ID] != c {
		return false
	}
	delete(s.calls, c.m.ID)
	close(c.taken)
	return c.state != cancelled
}

// reply answers a call with what the server said.
func (s *session) reply(c *call, m *jsonrpc.Message) {
	if !s.take(c) {
		return
	}
	if m.Result != nil {
		s.keep(c.m)
	}
	s.put(received{m: m})
}

// failCall answers a call with an error, unless nobody wants it any more.
func (s *session) failCall(c *call, f *failure) {
	if errors.Is(context.Cause(c.ctx), errCancelled) || s.work.Err() != nil || !s.take(c) {
		return
	}
	s.note(c, f)
	m := f.answer(s.server.Name, c.m.ID)
	m.Related = c.m.ID
	s.put(received{m: m})
}

// note has the log hear of a failure, as of an event. That a session was lost it hears
// otherwise.
func (s *session) note(c *call, f *failure) {
	switch {
	case f.denied():
		s.server.tally.denied(f)
	case errors.Is(f.err, errSessionLost):
		s.server.tally.mention(c.m, f)
	default:
		s.server.tally.count(f)
	}
}

// runStreamable posts a call and answers it. A server that has forgotten the
// session did not run it: then it is posted once more, to a new one.
func (s *session) runStreamable(c *call) {
	p := s.current()
	x, reply, f := s.exchange(c, p)
	if f != nil && f.lost {
		x.close()
		if p, f = s.renew(c.ctx, p); f == nil && s.again(c) {
			x, reply, f = s.exchange(c, p)
		}
	}
	defer x.linger(c.cancel)
	if f != nil && f.said != nil {
		reply, f = f.said, nil
	}
	switch {
	case f != nil:
		s.failCall(c, f)
	case reply != nil:
		s.reply(c, reply)
	}
	c.release()
}

// again reports whether a call is still wanted.
func (s *session) again(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.state == started
}

// exchange posts a call to p and reads until its reply.
func (s *session) exchange(c *call, p *peer) (*exchange, *jsonrpc.Message, *failure) {
	s.mu.Lock()
	c.peer, c.stream = p, false
	s.mu.Unlock()
	x := &exchange{server: s.server, to: s, p: p, id: c.m.ID, related: c.m.ID, reach: c.reach, began: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.stream = true
	}}
	reply, f := x.run(c.ctx, c.m)
	return x, reply, f
}

// cancelled notes that a request is to be cancelled. It reports whether the
// server is to hear of it: not of one that it has not seen, nor of one that is
// answered, nor of initialize.
func (s *session) cancelled(m *jsonrpc.Message) (*call, bool) {
	text, err := jsonrpc.Member(m.Params, "requestId")
	if err != nil {
		return nil, false
	}
	id, _ := jsonrpc.ParseID(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	if c == nil || c.m.Method == mcp.MethodInitialize || c.state == cancelled {
		return nil, false
	}
	was := c.state
	c.state = cancelled
	if was == queued {
		c.cancel(errCancelled)
	}
	return c, was == started
}
