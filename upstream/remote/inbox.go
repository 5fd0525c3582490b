package remote

import (
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// inDepth is how many messages wait for Recv; then the streams that they come on
// wait.
const inDepth = 16

// An inbox is what waits for Recv, and the end of it.
type inbox struct {
	in    chan received // to Recv; never closed
	ended chan struct{} // closed by end
	once  sync.Once
	err   error // the end; written before ended is closed
}

// received is what Recv returns.
type received struct {
	m   *jsonrpc.Message
	err *jsonrpc.InvalidError
}

func (r received) result() (*jsonrpc.Message, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.m, nil
}

func newInbox() *inbox {
	return &inbox{in: make(chan received, inDepth), ended: make(chan struct{})}
}

// Recv implements jsonrpc.Conn. The end is a [*jsonrpc.ClosedError], after what
// had come before it; after Close it is jsonrpc.ErrClosed.
func (b *inbox) Recv() (*jsonrpc.Message, error) {
	select {
	case r := <-b.in:
		return r.result()
	case <-b.ended:
	}
	select {
	case r := <-b.in:
		return r.result()
	default:
		return nil, b.err
	}
}

// put brings something to Recv. It reports whether anybody still receives: after
// the end nobody does, though there be room.
func (b *inbox) put(r received) bool { return b.offer(r, nil) }

// offer does as put does, for as long as gone is open.
func (b *inbox) offer(r received, gone <-chan struct{}) bool {
	select {
	case <-b.ended:
		return false
	default:
	}
	select {
	case b.in <- r:
		return true
	case <-gone:
		return false
	case <-b.ended:
		return false
	}
}

// end is the one place through which every end passes; the first one counts.
func (b *inbox) end(err error) {
	b.once.Do(func() {
		b.err = err
		close(b.ended)
	})
}
