package session

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The requestTimeout of an upstream bounds the time of a request without an answer and without
// progress. It is suspended while the client has an open server request that the request may have
// caused.

// startTimerLocked starts the upstream's requestTimeout, if it has one.
func (c *call) startTimerLocked() {
	if d := c.conn.up.RequestTimeout; d > 0 {
		c.timer = time.AfterFunc(d, func() { c.conn.s.expire(c) })
	}
}

// extendLocked restarts the timeout of a request that makes progress.
func (c *call) extendLocked() {
	if c.timer != nil {
		c.timer.Reset(c.conn.up.RequestTimeout)
	}
}

// causes returns the calls that may have caused a server request: the one to which it belongs, or
// if it does not say, all calls to the upstream.
func (u *upstreamConn) causes(in incoming) (all []*call) {
	if u.up.RequestTimeout <= 0 {
		return nil
	}
	if !in.m.Related.IsZero() {
		if c := callOf(in.of); c != nil {
			return []*call{c}
		}
		return nil
	}
	for _, pc := range in.a.peer.Calls(nil) {
		if c := callOf(pc); c != nil && c.request != nil && pc.Sent() {
			all = append(all, c)
		}
	}
	return all
}

// waitLocked suspends the timeouts of the calls that may have caused a server request.
func (sr *serverRequest) waitLocked(askers []*call) {
	sr.causes = askers
	for _, c := range askers {
		c.openQuestions++
	}
}

// resumeTimers restarts the timeouts. A call that was answered meanwhile has none: expire finds
// nothing to settle.
func (s *session) resumeTimers(sr *serverRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range sr.causes {
		c.openQuestions--
		c.extendLocked()
	}
	sr.causes = nil
}

// expire settles the request of a call whose upstream took too long, and cancels the call there. A
// timeout is not a close: the upstream stays.
func (s *session) expire(c *call) {
	r := c.request
	s.mu.Lock()
	late := r.sent == c && c.openQuestions == 0
	s.mu.Unlock()
	if !late || !s.take(r) {
		return
	}
	c.giveUp(s.takeUse(r), mcp.Cancellation(c.ID, "timeout"))
	s.deliver(r, jsonrpc.NewError(r.ID, jsonrpc.TimedOut(c.conn.up.Name)), r.AnswerWhenRoom)
}
