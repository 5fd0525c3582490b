package remote

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// inDepth is how many messages wait for Recv. When it is full, the streams that bring them
// wait.
const inDepth = 16

// A life is the part of a session over HTTP that receives and ends: the messages for Recv,
// the contexts of its work, and its goroutines.
type life struct {
	// What waits for Recv, which returns Unusable as its error. It is no jsonrpc.Queue: it has
	// invalid messages, too, and a call stops waiting for room when it is given up.
	in    chan *jsonrpc.Message // to Recv; never closed
	ended chan struct{}         // closed by end
	once  sync.Once
	err   error // the end; written before ended is closed

	ctx    context.Context // of everything
	cancel context.CancelFunc
	work   context.Context // of calls and streams; child of ctx
	giveUp context.CancelFunc
	unhook func() bool // from the ctx of Dial

	delivered atomic.Bool // a request that counts may have reached the server
	closing   sync.Once

	mu      sync.Mutex // guards the fields below
	leaving bool       // spawn starts nothing more
	wg      sync.WaitGroup
}

func newLife(ctx context.Context) *life {
	l := &life{in: make(chan *jsonrpc.Message, inDepth), ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx)) // fail ends the session before it cancels calls
	l.work, l.giveUp = context.WithCancel(l.ctx)
	l.unhook = context.AfterFunc(ctx, func() {
		l.fail(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Err: context.Cause(ctx)})
	})
	return l
}

// Recv implements jsonrpc.Conn. After the last message it returns a
// [*jsonrpc.ClosedError], or jsonrpc.ErrClosed after Close.
func (l *life) Recv() (*jsonrpc.Message, error) {
	var m *jsonrpc.Message
	select {
	case m = <-l.in:
	case <-l.ended:
		select { // both may be ready
		case m = <-l.in:
		default:
			return nil, l.err
		}
	}
	if m.Unusable != nil {
		return nil, m.Unusable
	}
	return m, nil
}

// put passes m to Recv, and may wait for room. It returns false after the end of the session,
// even if there is room.
func (l *life) put(m *jsonrpc.Message) bool { return l.offer(m, nil) }

// offer is put that also returns false when gone is closed.
func (l *life) offer(m *jsonrpc.Message, gone <-chan struct{}) bool {
	select {
	case <-l.ended:
		return false
	case <-gone:
		return false
	default:
	}
	select {
	case l.in <- m:
		return true
	case <-gone:
		return false
	case <-l.ended:
		return false
	}
}

// end ends the session. Every end passes through it, and the first one counts.
func (l *life) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.ended)
	})
}

// over returns the error of Send, nil before the end.
func (l *life) over() error {
	select {
	case <-l.ended:
		return jsonrpc.Closed(l.err)
	default:
		return nil
	}
}

// spawn runs fn in a goroutine that Close waits for. Once Close has begun it returns false
// and runs nothing.
func (l *life) spawn(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving {
		return false
	}
	l.wg.Go(fn)
	return true
}

// spawnRequest is spawn for a request, on a stack of the size that requests need. A new goroutine has
// 2 KiB, and net/http would double that three times, each time with a copy of what it had used.
func (l *life) spawnRequest(fn func()) bool {
	return l.spawn(func() {
		ample()
		fn()
	})
}

//go:noinline
func ample() {
	var room [8 << 10]byte
	runtime.KeepAlive(&room)
}

// fail ends the session with a cause, and gives up all its work.
func (l *life) fail(end *jsonrpc.ClosedError) {
	end.Delivered = l.delivered.Load()
	l.end(end)
	l.cancel()
}

// leave ends the session because of Close. No goroutine starts any more.
func (l *life) leave() {
	l.end(jsonrpc.ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = true
}

// left is the last step of Close.
func (l *life) left() {
	l.unhook()
	l.cancel()
}

// refuse answers a call that the Table did not accept. It does not wait for Recv.
func (l *life) refuse(upstream string, id jsonrpc.ID, err error) {
	l.spawn(func() { l.put(refusal(upstream, id, err)) })
}

// refusal returns the answer to a call that a Table did not accept. If the call's id is in
// use, the answer has no id: it would be taken for the answer to the first call.
func refusal(upstream string, id jsonrpc.ID, err error) *jsonrpc.Message {
	if errors.Is(err, jsonrpc.ErrInUse) {
		return jsonrpc.NewError(jsonrpc.ID{}, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Duplicate request id"})
	}
	return jsonrpc.NewError(id, jsonrpc.Overloaded(upstream))
}

// sleep waits for d. It returns early with an error if ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
