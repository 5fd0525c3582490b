package remote

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// outDepth is how many notifications and responses wait to be posted; then
	// Send waits.
	outDepth = 64

	// talkTimeout bounds how long a notification or a response may take, since
	// those behind it wait.
	talkTimeout = 10 * time.Second

	// maxCancels bounds the cancellations on their way at once. Those beyond wait,
	// and what is behind them too. But a server that has taken none within
	// talkTimeout is not told of those beyond, until it takes one.
	maxCancels = 32
)

// An outbox posts the notifications and responses of a session one after the other:
// two requests on their way at once may overtake each other. Cancellations need no
// order among themselves, and one after the other the last of many would come too late:
// others do not wait for them.
//
// It is no jsonrpc.Queue: what is in it has a gate of its own, and a cancellation has
// the call that it is about.
type outbox struct {
	// Static after construction.
	log     *slog.Logger
	post    func(ctx context.Context, m *jsonrpc.Message) *failure
	hurry   context.Context // done: there is no more time to post anything
	stop    context.CancelFunc
	over    <-chan struct{} // closed at the end of the session
	waiting chan outgoing   // to run; never closed
	left    chan struct{}   // closed by leave: no more will come
	done    chan struct{}   // closed when all was posted

	cancels sync.WaitGroup // owned by run; one for each cancellation on its way
	slots   chan struct{}  // an element for each of them; capacity maxCancels
	deaf    atomic.Bool    // the server took too long for the last one
}

// An outgoing is a notification or a response on its way to the server.
type outgoing struct {
	m       *jsonrpc.Message
	gate    <-chan struct{} // what it waits for; nil: nothing
	cancels *httpCall       // the request that m cancels; nil if it cancels none
	then    func()          // called when m was posted or never will be; may be nil
}

func newOutbox(ctx context.Context, log *slog.Logger, over <-chan struct{}, post func(context.Context, *jsonrpc.Message) *failure) *outbox {
	o := &outbox{
		log: log, post: post, over: over, waiting: make(chan outgoing, outDepth),
		left: make(chan struct{}), done: make(chan struct{}), slots: make(chan struct{}, maxCancels),
	}
	o.hurry, o.stop = context.WithCancel(ctx)
	return o
}

// put queues what is to be posted. It reports whether it will be.
func (o *outbox) put(t outgoing) bool {
	select {
	case o.waiting <- t:
		return true
	case <-o.over:
		return false
	}
}

// run posts what is put. After leave it posts what is left.
func (o *outbox) run() {
	defer close(o.done)
	defer o.cancels.Wait()
	for {
		select {
		case t := <-o.waiting:
			o.postOne(t)
			continue
		case <-o.left:
		}
		select {
		case t := <-o.waiting:
			o.postOne(t)
		default:
			return
		}
	}
}

func (o *outbox) postOne(t outgoing) {
	if t.then != nil {
		defer t.then()
	}
	switch {
	case t.cancels != nil:
		o.cancel(t)
	case o.open(t.gate):
		o.deliver(t.m)
	}
}

// deliver posts a message within talkTimeout. It reports whether the server took it, or
// refused it, in that time.
func (o *outbox) deliver(m *jsonrpc.Message) (heard bool) {
	ctx, cancel := context.WithTimeout(o.hurry, talkTimeout)
	defer cancel()
	f := o.post(ctx, m)
	if f == nil {
		return true
	}
	o.log.Debug("message was not accepted by the upstream", "method", m.Method, "id", m.ID.String(), "err", f.text())
	return ctx.Err() != context.DeadlineExceeded
}

// cancel posts a cancellation, and does not wait for it. The call is given up when the
// server has had time to answer it all the same.
func (o *outbox) cancel(t outgoing) {
	select {
	case o.slots <- struct{}{}:
	default:
		if o.deaf.Load() {
			t.cancels.cancel(errCancelled)
			return
		}
		o.slots <- struct{}{} // which nobody has for long
	}
	o.cancels.Go(func() {
		defer func() { <-o.slots }()
		if !o.open(t.gate) || !o.written(t.cancels.reach) {
			t.cancels.cancel(errCancelled)
			return
		}
		defer time.AfterFunc(answerTime, func() { t.cancels.cancel(errCancelled) })
		o.deaf.Store(!o.deliver(t.m))
	})
}

// open waits for a gate. With false it will never open.
func (o *outbox) open(gate <-chan struct{}) bool {
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-o.over:
	}
	select { // both at once
	case <-gate:
		return true
	default:
		return false
	}
}

// written waits until a request was. With false there is no time for that any more.
func (o *outbox) written(r *reach) bool {
	late := time.NewTimer(talkTimeout)
	defer late.Stop()
	select {
	case <-r.whenWritten():
	case <-late.C: // what began to be sent counts as sent
	case <-o.hurry.Done():
	}
	return o.hurry.Err() == nil
}

// leave lets nothing in any more.
func (o *outbox) leave() { close(o.left) }
