// Package peer is one end of a conversation: who has asked what, what waits to be sent,
// and who hears what when it ends.
//
//	        ┌── Peer ──────────────────────────┐
//	Recv ──►│ requests of the other side ──► Request ──► Respond ─┐
//	        │ responses ──► calls of this side ──► Done           │
//	Send ◄──│ Queue ◄─────────────── Call.Send, Cancel, Notify ◄──┘
//	        └──────────────────────────────────┘
//
// A [Peer] has a table of what this side has asked, a table of what the other side has
// asked, a queue, and one mutex for the three. It mints the ids of its calls, which are
// their progress tokens, too. It exists before its Conn: calls wait for one. Where one Peer
// passes on what another has received, [Request.Forward] joins the two.
//
// # Proof
//
// Everything about who is answered, who is cancelled and who hears of an end follows from
// six sentences.
//
//  1. An entry leaves its table once. ([jsonrpc.Table]; all ways out are Table methods that
//     are called with the mutex held: response, cancellation, end.)
//  2. What leaves is settled by who took it: answered, cancelled, or told of the end. Nobody
//     else writes anything about it. So there are never two answers, and never none.
//  3. The end of a Peer takes both tables at once, under the lock, and settles outside it.
//     What comes later is refused with the same end.
//  4. What was cancelled before it was sent is never sent, and neither is its cancellation:
//     to leave the queue and to be marked as sent are one step under the mutex, and a
//     cancellation looks at the mark under it.
//  5. Of the two ends of [Request.Forward] the side of the client decides: a response takes
//     the call, then the request, and answers only if it was there; a cancellation takes the
//     request, then the call. A call that has lost its request is answered to nobody, and
//     its cancellation is told though the response is on its way. No mutex is held while the
//     other is taken, so that none can wait for each other.
//  6. Nothing that is put into a queue blocks. Who reads waits only where its owner says so,
//     before a message is handled ([Options.Ready]) or in [Peer.Wait]: from a server, for
//     room towards its client; from a client for nothing at the proxy but that it reads what
//     it has asked for. So a cancellation always passes, and what slows a server down is a
//     client that does not read.
//
// Goroutines: [Peer.Run] reads on its caller's and has one that writes. It waits for it.
package peer

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

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
	lastSent int64 // id of the newest call that was sent
	owed     int   // requests that were taken to be answered and are not yet
	drain    *drain

	halfClosed bool // this side sends no more, and hears the other out
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

// Run serves c until it has ended, and returns the one cause of that; ctx ends it by
// force. What is open stays so until [Peer.End].
func (p *Peer) Run(ctx context.Context, c jsonrpc.Conn) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	closed := make(chan struct{})
	p.pause(false)
	context.AfterFunc(ctx, func() { // unblocks Recv, Send and who waits for room
		defer close(closed)
		p.pause(true)
		jsonrpc.CloseWith(c, context.Cause(ctx))
	})
	written := make(chan struct{})
	go func() { defer close(written); p.write(ctx, c, end) }()
	end(p.read(ctx, c))
	<-written
	<-closed
	return jsonrpc.Closed(context.Cause(ctx))
}

func (p *Peer) pause(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Pause(on)
}

// write owns Send of c.
func (p *Peer) write(ctx context.Context, c jsonrpc.Conn, end context.CancelCauseFunc) {
	err := p.out.Run(c)
	if err == nil {
		p.mu.Lock()
		cause, stays := p.out.Err(), p.halfClosed
		p.mu.Unlock()
		if half, ok := c.(interface{ CloseWrite() }); ok && stays {
			half.CloseWrite()
		}
		if cause != nil && !stays { // finished, not paused
			end(cause)
		}
		return
	}
	late := time.NewTimer(cmp.Or(p.o.OneWay, time.Second))
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-late.C:
		end(err)
	}
}

// read owns Recv of c.
func (p *Peer) read(ctx context.Context, c jsonrpc.Conn) error {
	var batch []*jsonrpc.Message
	halfClosed := false
	for {
		var err error
		batch, err = jsonrpc.RecvAll(c, batch[:0])
		for _, m := range batch {
			p.receive(m)
		}
		clear(batch)
		bad, invalid := errors.AsType[*jsonrpc.InvalidError](err)
		switch {
		case err == nil:
		case invalid:
			p.ready()
			p.invalid(bad)
		case err != io.EOF || p.o.HalfClosed == nil: // the bare EOF: the end of a connection may wrap it
			return jsonrpc.Closed(err)
		case halfClosed:
			<-ctx.Done()
			return context.Cause(ctx)
		default:
			halfClosed = true
			p.o.HalfClosed()
		}
	}
}

