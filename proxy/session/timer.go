package session

import (
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The requestTimeout of an upstream bounds the time of a request without an answer and without
// progress. It is suspended while the client has an open server request that the request may have
// caused.

// A timeout is that of one call. It is suspended while a server request is open that the call may
// have caused.
type timeout struct {
	mu        sync.Mutex // guards the fields below; only the client's Peer is locked under it
	timer     *time.Timer
	questions int  // open server requests
	extended  bool // there was progress
}

// start starts the timeout of a call to an upstream with one.
func (t *timeout) start(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := c.conn.up.RequestTimeout; d > 0 {
		t.timer = time.AfterFunc(d, func() { c.conn.s.expire(c) })
	}
}

// extend restarts the timeout of a call that makes progress.
func (t *timeout) extend(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.extended = true
	if t.timer != nil {
		t.timer.Reset(d)
	}
}

func (t *timeout) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
}

// suspend notes n more open server requests.
func (t *timeout) suspend(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.questions += n
}

func (t *timeout) isSuspended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.questions > 0
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

// suspendTimers suspends the timeouts of the calls that may have caused a server request.
func (sr *serverRequest) suspendTimers(askers []*call) {
	sr.causes.Store(&askers)
	for _, c := range askers {
		c.timeout.suspend(1)
	}
}

// resumeTimers restarts the timeouts. A call that was answered meanwhile has none: expire finds
// nothing to settle.
func (sr *serverRequest) resumeTimers() {
	askers := sr.causes.Swap(nil)
	if askers == nil {
		return
	}
	for _, c := range *askers {
		c.timeout.suspend(-1)
		c.timeout.extend(c.conn.up.RequestTimeout)
	}
}

// expire settles the request of a call whose upstream took too long, and cancels the call there. A
// timeout is not a close: the upstream stays.
func (s *session) expire(c *call) {
	r := c.request
	if r.call() != c || c.timeout.isSuspended() || !s.take(r) {
		return
	}
	c.giveUp(r.takeUse(), mcp.Cancellation(c.ID, "timeout"))
	s.deliver(r, jsonrpc.NewError(r.ID, jsonrpc.TimedOut(c.conn.up.Name)), r.AnswerWhenRoom)
}

// startPatience is how long the start of an upstream may take before a client that waits for it is
// told.
const startPatience = time.Second

// tellStart tells a client that asked for progress that its call waits for the start of the
// upstream, unless the call is over. The progress is -1, because it must increase with each
// notification, and that of the server may begin with 0. No version of the protocol has a minimum.
func (c *call) tellStart(a *attempt) {
	u := c.conn
	starting := u.s.router.Starting // in the modern era, which has no initialize, the session does not know
	known := starting != nil && starting(u.up.Name)
	u.mu.Lock()
	cold := !a.heard && (!a.ready || known)
	u.mu.Unlock()
	if !cold {
		return
	}
	c.timeout.mu.Lock()
	defer c.timeout.mu.Unlock() // so that progress of the server comes later
	if !c.timeout.extended {
		c.request.Tell(jsonrpc.NewNotification(mcp.MethodProgress, jsonrpc.Set(nil,
			jsonrpc.Value{Key: "progressToken", Text: c.token}, jsonrpc.Value{Key: "progress", Text: []byte("-1")},
			jsonrpc.Value{Key: "message", Text: jsonrpc.Quote("starting " + u.up.Name)})))
	}
}
