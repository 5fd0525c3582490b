package remote

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// outBytes is how much may wait to be posted, in bytes of notifications and responses.
	// When there is more, Send waits, and with it all that is sent later.
	outBytes = 256 << 10

	// talkTimeout bounds how long posting a notification or a response may take, since
	// later ones wait for it.
	talkTimeout = 10 * time.Second

	// acceptTime is how long after its call a cancellation is posted, unless the server has begun to
	// answer the POST of the call before. Servers work on two POSTs at once, and one that handled
	// the cancellation first would not know the call yet and run it to its end. A server that
	// answers with JSON begins only when it has the result.
	acceptTime = 100 * time.Millisecond

	// A message is posted again after firstRetry, after twice that, and so on up to lastRetry.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 1600 * time.Millisecond

	// maxCancels bounds the cancellations that are posted at once. Further ones wait. But if
	// the server did not accept the last one within talkTimeout, further ones are dropped
	// until it accepts one.
	maxCancels = 32
)

// An outbox posts the notifications and responses of a session one after the other, since
// concurrent HTTP requests may overtake each other. Cancellations are posted beside them, and
// concurrently: behind others they would come too late. So they pass the notifications that a
// client floods the server with, and each other, but no response: a server that asks learns first
// that its question has failed.
//
// It is no jsonrpc.Queue, since each message has its own gate.
type outbox struct {
	// Static after construction.
	log   *slog.Logger
	post  func(ctx context.Context, m *jsonrpc.Message) *failure
	hurry context.Context // done: nothing is posted any more
	stop  context.CancelFunc
	over  <-chan struct{} // closed at the end of the session
	done  chan struct{}   // closed when everything was posted

	mu      sync.Mutex // guards the fields below
	waiting []outgoing
	bytes   int           // of waiting
	left    bool          // no more will come
	answer  chan struct{} // closed when the last response was posted or never will be; nil: there was none
	more    chan struct{} // capacity 1: something waits, or no more will come; static
	room    chan struct{} // capacity 1: something waits no more; static

	cancels sync.WaitGroup // one for each cancellation, of which at most maxOpen calls have one
	slots   chan struct{}  // an element for each that is being posted; capacity maxCancels
	deaf    atomic.Bool    // the server did not accept the last one in time
}

// An outgoing is a notification or a response that is to be posted.
type outgoing struct {
	m    *jsonrpc.Message
	gate <-chan struct{} // closed when it may be posted; nil: at once
	then func()          // called when m was posted or never will be; may be nil
}

func newOutbox(
	ctx context.Context, log *slog.Logger, over <-chan struct{}, post func(context.Context, *jsonrpc.Message) *failure,
) *outbox {
	o := &outbox{
		log: log, post: post, over: over, done: make(chan struct{}),
		more: make(chan struct{}, 1), room: make(chan struct{}, 1), slots: make(chan struct{}, maxCancels),
	}
	o.hurry, o.stop = context.WithCancel(ctx)
	return o
}

// put queues a message. It returns false if the session has ended. Only one goroutine may call it.
func (o *outbox) put(t outgoing) bool {
	for !o.add(t) {
		select {
		case <-o.room:
		case <-o.over:
			return false
		}
	}
	return true
}

// add is put that returns false if there is no room.
func (o *outbox) add(t outgoing) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes >= outBytes {
		return false
	}
	if t.m.IsResponse() {
		posted := make(chan struct{})
		o.answer, t.then = posted, func() { close(posted) }
	}
	o.waiting = append(o.waiting, t)
	o.bytes += t.m.Size()
	signal(o.more)
	return true
}

// signal makes a channel of capacity 1 ready to receive from.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run posts the queued messages, until leave was called and the queue is empty.
func (o *outbox) run() {
	defer close(o.done)
	defer o.cancels.Wait()
	for {
		t, left := o.next()
		switch {
		case t.m != nil:
			o.postOne(t)
		case left:
			return
		default:
			<-o.more
		}
	}
}

