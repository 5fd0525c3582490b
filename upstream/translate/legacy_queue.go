package translate

import (
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// How much may wait in a sendQueue before who brings more has to wait, too.
const (
	maxQueued      = 1024
	maxQueuedBytes = 16 << 20
)

// A sendQueue is what is on its way to one Conn. Putting never blocks, so that it
// may be done under a lock and from whatever goroutine: the order of what was put is
// the order of what is sent. Who reads messages that cause others waits for room
// first, which bounds the queue.
type sendQueue struct {
	c jsonrpc.Conn

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu: any of them changed
	waiting []*jsonrpc.Message
	bytes   int  // in waiting
	ended   bool // no more is put; run returns when all is sent
	broken  bool // no more is sent
}

func newSendQueue(c jsonrpc.Conn) *sendQueue {
	q := &sendQueue{c: c}
	q.changed.L = &q.mu
	return q
}

// put adds messages, which are dropped if the queue has ended.
func (q *sendQueue) put(messages ...*jsonrpc.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || q.broken {
		return
	}
	for _, m := range messages {
		q.waiting = append(q.waiting, m)
		q.bytes += m.Size()
	}
	q.changed.Broadcast()
}

// waitForRoom blocks while the queue is full.
func (q *sendQueue) waitForRoom() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for (len(q.waiting) >= maxQueued || q.bytes >= maxQueuedBytes) && !q.ended && !q.broken {
		q.changed.Wait()
	}
}

// end lets run return when all is sent. It may be called repeatedly.
func (q *sendQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.changed.Broadcast()
}

// run owns Send of the Conn, until end or until that fails: then the Conn's Recv
// says why.
func (q *sendQueue) run() {
	var batch []*jsonrpc.Message
	for {
		if batch = q.next(batch); len(batch) == 0 {
			return
		}
		if jsonrpc.SendAll(q.c, batch) != nil {
			q.breaks()
			return
		}
		clear(batch)
	}
}

// next waits for messages and takes them all, in exchange for an empty slice. None
// means the end.
func (q *sendQueue) next(spare []*jsonrpc.Message) []*jsonrpc.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.ended {
		q.changed.Wait()
	}
	batch := q.waiting
	q.waiting, q.bytes = spare[:0], 0
	q.changed.Broadcast()
	return batch
}

func (q *sendQueue) breaks() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.broken, q.waiting = true, nil
	q.changed.Broadcast()
}
