package session

import (
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	outboxMessages = 256     // what upstreams may queue for a client before they wait
	outboxBytes    = 4 << 20 // likewise
	outboxSpare    = 8       // times that for what the session itself has to say
)

// An outbox queues messages to the client for the session's writeLoop. What
// upstreams send waits for room, which slows their streams; what the session
// itself answers must not wait, since reading never stops, and has spare room.
type outbox struct {
	mu       sync.Mutex
	nonEmpty sync.Cond
	room     sync.Cond
	queue    []*jsonrpc.Message
	bytes    int
	closed   bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.nonEmpty.L, o.room.L = &o.mu, &o.mu
	return o
}

// wait queues m when there is room. After close it does nothing.
func (o *outbox) wait(m *jsonrpc.Message) { o.waitFor(1, m) }

// waitSpare is wait for what may use the spare room.
func (o *outbox) waitSpare(m *jsonrpc.Message) { o.waitFor(outboxSpare, m) }

func (o *outbox) waitFor(times int, m *jsonrpc.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && !o.fits(times) {
		o.room.Wait()
	}
	o.add(m)
}

// now queues m without waiting and reports whether there was room.
func (o *outbox) now(m *jsonrpc.Message) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed && !o.fits(outboxSpare) {
		return false
	}
	o.add(m)
	return true
}

func (o *outbox) fits(times int) bool {
	return len(o.queue) < times*outboxMessages && o.bytes < times*outboxBytes
}

func (o *outbox) add(m *jsonrpc.Message) {
	if o.closed {
		return
	}
	o.queue = append(o.queue, m)
	o.bytes += m.Size()
	o.nonEmpty.Signal()
}

// take waits for messages and returns them all; nil once the outbox is closed
// and empty. The slice given back is used for the next ones.
func (o *outbox) take(used []*jsonrpc.Message) []*jsonrpc.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(used) // keep no message alive while there are none
	for len(o.queue) == 0 {
		if o.closed {
			return nil
		}
		o.nonEmpty.Wait()
	}
	batch := o.queue
	o.queue, o.bytes = used[:0], 0
	o.room.Broadcast()
	return batch
}

// close lets writeLoop write what is queued and end. It may be repeated.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.nonEmpty.Broadcast()
	o.room.Broadcast()
}
