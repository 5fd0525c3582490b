package jsonrpc

import (
	"io"
	"sync"
	"time"
)

// pipeRoom bounds what a Pipe holds in each direction. When it is full, Send waits. One message may
// exceed it.
var pipeRoom = Room{Messages: 64, Bytes: 256 << 10}

// A PipeConn is one end of a [Pipe].
type PipeConn struct {
	in, out *pipeHalf
}

// pipeHalf is one direction of a pipe.
type pipeHalf struct {
	mu    sync.Mutex // guards the fields below
	queue *Queue
	room  Room
	ended bool  // the sender sends no more
	cause error // one of the sides has closed; is ErrClosed or wraps it
}

func newPipeHalf() *pipeHalf {
	h := &pipeHalf{room: pipeRoom}
	h.queue = NewQueue(&h.mu)
	return h
}

// end makes the receiver get io.EOF after the messages that were sent.
func (h *pipeHalf) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.queue.Finish(io.EOF, 0, nil)
}

// close makes the receiver get cause after the messages that were sent.
func (h *pipeHalf) close(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil {
		h.cause = cause
		h.queue.Finish(cause, 0, nil)
	}
}

func (h *pipeHalf) send(messages []*Message) error {
	if len(messages) == 1 && h.queue.Pass(Queued{Message: messages[0]}) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		if h.queue.Wait(&h.room, 1) != nil || h.queue.Force(Queued{Message: m, Room: &h.room}) != nil {
			return ErrClosed
		}
	}
	return nil
}

// sendNow is SendNow of [Prompt].
func (h *pipeHalf) sendNow(m Queued) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queue.Err() != nil || !h.queue.Roomy(&h.room, 1) {
		return false
	}
	if m.Leave() {
		_ = h.queue.Force(Queued{Message: m.Message, Room: &h.room})
	}
	return true
}

// over returns the error of Recv at the end.
func (h *pipeHalf) over() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil {
		return io.EOF
	}
	return h.cause
}

// Pipe returns two connected Conns in memory. Recv of one returns the very Message that the other
// one sent. After one closes, the other still receives what was sent before.
func Pipe() (*PipeConn, *PipeConn) {
	ab, ba := newPipeHalf(), newPipeHalf()
	return &PipeConn{in: ba, out: ab}, &PipeConn{in: ab, out: ba}
}

// Recv implements [Conn].
func (c *PipeConn) Recv() (*Message, error) {
	m, err := c.in.queue.Next()
	if err != nil {
		return nil, c.in.over()
	}
	return m, nil
}

// Take is [RecvAll]. Like PutAll, PutNow, HandleWith and RestFor it has a name of its own, because a Conn that wraps a
// PipeConn and changes Recv or Send must not inherit these.
func (c *PipeConn) Take(batch []*Message) ([]*Message, error) {
	batch, err := c.in.queue.Take(batch)
	if err != nil {
		err = c.in.over()
	}
	return batch, err
}

// Send implements [Conn].
func (c *PipeConn) Send(m *Message) error { return c.out.send([]*Message{m}) }

// PutAll is [SendAll].
func (c *PipeConn) PutAll(messages []*Message) error { return c.out.send(messages) }

// PutNow is SendNow of [Prompt].
func (c *PipeConn) PutNow(m Queued) bool { return c.out.sendNow(m) }

// HandleWith is OnSend of [Direct].
func (c *PipeConn) HandleWith(handle func(*Message) bool) { c.in.queue.OnPass(handle) }

// RestFor is Rest of [Resting], and waits so long.
func (c *PipeConn) RestFor(wait time.Duration, resume func()) bool {
	return c.in.queue.rest(wait, resume)
}

// CloseWrite is a half-close: the other side receives io.EOF and may still send.
func (c *PipeConn) CloseWrite() { c.out.end() }

// Close implements [Conn].
func (c *PipeConn) Close() error { return c.CloseCause(nil) }

// CloseCause is Close with the error that the other side's Recv then returns, after the messages
// that were sent before; see [CloseWith].
func (c *PipeConn) CloseCause(cause error) error {
	c.in.close(ErrClosed)
	c.out.close(Closed(cause))
	return nil
}
