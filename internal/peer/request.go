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
	Of     *Call // the call of this side that the request belongs to; nil if it does not say

	// Message is the request as it came. Its handler may set it to nil, so that its bytes are not
	// kept until the answer.
	Message *jsonrpc.Message

	Task  string // the task that it belongs to; "" if it does not say. Set by Assign
	Owner any    // its owner, like that of a Call. Set by Assign
	Value any    // the owner's

	p     *Peer
	array *array        // that the answer goes into; nil for none
	says  bool          // it says which call it belongs to
	room  *jsonrpc.Room // of the answer in the queue; nil for the Peer's own
	seq   int64         // id of the newest call that had been sent when it came

	over atomic.Bool // taken; changed with Peer.mu held

	// Guarded by Peer.mu.
	onCancel func(m *jsonrpc.Message, at jsonrpc.Span)
	call     *Call // as which it is forwarded
}

// An array collects the answers to the requests of one array, and to its unusable elements.
type array struct {
	missing int // guarded by Peer.mu
	answers []*jsonrpc.Message
}

func newArray(elements []*jsonrpc.Message) *array {
	a := new(array)
	for _, e := range elements {
		if e.IsRequest() || e.Unusable != nil {
			a.missing++
		}
	}
	return a
}

// ErrDraining means that a request is refused because the Peer drains.
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

// refuse answers a request that was not entered. If its id is in use, the answer has no id, because
// it would settle the first request at the other side.
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
	full := p.answersLocked(answer, r.array, r.room)
	p.mu.Unlock()
	p.tellFull(full)
}

// relatedLocked returns the call that a message belongs to; nil if it does not say, or the call is
// over.
func (p *Peer) relatedLocked(m *jsonrpc.Message) *Call {
	if m.Related.IsZero() {
		return nil
	}
	n, _ := m.Related.Answered()
	return p.calls.Get(n)
}

// Assign sets the owner of the request, the task that it belongs to, and the room that its answer
// takes.
func (r *Request) Assign(owner any, task string, room *jsonrpc.Room) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.Owner, r.Task, r.room = owner, task, room
}

// Take takes the request and reports whether it was still open. Whoever takes it must Answer it.
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

// Answer answers a taken request with the result or error in m. m must belong to the request alone.
// nil sends no answer.
func (r *Request) Answer(m *jsonrpc.Message) {
	p := r.p
	p.mu.Lock()
	full := r.answerLocked(m)
	p.mu.Unlock()
	p.tellFull(full)
}

// AnswerWhenRoom is Answer, but waits for room.
func (r *Request) AnswerWhenRoom(m *jsonrpc.Message) {
	p := r.p
	p.mu.Lock()
	_ = p.out.Wait(&p.o.Room, 1)
	p.tight.Store(!p.out.Roomy(&p.o.Room, 1))
	full := r.answerLocked(m)
	p.mu.Unlock()
	p.tellFull(full)
}

func (r *Request) answerLocked(m *jsonrpc.Message) (full *jsonrpc.Message) {
	if m != nil {
		m.ID = r.ID
	}
	full = r.p.answersLocked(m, r.array, r.room)
	r.p.owed--
	r.p.drainedLocked()
	return full
}

// answersLocked sends an answer, unless it is nil, in the array a if what it answers came in one. An
// empty array is never sent. It returns a message that found no room.
func (p *Peer) answersLocked(answer *jsonrpc.Message, a *array, room *jsonrpc.Room) (full *jsonrpc.Message) {
	if a != nil {
		if answer != nil {
			a.answers = append(a.answers, answer)
		}
		if a.missing--; a.missing > 0 || len(a.answers) == 0 {
			return nil
		}
		answer = &jsonrpc.Message{Batch: a.answers}
	}
	if answer == nil {
		return nil
	}
	return p.sendLocked(answer, room)
}

// Respond answers the request. It returns false if the request was already cancelled or answered. m
// must belong to the request alone.
func (r *Request) Respond(m *jsonrpc.Message) bool {
	p := r.p
	p.mu.Lock()
	if !r.takeLocked() {
		p.mu.Unlock()
		return false
	}
	full := r.answerLocked(m)
	p.mu.Unlock()
	p.tellFull(full)
	return true
}

// Tell sends a notification that belongs to the request, unless the request is over or there is no
// room. It does not wait.
func (r *Request) Tell(m *jsonrpc.Message) {
	m.Related = r.ID
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.over.Load() && p.out.Roomy(&p.o.Room, 1) {
		_ = p.putLocked(m, nil, nil)
	}
}

// Fail is Respond with an error.
func (r *Request) Fail(err *jsonrpc.Error) bool { return r.Respond(&jsonrpc.Message{Error: err.Raw()}) }

// Open reports whether the request was neither answered nor cancelled.
func (r *Request) Open() bool { return !r.over.Load() }

// InArray reports whether the request came in an array.
func (r *Request) InArray() bool { return r.array != nil }

// OnCancel sets the function to call when the other side cancels the request, with the notification
// and the position of the id in its params, and when the Peer ends, with nil. It reports whether
// the request is still open; if not, fn is not called.
func (r *Request) OnCancel(fn func(m *jsonrpc.Message, at jsonrpc.Span)) bool {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if !r.over.Load() { // otherwise whoever took it may be reading onCancel
		r.onCancel = fn
	}
	return !r.over.Load()
}

// cancelled tells the handler of a taken request that nobody waits for the answer. m is nil at the
// end of the Peer.
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

// Forward sends the request on as the call c of another Peer, with the message m. A cancellation of
// the request cancels the call, and the answer to the call answers the request, unless c.Done does
// something else. It returns the errors of [Call.Send]; then the request is unchanged. A request
// may be forwarded again after its call is over.
func (r *Request) Forward(c *Call, m *jsonrpc.Message) error {
	c.For, c.joined = r, true
	if c.Done == nil {
		c.Done = c.answerRequest
	}
	r.p.mu.Lock()
	over := r.over.Load()
	r.call = c
	r.p.mu.Unlock()
	if over { // otherwise whoever takes it from now on sees c, and a call that it cancels is not sent
		return ErrCancelled
	}
	return c.Send(m)
}

// answerRequest is the default Done of a forwarded call: it answers the request like the call.
func (c *Call) answerRequest(answer *jsonrpc.Message, lost *Lost) {
	if lost != nil {
		c.For.Fail(lost.Wire(c.p.o.Name))
		return
	}
	c.For.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
}

// RespondIfRoom is Respond for an answer of the proxy to a server. It drops the answer if the
// server asks so much and reads so little that there is no room.
func (r *Request) RespondIfRoom(m *jsonrpc.Message) {
	if r.p.Roomy(1) {
		r.Respond(m)
	} else if r.Take() {
		r.Answer(nil)
	}
}

// Forwarded returns the last call as which the request was forwarded; nil for none.
func (r *Request) Forwarded() *Call {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.call
}

// Request returns the open request with that id; nil for none.
func (p *Peer) Request(id jsonrpc.ID) *Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests.Get(id)
}

// Requests returns the open requests for which want returns true, oldest first. want is called with
// the lock held.
func (p *Peer) Requests(want func(r *Request) bool) []*Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests.All(want)
}

// TakeRequests takes the open requests for which want returns true. want is called with the lock
// held. The caller must Answer them.
func (p *Peer) TakeRequests(want func(r *Request) bool) []*Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.requests.TakeIf(want)
	p.overLocked(nil, taken)
	p.owed += len(taken)
	return taken
}
