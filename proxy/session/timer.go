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
func (c *call) startTimerLocked() {
	if d := c.conn.up.RequestTimeout; d > 0 {
		c.timer = time.AfterFunc(d, func() { c.conn.s.expire(c) })
	}
}

// extendLocked starts the time anew: a request that makes progress is not late.
func (c *call) extendLocked() {
	if c.timer != nil {
		c.timer.Reset(c.conn.up.RequestTimeout)
	}
}

// causes returns the calls that a server request may be for: the one that it belongs to, or
// if it does not say, all that the upstream has.
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

// waitLocked makes the requests that a server request is asked for not late as long as it
// is open.
func (sr *serverRequest) waitLocked(askers []*call) {
	sr.causes = askers
	for _, c := range askers {
		c.openQuestions++
	}
}

// resumeTimers restarts their timers. A call that was answered meanwhile has none: expire
// finds nothing to settle.
func (s *session) resumeTimers(sr *serverRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range sr.causes {
		c.openQuestions--
		c.extendLocked()
	}
	sr.causes = nil
}

// expire settles the call of a request whose upstream took too long, and cancels
// it there. A timeout is not a close: the upstream stays.
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
