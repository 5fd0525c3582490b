// Package peer implements one end of a conversation: the calls and requests that are open, the
// queue of messages to send, and what happens to both when the conversation ends.
//
//	        ┌── Peer ──────────────────────────┐
//	Recv ──►│ requests of the other side ──► Request ──► Respond ─┐
//	        │ responses ──► calls of this side ──► Done           │
//	Send ◄──│ Queue ◄─────────────── Call.Send, Cancel, Notify ◄──┘
//	        └──────────────────────────────────┘
//
// A [Peer] has a table of the calls of this side, a table of the requests of the other side, a
// queue, and one mutex for the three. It mints the ids of its calls, which are also their progress
// tokens. It exists before its Conn: calls wait for one. Where one Peer forwards what another one
// has received, [Request.Forward] joins the two.
//
// # Proof
//
// Six sentences decide which request is answered, which call is cancelled, and which of them see
// the end.
//
//  1. An entry leaves its table once. ([jsonrpc.Table]; a response, a cancellation and the end all
//     take entries by Table methods that are called with the mutex held.)
//  2. Whoever takes an entry settles it: with an answer, a cancellation, or the end. Nobody else
//     writes anything about it. So there are never two answers, and never none.
//  3. The end of a Peer takes all entries of both tables at once, under the mutex, and settles them
//     outside it. Later entries are refused with the same end.
//  4. A call that was cancelled before it was sent is never sent, and neither is its cancellation:
//     to leave the queue and to be marked as sent are one step under the mutex, and a cancellation
//     reads the mark under it. If the Conn is in memory, whoever puts a message into an empty queue
//     takes that step himself ([jsonrpc.Prompt]): the Conn waits for nothing and calls no Peer, so
//     its lock may be taken under the mutex.
//  5. Of the two sides of [Request.Forward], the client's decides. A response takes the call, then
//     the request, and answers only if the request was still there. A cancellation takes the
//     request, then the call. If the call has lost its request, its response is dropped, and its
//     cancellation is sent although the response is on its way. Neither mutex is held while the
//     other is locked, so there is no deadlock.
//  6. Nothing that is put into a queue blocks. A reader waits only where its owner says so, before a
//     message is handled ([Options.Ready]) or in [Peer.Wait]. A reader of a server waits for room
//     towards its client. A reader of a client waits for nothing at the proxy, except for the client
//     to read the answers to its own requests. So cancellations always pass, and only a client that
//     does not read slows a server down.
//
// Goroutines: a Peer has one that reads ([jsonrpc.Receive]) and one that writes ([jsonrpc.Queue.Start]); both
// may end while nothing comes or waits. It waits for them at the end. From a [jsonrpc.Direct], messages are
// handled by whoever sends them while nobody reads, in the same order and one at a time, but only
// if that cannot wait (6): else a client that does not read would stop its servers' readers, and their
// end would wait for it.
package peer

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Peer is this side's end of a conversation.
type Peer struct {
	o      Options // static
	minted *atomic.Int64
	tight  atomic.Bool // there may be no room; see Wait

	mu       sync.Mutex // guards the fields below, and those of calls and requests that say so
	calls    jsonrpc.Table[int64, *Call]
	requests jsonrpc.Table[jsonrpc.ID, *Request]
	out      *jsonrpc.Queue
	lastSent int64  // id of the newest sent call
	owed     int    // requests that were taken but not answered yet
	drain    func() // finishes the queue, once nothing is open; nil before Drain

	halfClosed bool // this side sends no more, but still reads
}

// New returns a Peer without a Conn.
func New(o Options) *Peer {
	p := &Peer{o: o, minted: o.Minted}
	if p.minted == nil {
		p.minted = new(atomic.Int64)
	}
	p.requests.Max = o.Requests
	p.out = jsonrpc.NewQueue(&p.mu)
	return p
}

// ready waits until Options.Ready allows another message to be handled.
func (p *Peer) ready() {
	if p.o.Ready != nil {
		p.o.Ready(true)
	}
}

// receiveNow is receive in the goroutine that has sent m, which reads and writes for nobody else
// meanwhile. It does nothing and returns false if it might have to wait, as any function of the Options
// may for which Ready has not waited, and Done of a call that does not pass.
func (p *Peer) receiveNow(m *jsonrpc.Message) bool {
	switch {
	case m.Batch != nil:
	case p.o.Ready != nil && p.o.Ready(false):
		p.handle(m, nil)
		return true
	case p.o.Ready == nil && m.IsResponse():
		if c := p.takePassed(m.ID); c != nil {
			c.Passed = true
			c.settle(m, nil)
			return true
		}
	}
	return false
}

