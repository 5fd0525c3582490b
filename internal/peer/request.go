package peer

import (
	"errors"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Request is a request of the other side.
type Request struct {
	// Static.
	ID     jsonrpc.ID // the other side's
	Method string
	Of     *Call // of this side, that the request surely belongs to; nil if it does not say

	// Message is the request as it came. Its handler may forget it, so that its bytes are
	// not kept until the answer.
	Message *jsonrpc.Message

	Task  string // that it belongs to; "" if it does not say. Set by Assign
	Owner any    // whose it is, as of a Call. Set by Assign
	Value any    // the owner's

	p     *Peer
	array *array        // that the answer goes into; nil for none
	says  bool          // which call it belongs to
	room  *jsonrpc.Room // of the answer in the queue; nil for the Peer's own
	seq   int64         // id of the newest call that had been sent when it came

	over atomic.Bool // taken; changed with Peer.mu held

	// Guarded by Peer.mu.
	onCancel func(m *jsonrpc.Message, at jsonrpc.Span)
	call     *Call // that it is forwarded as
}

// An array collects the answers to the requests of one array.
type array struct {
	missing int // guarded by Peer.mu
	answers []*jsonrpc.Message
}

// ErrDraining is why a request is not entered while the Peer drains.
var ErrDraining = errors.New("draining")

var errInUse = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the id is in use by a request in flight"}

// requested enters a request, or refuses it.
func (p *Peer) requested(m *jsonrpc.Message, a *array) {
	r := &Request{ID: m.ID, Method: m.Method, Message: m, p: p, array: a}
	if p.o.Begin != nil {
		p.o.Begin(r)
	}
	if err := p.enter(r); err != nil {
		p.refuse(r, err)
		return
	}
	p.o.Request(r)
}

func (p *Peer) enter(r *Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Of, r.says, r.seq = p.relatedLocked(r.Message), !r.Message.Related.IsZero(), p.lastSent
	if p.drain != nil && p.requests.Get(r.ID) == nil && p.requests.Closed() == nil {
		return ErrDraining
	}
	return p.requests.Add(r.ID, r)
}

// refuse answers a request that was not entered. The answer to one whose id is in use has
// none: it would settle the first one at the other side.
func (p *Peer) refuse(r *Request, why error) {
	var answer *jsonrpc.Message
	switch why {
	case jsonrpc.ErrInUse:
		answer = jsonrpc.NewError(jsonrpc.ID{}, errInUse)
	case jsonrpc.ErrFull:
		answer = jsonrpc.NewError(r.ID, jsonrpc.Overloaded(p.o.Name))
	case ErrDraining:
		answer = jsonrpc.NewError(r.ID, jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.Cause{}, jsonrpc.NotSent))
	default: // the other side is gone
		if p.o.Refuse != nil {
			p.o.Refuse(r, why, nil)
		}
		return
	}
	if p.o.Refuse != nil {
		answer = p.o.Refuse(r, why, answer)
	}
	p.mu.Lock()
	full := r.leaveLocked(answer)
	p.mu.Unlock()
	if full != nil {
		p.o.Full(full)
	}
}

// relatedLocked returns the call that a message belongs to; nil if it does not say, or the
// call is over.
func (p *Peer) relatedLocked(m *jsonrpc.Message) *Call {
	if m.Related.IsZero() {
		return nil
	}
	n, _ := m.Related.Answered()
	return p.calls.Get(n)
}

// Assign says whose the request is, as Owner of a Call does, to which task it belongs, and
// which room its answer takes.
func (r *Request) Assign(owner any, task string, room *jsonrpc.Room) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.Owner, r.Task, r.room = owner, task, room
}

// Take takes the request out and reports whether it was there: whoever takes it owes it an
// Answer.
func (r *Request) Take() bool {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.takeLocked()
}

func (r *Request) takeLocked() bool {
	if !r.p.requests.Take(r.ID, r) {
		return false
	}
	r.over.Store(true)
	r.p.owed++
	return true
}

// Answer answers a request that was taken, with the result or error that m holds. m must be
// nobody else's; nil answers nothing.
func (r *Request) Answer(m *jsonrpc.Message) {
	p := r.p
	p.mu.Lock()
	full := r.answerLocked(m)
	p.mu.Unlock()
	if full != nil {
		p.o.Full(full)
	}
}

// AnswerWhenRoom is Answer that waits for room.
func (r *Request) AnswerWhenRoom(m *jsonrpc.Message) {
	p := r.p
	p.mu.Lock()
	_ = p.out.Wait(&p.o.Room, 1)
	full := r.answerLocked(m)
	p.mu.Unlock()
	if full != nil {
		p.o.Full(full)
	}
}