func (p *Peer) ready() {
	if p.o.Ready != nil {
		p.o.Ready()
	}
}

// receive handles one message, or an array.
func (p *Peer) receive(m *jsonrpc.Message) {
	if m.Batch == nil {
		p.ready()
		p.handle(m, nil)
		return
	}
	p.ready()
	if p.o.Apart {
		for _, e := range m.Batch {
			e.Related, e.From = cmp.Or(e.Related, m.Related), cmp.Or(e.From, m.From)
			p.handle(e, nil)
		}
		return
	}
	if p.o.Array != nil {
		if err := p.o.Array(m.Batch); err != nil {
			p.Send(jsonrpc.NewError(jsonrpc.ID{}, err))
			return
		}
	}
	a := &array{}
	for _, e := range m.Batch {
		if e.IsRequest() {
			a.missing++
		}
	}
	for _, e := range m.Batch {
		if e.Related.IsZero() {
			e.Related = m.Related
		}
		e.From = cmp.Or(e.From, m.From)
		p.handle(e, a)
	}
}

func (p *Peer) handle(m *jsonrpc.Message, a *array) {
	switch {
	case m.IsRequest():
		p.requested(m, a)
	case m.IsNotification():
		p.notified(m)
	default:
		p.answered(m)
	}
}

// invalid settles what a message would have settled that cannot be used.
func (p *Peer) invalid(bad *jsonrpc.InvalidError) {
	if bad.Reply {
		if c := p.takeAnswered(bad.ID); c != nil {
			c.settle(jsonrpc.NewError(bad.ID, p.unusable(bad)), nil)
		}
	}
	if p.o.Invalid != nil {
		p.o.Invalid(bad)
	}
}

// unusable is what somebody hears whose answer cannot be used: an upstream what is wrong
// with its client's.
func (p *Peer) unusable(bad *jsonrpc.InvalidError) *jsonrpc.Error {
	if p.o.Name == "" {
		return bad.Wire()
	}
	return jsonrpc.InvalidResponse(p.o.Name, "")
}

// Send puts m in the queue, which is no call and no response: a notification, or an error
// that answers nothing known.
func (p *Peer) Send(m *jsonrpc.Message) { p.SendIn(nil, m) }

// SendWhenRoom is Send that waits for room.
func (p *Peer) SendWhenRoom(m *jsonrpc.Message) {
	p.mu.Lock()
	_ = p.out.Wait(&p.o.Room, 1)
	full := p.putLocked(m, nil, nil) == jsonrpc.ErrFull
	p.mu.Unlock()
	if full {
		p.o.Full(m)
	}
}

// SendIn is Send with a room of its own; nil is the Peer's.
func (p *Peer) SendIn(room *jsonrpc.Room, m *jsonrpc.Message) {
	p.mu.Lock()
	full := p.putLocked(m, nil, room) == jsonrpc.ErrFull
	p.mu.Unlock()
	if full {
		p.o.Full(m)
	}
}

// putLocked puts m in the queue if there is room, which is only a question if Full is set.
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

// Wait waits until there is room, or less than so many times as much is in use, or until
// there is no use in waiting any more.
func (p *Peer) Wait(times int) {
	if !p.tight.Load() { // which is most of the time
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Wait(&p.o.Room, times)
	p.tight.Store(!p.out.Roomy(&p.o.Room, 1))
}

// WaitIn waits until a room of its own has room. It returns an error when there is no use in
// waiting any more, or ctx is done.
func (p *Peer) WaitIn(ctx context.Context, room *jsonrpc.Room) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.WaitContext(ctx, room, 1)
}

// Roomy reports whether Wait would not wait.
func (p *Peer) Roomy(times int) bool {
	if !p.tight.Load() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tight.Store(!p.out.Roomy(&p.o.Room, 1))
	return p.out.Roomy(&p.o.Room, times)
}

// Waiting returns how many bytes of messages wait to be sent.
func (p *Peer) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Bytes()
}

// Hold keeps back messages of a class until they are released.
func (p *Peer) Hold(c jsonrpc.Class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Hold(c)
}

// Release lets go what is held of a class, behind first.
func (p *Peer) Release(c jsonrpc.Class, first ...*jsonrpc.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Release(c, first...)
}

// Open returns how many calls and requests are open.
func (p *Peer) Open() (calls, requests int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls.Len(), p.requests.Len()
}
