package peer

import (
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// ErrCancelled means that a call was not sent because it, or its request, had been cancelled.
var ErrCancelled = errors.New("cancelled")

// A Call is a request of this side.
type Call struct {
	// Static once it is sent.
	ID      jsonrpc.ID // minted; its text is also the progress token
	Method  string
	For     *Request   // the request that it serves; nil for a call of this side's own
	Related jsonrpc.ID // the other side's request that it belongs to; its cancellation repeats it
	Works   bool       // the other side may have questions before it answers; see [Request.Mark]
	Task    string     // the task that it is about; "" for none
	Owner   any        // its owner, if several share the Peer; see [Request.Mark]
	Value   any        // the owner's

	// Passes allows the goroutine that sends the response to handle it ([jsonrpc.Direct]) while there is
	// room for the answer to the request that the call serves. Then Passed is true, and Done must not
	// wait.
	Passes bool
	Passed bool // set before Done is called

	First bool          // it is not held back with its class
	Room  *jsonrpc.Room // in the queue; nil for the Peer's own

	// Done is called once, with the response or with the end of the Peer, but not if Cancel or Take
	// has taken the call. If it is nil, the answer is not wanted.
	Done func(answer *jsonrpc.Message, lost *Lost)

	// Progress is called with each progress notification of the call. at is the position of the
	// token in the params. If Progress is nil, [Options.Progress] is called, or else
	// [Options.Notified].
	Progress func(m *jsonrpc.Message, at jsonrpc.Span)

	p      *Peer
	n      int64
	joined bool // by Forward

	// Guarded by Peer.mu.
	over   bool // taken, or never to be sent
	heard  bool // taken by its response, and joined by Forward
	sent   bool // its write has begun
	marked bool // see Request.Mark
}

// NewCall returns a call, which Send sends.
func (p *Peer) NewCall(method string) *Call {
	c := &Call{}
	p.Mint(c, method)
	return c
}

// Mint makes the zero Call, as a part of what needs more fields, one that NewCall could have returned.
func (p *Peer) Mint(c *Call, method string) {
	c.n = p.minted.Add(1)
	c.ID, c.Method, c.p = jsonrpc.IntID(c.n), method, p
}

// Send enters the call into the table and queues m with the call's id and method. If it returns an
// error it has done neither, and does not call Done: [jsonrpc.ErrFull], [ErrCancelled], or the end
// of the Peer. m must belong to the call alone.
func (c *Call) Send(m *jsonrpc.Message) error {
	m.ID, m.Method = c.ID, c.Method
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.over {
		return ErrCancelled
	}
	err := p.calls.Add(c.n, c)
	if err != nil {
		return err
	}
	if err = p.putLocked(m, c, c.Room); err != nil {
		p.calls.Take(c.n, c)
	}
	return err
}

// Leave implements [jsonrpc.Leaving].
func (c *Call) Leave() bool {
	if c.over {
		return false
	}
	c.sent, c.p.lastSent = true, max(c.p.lastSent, c.n)
	if sent := c.p.o.Sent; sent != nil {
		sent(c)
	}
	return true
}

// Take takes the call, so that Done is not called, and reports whether it was still open.
func (c *Call) Take() bool {
	c.p.mu.Lock()
	taken := c.takeLocked()
	c.p.mu.Unlock()
	if taken {
		c.ends(nil, nil)
	}
	return taken
}

func (c *Call) takeLocked() bool {
	was := c.over
	c.over = true
	return c.p.calls.Take(c.n, c) && !was
}

// Recall takes the call if it was not sent yet, so that it never is, and reports whether it did.
func (c *Call) Recall() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return !c.sent && c.takeLocked()
}

// Open reports whether the call was neither answered nor taken.
func (c *Call) Open() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.p.calls.Has(c.n, c)
}

// Sent reports whether the write of the call has begun.
func (c *Call) Sent() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.sent
}

// Cancel takes the call, and sends a cancellation if the call was sent. It reports whether the call
// was still open. Done is not called.
func (c *Call) Cancel(reason string) bool { return c.cancel(mcp.Cancellation(c.ID, reason), false) }

// CancelWith is Cancel with the caller's own notification. The caller has taken the request that
// the call serves. If the response has already taken the call but has not found the request yet,
// the response will be dropped, and so the cancellation is sent nevertheless.
func (c *Call) CancelWith(m *jsonrpc.Message) bool { return c.cancel(m, true) }

// cancel is Cancel, or CancelWith if forRequest is set.
func (c *Call) cancel(m *jsonrpc.Message, forRequest bool) bool {
	c.p.mu.Lock()
	taken := c.takeLocked()
	if taken && c.sent || forRequest && c.heard {
		c.tellLocked(m)
	}
	c.p.mu.Unlock()
	if taken {
		c.ends(nil, nil)
	}
	return taken
}

// tellLocked sends the cancellation of a sent call.
func (c *Call) tellLocked(m *jsonrpc.Message) {
	if c.marked || c.Method == mcp.MethodInitialize { // which must not be cancelled
		return
	}
	m.Related = c.Related
	c.p.out.Force(jsonrpc.Queued{Message: m}) // their number is bounded by that of calls
}

// settle reports the end of a taken call to Options.Over and its Done.
func (c *Call) settle(answer *jsonrpc.Message, lost *Lost) {
	c.ends(answer, lost)
	if c.Done != nil {
		c.Done(answer, lost)
	}
}

// ends reports the end of a taken call to Options.Over.
func (c *Call) ends(answer *jsonrpc.Message, lost *Lost) {
	if over := c.p.o.Over; over != nil && c.sent { // sent does not change any more
		over(c, answer, lost)
	}
}

// answered handles a response.
func (p *Peer) answered(m *jsonrpc.Message) {
	if c := p.takeAnswered(m.ID); c != nil {
		c.settle(m, nil)
		return
	}
	if p.o.Dropped != nil { // it is late, a duplicate, or answers nothing
		p.o.Dropped(m)
	}
}

// takeAnswered takes the call that a response with that id answers; nil for none.
func (p *Peer) takeAnswered(id jsonrpc.ID) *Call {
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeAnsweredLocked(p.calls.Get(n))
}

// takeAnsweredLocked takes c, unless it is nil or cannot have been answered yet.
func (p *Peer) takeAnsweredLocked(c *Call) *Call {
	if c == nil || !c.sent || !c.takeLocked() {
		return nil
	}
	c.heard = c.joined
	return c
}

// takePassed is takeAnswered for a response whose sender may handle it.
func (p *Peer) takePassed(id jsonrpc.ID) *Call {
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.calls.Get(n)
	if c == nil || !c.Passes || c.For == nil || c.For.p.tight.Load() {
		return nil
	}
	return p.takeAnsweredLocked(c)
}

// Call returns the open call with that id; nil for none.
func (p *Peer) Call(id jsonrpc.ID) *Call {
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls.Get(n)
}

// Calls returns the open calls for which want returns true, oldest first. want is called with the
// lock held.
func (p *Peer) Calls(want func(c *Call) bool) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls.All(want)
}

// TakeCalls takes the open calls for which want returns true. want is called with the lock held.
// The caller must settle them.
func (p *Peer) TakeCalls(want func(c *Call) bool) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.calls.TakeIf(want)
	p.overLocked(taken, nil)
	return taken
}