// next takes the first message out; without one, left is whether no more will come.
func (o *outbox) next() (t outgoing, left bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting) == 0 {
		o.waiting = nil // do not keep the memory
		return t, o.left
	}
	t, o.waiting[0] = o.waiting[0], t
	o.waiting = o.waiting[1:]
	o.bytes -= t.m.Size()
	signal(o.room)
	return t, false
}

func (o *outbox) postOne(t outgoing) {
	if t.then != nil {
		defer t.then()
	}
	if o.open(t.gate) {
		o.deliver(t.m)
	}
}

// deliver posts a message, again if it was not sent: a call would wait forever for an answer that is
// lost. For the same reason it posts an answer again that the server may have got, and initialized, which both count
// once. It reports whether the server accepted or refused it within talkTimeout.
func (o *outbox) deliver(m *jsonrpc.Message) (heard bool) {
	ctx, cancel := context.WithTimeout(o.hurry, talkTimeout)
	defer cancel()
	f := o.post(ctx, m)
	once := m.IsResponse() || m.Method == mcp.MethodInitialized
	for pause := firstRetry; f != nil && (f.mayPass() || once && f.passing()) && pause <= lastRetry && sleep(ctx, pause) == nil; pause *= 2 {
		f = o.post(ctx, m)
	}
	if f == nil {
		return true
	}
	o.log.Debug("message was not accepted by the upstream", "method", m.Method, "id", m.ID.String(), "err", f.text())
	return ctx.Err() != context.DeadlineExceeded
}

// cancel posts m, which cancels a call, in a goroutine of its own. answerTime later it gives up the
// call, which the server may still answer until then.
func (o *outbox) cancel(m *jsonrpc.Message, gate <-chan struct{}, call *httpCall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left { // run may have ended
		call.cancel(errCancelled)
		return
	}
	answer := o.answer
	o.cancels.Go(func() {
		if answer != nil {
			select {
			case <-answer:
			case <-o.hurry.Done():
			}
		}
		if !o.enter() {
			call.cancel(errCancelled)
			return
		}
		defer func() { <-o.slots }()
		if !o.open(gate) || !o.arrived(call) {
			call.cancel(errCancelled)
			return
		}
		defer time.AfterFunc(answerTime, func() { call.cancel(errCancelled) })
		o.deaf.Store(!o.deliver(m))
	})
}

// enter waits until a cancellation may be posted. It returns false if the server has not accepted the last one, or
// the session ends.
func (o *outbox) enter() bool {
	select {
	case o.slots <- struct{}{}:
		return true
	default:
	}
	if o.deaf.Load() {
		return false
	}
	select { // each is freed within talkTimeout
	case o.slots <- struct{}{}:
	case <-o.hurry.Done():
		return false
	}
	deaf := o.deaf.Load() // since then
	if deaf {
		<-o.slots
	}
	return !deaf
}

// open waits for a gate. It returns false if the gate will never open.
func (o *outbox) open(gate <-chan struct{}) bool {
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-o.over:
	}
	select { // both may be ready
	case <-gate:
		return true
	default:
		return false
	}
}

// arrived waits until a call has probably reached the server. It returns false if the session ends first.
func (o *outbox) arrived(c *httpCall) bool {
	for {
		written := c.reach.whenWritten()
		if !o.written(written) || !o.accepted(c) {
			return false
		}
		if c.reach.whenWritten() == written { // else nothing had left, and it is being written again
			return true
		}
	}
}

// written waits until a call was written. It returns false if the session ends first.
func (o *outbox) written(call <-chan struct{}) bool {
	late := time.NewTimer(talkTimeout)
	defer late.Stop()
	select {
	case <-call:
	case <-late.C: // a call that is being written counts as sent
	case <-o.hurry.Done():
	}
	return o.hurry.Err() == nil
}

// accepted waits until the server has accepted a call, or has had the time for it. It returns
// false if the session ends first.
func (o *outbox) accepted(c *httpCall) bool {
	late := time.NewTimer(acceptTime - c.reach.sinceWritten())
	defer late.Stop()
	select {
	case <-c.accepted:
	case <-c.taken:
	case <-late.C:
	case <-o.hurry.Done():
	}
	return o.hurry.Err() == nil
}

// leave closes the queue for new messages.
func (o *outbox) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = true
	signal(o.more)
}
