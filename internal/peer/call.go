package peer

import (
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// ErrCancelled is why a call is not sent that was cancelled before, or whose request was.
var ErrCancelled = errors.New("cancelled")

// A Call is a request of this side.
type Call struct {
	// Static once it is sent.
	ID      jsonrpc.ID // minted; its text is the progress token, too
	Method  string
	For     *Request   // that it is made for; nil for a call of this side's own
	Related jsonrpc.ID // the other side's request that it belongs to; for its cancellation
	Works   bool       // the other side may have to ask something before it answers; see [Request.Mark]
	Task    string     // that it is about; "" for none
	Owner   any        // whose it is, where several have calls at one Peer; see [Request.Mark]
	Value   any        // the owner's

	First bool          // it is sent though what is of its class is held
	Room  *jsonrpc.Room // in the queue; nil for the Peer's own

	// Done is called once, unless Cancel or Take has taken the call: with the response, or
	// with the end of the Peer. If it is nil nobody waits.
	Done func(answer *jsonrpc.Message, lost *Lost)

	// Progress is called with each progress notification of the call; at is where its
	// token stands in the params. If it is nil [Options.Notified] is.
	Progress func(m *jsonrpc.Message, at jsonrpc.Span)

	p      *Peer
	n      int64
	joined bool // by Forward

	// Guarded by Peer.mu.
	over   bool // taken, or never to be sent
	heard  bool // taken by the response, and joined by Forward
	sent   bool // its write has begun
	marked bool // see Request.Mark
}

// NewCall returns a call that is to be sent.
func (p *Peer) NewCall(method string) *Call {
	n := p.minted.Add(1)
	return &Call{ID: jsonrpc.IntID(n), Method: method, p: p, n: n}
}

// Send enters the call into the table, and m into the queue under its id and method. If it
// returns an error, it has not, and nobody is told: [jsonrpc.ErrFull], [ErrCancelled], or
// the end of the Peer. m must be nobody else's.
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
	if w := c.p.o.Watch; w != nil {
		w.Sent(c)
	}
	return true
}

// Take takes the call out, so that Done is not called, and reports whether it was there.
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

// Recall takes the call out if it was not sent, so that it never is, and reports whether
// it has.
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

// Cancel takes the call out, and tells the other side if it was sent there. It reports
// whether the call was still open; then Done is not called.
func (c *Call) Cancel(reason string) bool { return c.cancel(mcp.Cancellation(c.ID, reason), false) }

// CancelWith is Cancel with a notification of the caller's, who has taken the request that
// the call is made for. If its response has come and has not found that request yet, it will
// be nobody's: the other side hears of the cancellation all the same.
func (c *Call) CancelWith(m *jsonrpc.Message) bool { return c.cancel(m, true) }

// cancel is Cancel, or CancelWith if the caller has taken the request.
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

// tellLocked cancels a call that was sent, at the other side.
func (c *Call) tellLocked(m *jsonrpc.Message) {
	if c.marked || c.Method == mcp.MethodInitialize { // which must not be cancelled
		return
	}
	m.Related = c.Related
	c.p.out.Force(jsonrpc.Queued{Message: m}) // there are no more of them than calls
}

// settle tells who waits for a call that was taken.
func (c *Call) settle(answer *jsonrpc.Message, lost *Lost) {
	c.ends(answer, lost)
	if c.Done != nil {
		c.Done(answer, lost)
	}
}

// ends tells who watches that a call is over which was taken.
func (c *Call) ends(answer *jsonrpc.Message, lost *Lost) {
	if w := c.p.o.Watch; w != nil && c.sent { // nobody changes that any more
		w.Over(c, answer, lost)
	}
}

// answered handles a response.
func (p *Peer) answered(m *jsonrpc.Message) {
	if c := p.takeAnswered(m.ID); c != nil {
		c.settle(m, nil)
		return
	}
	if p.o.Dropped != nil { // it is late, a duplicate, or answers nothing
		p.o.Dropped("late answer", m)
	}
}

// takeAnswered takes the call out that a response of that id answers; nil for none.
func (p *Peer) takeAnswered(id jsonrpc.ID) *Call {
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.calls.Get(n)
	if c == nil || !c.sent || !c.takeLocked() {
		return nil
	}
	c.heard = c.joined
	return c
}

// Call returns the open call that the other side knows by that id; nil for none.
func (p *Peer) Call(id jsonrpc.ID) *Call {
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls.Get(n)
}

// Calls returns the open calls for which want reports true, which is called with the lock
// held; the oldest is first.
func (p *Peer) Calls(want func(c *Call) bool) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls.All(want)
}

// TakeCalls takes out the open calls for which want reports true, which is called with the
// lock held. They are the caller's to settle.
func (p *Peer) TakeCalls(want func(c *Call) bool) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.calls.TakeIf(want)
	p.overLocked(taken, nil)
	return taken
}
