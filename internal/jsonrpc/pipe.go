package jsonrpc

import (
	"io"
	"sync"
)

// pipeDepth is how many messages a Pipe holds in each direction. When it is full, Send blocks.
const pipeDepth = 64

// A PipeConn is one end of a [Pipe].
type PipeConn struct {
	in, out *pipeHalf
}

// pipeHalf is one direction of a pipe.
type pipeHalf struct {
	messages chan *Message // never closed
	ended    chan struct{} // closed by end: the sender sends no more
	closed   chan struct{} // closed by close: one of the sides has closed

	cause error // of closed; is ErrClosed or wraps it

	endOnce, closeOnce sync.Once
}

func newPipeHalf() *pipeHalf {
	return &pipeHalf{messages: make(chan *Message, pipeDepth), ended: make(chan struct{}), closed: make(chan struct{})}
}

func (h *pipeHalf) end() { h.endOnce.Do(func() { close(h.ended) }) }
func (h *pipeHalf) close(cause error) {
	h.closeOnce.Do(func() {
		h.cause = cause
		close(h.closed)
	})
}

// Pipe returns two connected Conns in memory. Recv of one returns the very Message that the other
// one sent. After one closes, the other still receives what was sent before.
func Pipe() (*PipeConn, *PipeConn) {
	ab, ba := newPipeHalf(), newPipeHalf()
	return &PipeConn{in: ba, out: ab}, &PipeConn{in: ab, out: ba}
}

// Recv implements [Conn].
func (c *PipeConn) Recv() (*Message, error) {
	select { // messages sent before the end come first
	case m := <-c.in.messages:
		return m, nil
	default:
	}
	select {
	case m := <-c.in.messages:
		return m, nil
	case <-c.in.closed:
		return c.rest(c.in.cause)
	case <-c.in.ended:
		return c.rest(io.EOF)
	}
}

func (c *PipeConn) rest(end error) (*Message, error) {
	select {
	case m := <-c.in.messages:
		return m, nil
	default:
		return nil, end
	}
}

// Send implements [Conn].
func (c *PipeConn) Send(m *Message) error {
	select {
	case <-c.out.closed:
		return ErrClosed
	case <-c.out.ended:
		return ErrClosed
	default:
	}
	select {
	case c.out.messages <- m:
		return nil
	case <-c.out.closed:
		return ErrClosed
	}
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
