package session

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// queued is a message for the upstream. One that belongs to a request is not
// sent if the request was taken meanwhile.
type queued struct {
	m *jsonrpc.Message
	r *request
}

// queueLocked queues m and reports whether there was room: reading never stops
// for an upstream that does not read.
func (l *leg) queueLocked(m *jsonrpc.Message, r *request) bool {
	size := m.Size()
	if len(l.queue) > 0 && l.bytes+size > l.s.p.queueBytes() || len(l.queue) >= maxQueue {
		return false
	}
	l.queue = append(l.queue, queued{m, r})
	l.bytes += size
	l.wake.Signal()
	return true
}

// maxQueue bounds the messages that wait for one upstream to read.
const maxQueue = 8192

// tell sends m, which is not a request, to the upstream if it is there. What
// finds no room is lost with a warning: the upstream has not read for long.
func (l *leg) tell(m *jsonrpc.Message) {
	l.s.mu.Lock()
	alive := l.attempt != nil && !l.attempt.ended
	room := alive && l.queueLocked(m, nil)
	l.s.mu.Unlock()
	if alive && !room {
		l.unread(m)
	}
}

// unread tells of a message that was lost because the queue was full.
func (l *leg) unread(m *jsonrpc.Message) {
	l.log.Log(l.s.ctx, l.firstIs(&l.deaf), "message dropped: the upstream does not read", "method", m.Method)
}

// writeLoop owns Send of a ready stream. It leaves the end to run, which learns
// the cause from Recv, unless only this direction is broken.
func (l *leg) writeLoop(a *attempt) {
	for {
		batch := l.next(a)
		if batch == nil {
			a.conn.Close() // after hangUp: everything is sent
			return
		}
		if jsonrpc.SendAll(a.conn, batch) != nil {
			select {
			case <-a.done:
			case <-time.After(time.Second):
				a.conn.Close()
			}
			return
		}
	}
}

// next waits for messages to the upstream and takes them all; nil at the end, and
// after hangUp when there are no more. From here on their requests count as sent.
func (l *leg) next(a *attempt) []*jsonrpc.Message {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for {
		for len(l.queue) == 0 && !a.ended && !l.closed {
			l.wake.Wait()
		}
		if a.ended || len(l.queue) == 0 {
			return nil
		}
		batch := make([]*jsonrpc.Message, 0, len(l.queue))
		for _, q := range l.queue {
			if q.r != nil && l.pending[q.r.n] != q.r {
				continue
			}
			if q.r != nil {
				q.r.sent = true
			}
			batch = append(batch, q.m)
		}
		clear(l.queue)
		l.queue, l.bytes = l.queue[:0], 0
		if len(batch) > 0 {
			return batch
		}
	}
}