// receive handles one message, or an array.
func (p *Peer) receive(m *jsonrpc.Message) {
	p.ready()
	if m.Batch == nil {
		p.handle(m, nil)
		return
	}
	if p.o.Array != nil {
		if err := p.o.Array(m.Batch); err != nil {
			p.Send(jsonrpc.NewError(jsonrpc.ID{}, err))
			return
		}
	}
	var a *array
	if !p.o.Apart {
		a = newArray(m.Batch)
	}
	for _, e := range m.Batch {
		e.Related, e.From = cmp.Or(e.Related, m.Related), cmp.Or(e.From, m.From)
		p.handle(e, a)
	}
}

func (p *Peer) handle(m *jsonrpc.Message, a *array) {
	switch {
	case m.Unusable != nil:
		p.invalid(m.Unusable, a)
	case m.IsRequest():
		p.requested(m, a)
	case m.IsNotification():
		p.notified(m)
	default:
		p.answered(m)
	}
}

// invalid settles the call that an unusable message answers. a is the array that it came in; nil for
// none.
func (p *Peer) invalid(bad *jsonrpc.InvalidError, a *array) {
	if bad.Reply {
		if c := p.takeAnswered(bad.ID); c != nil {
			c.settle(jsonrpc.NewError(bad.ID, p.unusable(bad)), nil)
		}
	}
	var answer *jsonrpc.Message
	if p.o.Invalid != nil {
		answer = p.o.Invalid(bad)
	}
	p.mu.Lock()
	full := p.answersLocked(answer, a, nil)
	p.mu.Unlock()
	p.tellFull(full)
}

// unusable returns the error for a call whose answer is unusable. If the other side is a client,
// the upstream learns the reason.
func (p *Peer) unusable(bad *jsonrpc.InvalidError) *jsonrpc.Error {
	if p.o.Name == "" {
		return bad.Wire()
	}
	return jsonrpc.InvalidResponse(p.o.Name, "")
}

// Send queues a message that is neither a call nor a response: a notification, or an error for an
// unidentified request.
func (p *Peer) Send(m *jsonrpc.Message) { p.SendIn(nil, m) }

// SendWhenRoom is Send, but waits for room.
func (p *Peer) SendWhenRoom(m *jsonrpc.Message) {
	p.mu.Lock()
	_ = p.out.Wait(&p.o.Room, 1)
	full := p.sendLocked(m, nil)
	p.mu.Unlock()
	p.tellFull(full)
}

// SendIn is Send with another room; nil is the Peer's.
func (p *Peer) SendIn(room *jsonrpc.Room, m *jsonrpc.Message) {
	p.mu.Lock()
	full := p.sendLocked(m, room)
	p.mu.Unlock()
	p.tellFull(full)
}

// sendLocked queues m, which is not a call. It returns m if there was no room for it; the caller
// passes that to tellFull without the lock.
func (p *Peer) sendLocked(m *jsonrpc.Message, room *jsonrpc.Room) (full *jsonrpc.Message) {
	if p.putLocked(m, nil, room) == jsonrpc.ErrFull {
		return m
	}
	return nil
}

// tellFull passes a message that found no room to Options.Full. It does nothing for nil.
func (p *Peer) tellFull(full *jsonrpc.Message) {
	if full != nil {
		p.o.Full(full)
	}
}

// putLocked queues m. It fails for lack of room only if Full is set.
func (p *Peer) putLocked(m *jsonrpc.Message, of *Call, room *jsonrpc.Room) error {
	q := jsonrpc.Queued{Message: m, Room: cmp.Or(room, &p.o.Room)}
	if of != nil {
		q.Of = of
	}
	if p.o.Class != nil && (of == nil || !of.First) {
		q.Class = p.o.Class(m)
	}
	if p.o.Full != nil {
		return p.out.Put(q)
	}
	err := p.out.Force(q)
	if !p.out.Roomy(&p.o.Room, 1) {
		p.tight.Store(true)
	}
	return err
}

// Wait waits until less than times the bounds of the Peer's room is in use, or until waiting is
// pointless.
func (p *Peer) Wait(times int) {
	if !p.tight.Load() { // which is the usual case
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Wait(&p.o.Room, times)
	p.tight.Store(!p.out.Roomy(&p.o.Room, 1))
}

// WaitIn waits until room has room. It returns an error when waiting is pointless, or ctx ends.
func (p *Peer) WaitIn(ctx context.Context, room *jsonrpc.Room) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.WaitContext(ctx, room, 1)
}

// Roomy reports whether Wait would return at once.
func (p *Peer) Roomy(times int) bool {
	if !p.tight.Load() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tight.Store(!p.out.Roomy(&p.o.Room, 1))
	return p.out.Roomy(&p.o.Room, times)
}

// Waiting returns the size of the queued messages in bytes.
func (p *Peer) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Bytes()
}

// Hold holds back messages of a class until Release.
func (p *Peer) Hold(c jsonrpc.Class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Hold(c)
}

// Release sends first, and then the messages of a class that Hold held back.
func (p *Peer) Release(c jsonrpc.Class, first ...*jsonrpc.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Release(c, first...)
}

// Open returns the numbers of open calls and requests.
func (p *Peer) Open() (calls, requests int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls.Len(), p.requests.Len()
}