func (r *Request) answerLocked(m *jsonrpc.Message) (full *jsonrpc.Message) {
	if m != nil {
		m.ID = r.ID
	}
	full = r.leaveLocked(m)
	r.p.owed--
	r.p.drainedLocked()
	return full
}

// leaveLocked sends the answer of a request, nil for none, in its array if it came in one.
// An empty array is never sent. It returns what found no room.
func (r *Request) leaveLocked(answer *jsonrpc.Message) (full *jsonrpc.Message) {
	if a := r.array; a != nil {
		if answer != nil {
			a.answers = append(a.answers, answer)
		}
		if a.missing--; a.missing > 0 || len(a.answers) == 0 {
			return nil
		}
		answer = &jsonrpc.Message{Batch: a.answers}
	}
	if answer != nil && r.p.putLocked(answer, nil, r.room) == jsonrpc.ErrFull {
		return answer
	}
	return nil
}

// Respond answers the request, unless it was cancelled or answered before: then it reports
// false. m must be nobody else's.
func (r *Request) Respond(m *jsonrpc.Message) bool {
	p := r.p
	p.mu.Lock()
	if !r.takeLocked() {
		p.mu.Unlock()
		return false
	}
	full := r.answerLocked(m)
	p.mu.Unlock()
	if full != nil {
		p.o.Full(full)
	}
	return true
}

// Fail is Respond with an error of this side.
func (r *Request) Fail(err *jsonrpc.Error) bool { return r.Respond(&jsonrpc.Message{Error: err.Raw()}) }

// Open reports whether the request was neither answered nor cancelled.
func (r *Request) Open() bool { return !r.over.Load() }

// InArray reports whether the request came in an array.
func (r *Request) InArray() bool { return r.array != nil }

// OnCancel has fn called when the other side cancels the request, with its notification and
// where the id stands in its params, and when the Peer ends, with nil. It reports whether
// the request is still open: if not, fn is not called.
func (r *Request) OnCancel(fn func(m *jsonrpc.Message, at jsonrpc.Span)) bool {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if !r.over.Load() { // else who took it may be about to look
		r.onCancel = fn
	}
	return !r.over.Load()
}

// cancelled tells who works on a request that was taken that nobody waits for the answer. m
// is nil at the end of the Peer.
func (r *Request) cancelled(m *jsonrpc.Message, at jsonrpc.Span) {
	r.p.mu.Lock()
	onCancel, c := r.onCancel, r.call
	r.p.mu.Unlock()
	switch {
	case onCancel != nil:
		onCancel(m, at)
	case r.p.o.Cancelled != nil:
		r.p.o.Cancelled(r, m, at)
	case c == nil:
	case m == nil:
		c.Cancel("disconnected")
	default:
		c.CancelWith(&jsonrpc.Message{Method: m.Method, Extra: m.Extra,
			Params: jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})})
	}
}

// Forward sends the request on as a call of another Peer, whose message is m: the
// cancellation of the request cancels the call, and the answer to the call answers the
// request, unless c.Done does something else about it. It returns an error as [Call.Send]
// does; then the request is as it was. A request may be forwarded again when its call is
// over.
func (r *Request) Forward(c *Call, m *jsonrpc.Message) error {
	c.For, c.joined = r, true
	if c.Done == nil {
		c.Done = c.answerRequest
	}
	r.p.mu.Lock()
	over := r.over.Load()
	r.call = c
	r.p.mu.Unlock()
	if over { // else whoever takes it from here on sees c, and a call that it cancels is not sent
		return ErrCancelled
	}
	return c.Send(m)
}

// answerRequest answers the request of a call as the call was.
func (c *Call) answerRequest(answer *jsonrpc.Message, lost *Lost) {
	if lost != nil {
		c.For.Fail(lost.Wire(jsonrpc.CodeInternalError, c.p.o.Name))
		return
	}
	c.For.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
}

// RespondIfRoom is Respond from here to a server, unless that asks so much and reads so little
// that there is no room.
func (r *Request) RespondIfRoom(m *jsonrpc.Message) {
	if r.p.Roomy(1) {
		r.Respond(m)
	} else if r.Take() {
		r.Answer(nil)
	}
}

// Forwarded returns the call that the request was forwarded as last; nil for none.
func (r *Request) Forwarded() *Call {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.call
}

// Request returns the open request of that id; nil for none.
func (p *Peer) Request(id jsonrpc.ID) *Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests.Get(id)
}

// Requests returns the open requests for which want reports true, which is called with the
// lock held; the oldest is first.
func (p *Peer) Requests(want func(r *Request) bool) []*Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests.All(want)
}

// TakeRequests takes out the open requests for which want reports true, which is called
// with the lock held. The caller owes each an Answer.
func (p *Peer) TakeRequests(want func(r *Request) bool) []*Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.requests.TakeIf(want)
	p.overLocked(nil, taken)
	p.owed += len(taken)
	return taken
}
