package remote

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxOpen bounds the requests in flight. Those beyond are answered with an error,
// since Send must not wait for a response.
const maxOpen = 4096

// answerTime is how long the server may take to answer a request that was cancelled, or
// that has to end because the session does.
const answerTime = 500 * time.Millisecond

// An httpCall is a request to a session of the legacy era that has no answer yet. Whoever
// takes it out of calls answers it: its own goroutine, or on HTTP+SSE the one that
// reads the stream.
type httpCall struct {
	// Static after construction.
	m      *jsonrpc.Message
	gate   <-chan struct{} // what it waits for before it is posted; nil: nothing
	ctx    context.Context
	cancel context.CancelCauseFunc
	reach  *reach
	taken  chan struct{} // closed by whoever takes the call out

	// Guarded by calls.mu.
	state callState // only moves forward
	at    *endpoint // where it was posted
	begun bool      // the response has begun
}

type callState byte

const (
	queued callState = iota
	started
	cancelled // it gets no answer any more
)

// last reports whether a call is still posted after Close.
func (c *httpCall) last() bool { return c.m.Method == mcp.MethodTasksCancel }

// httpCalls are the requests of a session that have no answer yet.
type httpCalls struct {
	mu      sync.Mutex // guards the fields below, and those of each call that say so
	open    jsonrpc.Table[jsonrpc.ID, *httpCall]
	leaving bool // the session ends
}

func newHTTPCalls() *httpCalls {
	return &httpCalls{open: jsonrpc.Table[jsonrpc.ID, *httpCall]{Max: maxOpen}}
}

// add enters a call.
func (cs *httpCalls) add(c *httpCall) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open.Add(c.m.ID, c)
}

// find returns the call that a response with that id answers, nil if there is none.
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

// take takes a call out. With true the caller is the one to answer it.
func (cs *httpCalls) take(c *httpCall) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.open.Take(c.m.ID, c) {
		return false
	}
	close(c.taken)
	return c.state != cancelled
}

// start notes that a call will be posted. It reports whether it still may be.
func (cs *httpCalls) start(c *httpCall) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.state != queued || cs.leaving && !c.last() {
		return false
	}
	c.state = started
	return true
}

// wanted reports whether a call that was started is still wanted.
func (cs *httpCalls) wanted(c *httpCall) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return c.state == started
}

// posted notes where a call is posted, and answered that the response has begun.
func (cs *httpCalls) posted(c *httpCall, at *endpoint) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.at, c.begun = at, false
}

func (cs *httpCalls) answered(c *httpCall) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.begun = true
}

// cancel notes that a request is cancelled. It returns the call if the server has to be
// told. It has not if it has not seen the request, or has answered it, or if that is
// initialize.
func (cs *httpCalls) cancel(id jsonrpc.ID) *httpCall {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.open.Get(id)
	if c == nil || c.m.Method == mcp.MethodInitialize || c.state == cancelled {
		return nil
	}
	sent := c.state == started && !c.reach.takeBack()
	c.state = cancelled
	if !sent {
		c.cancel(errCancelled)
		return nil
	}
	return c
}

// leave gives up the calls that were not posted. It returns the others, which have to
// be waited for.
func (cs *httpCalls) leave() (unfinished []*httpCall) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.leaving = true
	for _, c := range cs.open.Each {
		if c.state == queued && !c.last() {
			c.state = cancelled
			c.cancel(errCancelled)
			continue
		}
		unfinished = append(unfinished, c)
	}
	return unfinished
}

// lose gives up calls at an endpoint that the server has forgotten: all, or those whose
// response has begun. It reports whether there are others.
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

// awaitAnswers waits until the server has answered the calls, or hurry is closed. It
// waits answerTime at most, but for those that are only posted after Close.
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
			late.Reset(0) // of the others, too
		case <-hurry:
			return
		}
	}
}
