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
func (u *upstreamConn) queueLocked(m *jsonrpc.Message, r *request) bool {
	size := m.Size()
	if len(u.queue) > 0 && u.bytes+size > u.s.p.queueBytes() || len(u.queue) >= maxQueue {
		return false
	}
	u.queue = append(u.queue, queued{m, r})
	u.bytes += size
	u.wake.Signal()
	return true
}

// maxQueue bounds the messages that wait for one upstream to read.
const maxQueue = 8192

// tell sends m, which is not a request, to the upstream if it is there. What
// finds no room is lost with a warning: the upstream has not read for long.
func (u *upstreamConn) tell(m *jsonrpc.Message) {
	u.s.mu.Lock()
	alive := u.attempt != nil && !u.attempt.ended
	room := alive && u.queueLocked(m, nil)
	u.s.mu.Unlock()
	if alive && !room {
		u.unread(m)
	}
}

// unread tells of a message that was lost because the queue was full.
func (u *upstreamConn) unread(m *jsonrpc.Message) {
	u.log.Log(u.s.ctx, firstIs(&u.deaf), "message dropped: the upstream does not read", "method", m.Method)
}

// writeLoop owns Send of a ready stream. It leaves the end to run, which learns
// the cause from Recv, unless only this direction is broken.
func (u *upstreamConn) writeLoop(a *attempt) {
	for {
		batch := u.next(a)
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
func (u *upstreamConn) next(a *attempt) []*jsonrpc.Message {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	for {
		for len(u.queue) == 0 && !a.ended && !u.closed {
			u.wake.Wait()
		}
		if a.ended || len(u.queue) == 0 {
			return nil
		}
		batch := make([]*jsonrpc.Message, 0, len(u.queue))
		for _, q := range u.queue {
			if q.r != nil && u.pending[q.r.n] != q.r {
				continue
			}
			if q.r != nil {
				q.r.markSentLocked(q.m.Method)
			}
			batch = append(batch, q.m)
		}
		clear(u.queue)
		u.queue, u.bytes = u.queue[:0], 0
		if len(batch) > 0 {
			return batch
		}
	}
}
