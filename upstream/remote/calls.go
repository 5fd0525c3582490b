package remote

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxOpen bounds the calls in flight. Further calls are answered with an error, since Send
// must not wait for a response.
const maxOpen = 4096

// answerTime is how long the server may take to answer a call that was cancelled, or that
// is in flight when the session ends.
const answerTime = 500 * time.Millisecond

// An httpCall is an unanswered call in a session of the legacy era. Its own goroutine, or
// on HTTP+SSE the one that reads the stream, takes it out of httpCalls and answers it.
type httpCall struct {
	// Static after construction.
	m      *jsonrpc.Message
	gate   <-chan struct{} // closed when it may be posted; nil: at once
	ctx    context.Context
	cancel context.CancelCauseFunc
	reach  *reach
	taken  chan struct{} // closed by take

	accepted chan struct{} // closed when the server has begun to answer its POST, for the first time

	// Guarded by calls.mu.
	started   bool      // it is being posted, or was
	cancelled bool      // it is not answered
	at        *endpoint // where it was posted
	begun     bool      // the response has begun
}

// last reports whether a call is posted even after Close.
func (c *httpCall) last() bool { return c.m.Method == mcp.MethodTasksCancel }

// httpCalls are the unanswered calls of a session.
type httpCalls struct {
	mu      sync.Mutex // guards the fields below, and some of each call
	open    jsonrpc.Table[jsonrpc.ID, *httpCall]
	leaving bool // the session ends
}

// add enters a call.
func (cs *httpCalls) add(c *httpCall) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open.Add(c.m.ID, c)
}

// find returns the call that a response with this id answers, nil if there is none.
func (cs *httpCalls) find(id jsonrpc.ID) *httpCall {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.open.Get(id); c != nil {
		return c
	}
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	return cs.open.Get(jsonrpc.IntID(n))
}

// take takes a call out. If it returns true, the caller must answer the call.
func (cs *httpCalls) take(c *httpCall) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.open.Take(c.m.ID, c) {
		return false
	}
	close(c.taken)
	return !c.cancelled
}

// start marks a call as started. It returns false if the call must not be posted any more.
func (cs *httpCalls) start(c *httpCall) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.started = !c.cancelled && (!cs.leaving || c.last())
	return c.started
}

// wanted reports whether a started call was not cancelled.
func (cs *httpCalls) wanted(c *httpCall) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return !c.cancelled
}

// posted records where a call is posted.
func (cs *httpCalls) posted(c *httpCall, at *endpoint) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.at, c.begun = at, false
}

// answered records that the response to a call has begun.
func (cs *httpCalls) answered(c *httpCall) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.begun = true
	cs.acceptLocked(c)
}

// accept records that the server has taken a call, whose response comes on another stream.
func (cs *httpCalls) accept(c *httpCall) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.acceptLocked(c)
}

func (cs *httpCalls) acceptLocked(c *httpCall) {
	select {
	case <-c.accepted:
	default:
		close(c.accepted)
	}
}

// cancel cancels the call with this id. It returns the call if the cancellation must be
// posted: not if the server has not seen the call or has answered it, nor for initialize.
func (cs *httpCalls) cancel(id jsonrpc.ID) *httpCall {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open.Get(id)
	if c == nil || c.m.Method == mcp.MethodInitialize || c.cancelled {
		return nil
	}
	sent := c.started && !c.reach.takeBack()
	c.cancelled = true
	if !sent {
		c.cancel(errCancelled)
		return nil
	}
	return c
}

// leave gives up the calls that were not posted, and returns the others.
func (cs *httpCalls) leave() (unfinished []*httpCall) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.leaving = true
	for _, c := range cs.open.Each {
		if !c.started && !c.cancelled && !c.last() {
			c.cancelled = true
			c.cancel(errCancelled)
			continue
		}
		unfinished = append(unfinished, c)
	}
	return unfinished
}

// lose fails the calls at an endpoint that the server has forgotten: all of them, or only
// those whose response has begun. silent reports whether any are left.
func (cs *httpCalls) lose(at *endpoint, all bool) (silent bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open.Each {
		switch {
		case c.at != at:
		case all || c.begun:
			c.cancel(errSessionLost)
		default:
			silent = true
		}
	}
	return silent
}

// awaitAnswers waits until the server has answered the calls, or hurry is closed. It waits
// no longer than answerTime, except for calls that are posted after Close.
func awaitAnswers(calls []*httpCall, hurry <-chan struct{}) {
	late := time.NewTimer(answerTime)
	defer late.Stop()
	for _, c := range calls {
		end := late.C
		if c.last() {
			end = nil
		}
		select {
		case <-c.taken:
		case <-end:
			late.Reset(0) // the same timer serves the other calls
		case <-hurry:
			return
		}
	}
}
