package frontend

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// largeWrite is how many bytes of messages go out with one write, and the largest
// buffer that is used again.
const largeWrite = 64 << 10

// writePiece is how many bytes a client must take within the write timeout, so
// that a huge message may take longer on a slow line.
const writePiece = 256 << 10

// A write buffer is needed only while messages go out.
var writeBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Send implements [jsonrpc.Conn].
func (c *wsConn) Send(m *jsonrpc.Message) error { return c.SendAll([]*jsonrpc.Message{m}) }

// SendAll sends messages, as many with one write as make up a large one.
func (c *wsConn) SendAll(messages []*jsonrpc.Message) error {
	pooled := writeBuffers.Get().(*[]byte)
	defer writeBuffers.Put(pooled)
	c.writing.Lock()
	defer c.doneWriting()
	buf := (*pooled)[:0]
	for i, m := range messages {
		if err := c.err(); err != nil {
			return err
		}
		buf = appendMessage(buf, m)
		if len(buf) < largeWrite && i < len(messages)-1 {
			continue
		}
		if err := c.write(buf); err != nil {
			return err
		}
		buf = buf[:0]
	}
	if cap(buf) <= largeWrite {
		*pooled = buf
	}
	return nil
}

// write writes whole frames. Who calls it holds writing.
func (c *wsConn) write(frames []byte) error {
	for piece := range slices.Chunk(frames, writePiece) {
		c.socket.SetWriteDeadline(time.Now().Add(c.writeTimeout))
		if c.err() != nil { // so soon that sayBye's deadline may just have been undone
			c.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
		}
		if _, err := c.socket.Write(piece); err != nil {
			c.saidBye.Store(true) // the frame that broke off is never continued
			c.socket.Close()      // unblocks Recv
			return c.end(err)
		}
	}
	return nil
}

// doneWriting gives writing back, after the answer to a ping that came while it
// was held. Whoever gives it back looks once more, so no ping is overlooked.
func (c *wsConn) doneWriting() {
	for {
		if payload := c.pong.Swap(nil); payload != nil && !c.saidBye.Load() {
			c.write(appendFrame(nil, websocket.PongMessage, *payload))
		}
		c.writing.Unlock()
		if c.pong.Load() == nil || !c.writing.TryLock() {
			return
		}
	}
}

// sayBye writes a close frame, unless one was written. The connection has ended:
// a Send that is in the way is given up after the time for a close.
func (c *wsConn) sayBye(code int) {
	c.socket.SetWriteDeadline(time.Now().Add(closeTimeout))
	c.writing.Lock()
	defer c.doneWriting()
	if !c.saidBye.Swap(true) {
		c.write(appendFrame(nil, websocket.CloseMessage, websocket.FormatCloseMessage(code, "")))
	}
}

// appendMessage appends m as a text frame. Most messages need the middle one of
// the three forms of a header, so room is left for that.
func appendMessage(b []byte, m *jsonrpc.Message) []byte {
	const usual = 4
	start := len(b)
	b = append(slices.Grow(b, m.Size()), make([]byte, usual)...)
	b = m.Append(b)
	var header [10]byte
	head := appendHeader(header[:0], websocket.TextMessage, len(b)-start-usual)
	return slices.Replace(b, start, start+usual, head...)
}

func appendFrame(b []byte, opcode int, payload []byte) []byte {
	return append(appendHeader(b, opcode, len(payload)), payload...)
}

// appendHeader appends the header of a frame that is a whole message and, as all
// from a server, not masked (RFC 6455, section 5.2).
func appendHeader(b []byte, opcode, size int) []byte {
	const final = 0x80
	b = append(b, final|byte(opcode))
	switch {
	case size < 126:
		return append(b, byte(size))
	case size < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 126), uint16(size))
	}
	return binary.BigEndian.AppendUint64(append(b, 127), uint64(size))
}
