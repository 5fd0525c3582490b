package wsconn

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const (
	carrierBuffer   = 16 << 10   // for reading
	maxCarrierFrame = 1 << 20    // bytes of one frame; a larger Write is split
	carrierPiece    = largeWrite // bytes of a frame in one write; a multiple of eight, for mask
)

// A carrier is a byte stream in the binary frames of a WebSocket. Frame boundaries mean nothing, but each Write makes a
// frame, so the caller writes large pieces. A carrier has no deadlines and sends no pings: its user finds out that the
// peer is dead, and closes it.
type carrier struct {
	framer

	closing sync.Once
	reading sync.Mutex // held by Read; guards the field below
	frame   io.Reader  // rest of the current frame; nil between frames
}

func newCarrier(frames *websocket.Conn, socket net.Conn, client bool) *carrier {
	c := &carrier{}
	c.frames, c.socket, c.masks = frames, socket, client
	frames.SetReadLimit(maxCarrierFrame)
	frames.SetPingHandler(c.onPing)
	frames.SetCloseHandler(c.onClose)
	return c
}

// Read implements net.Conn. It returns io.EOF when the peer has closed the WebSocket.
func (c *carrier) Read(p []byte) (n int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for n == 0 && len(p) > 0 && err == nil {
		if err = c.nextFrame(); err != nil {
			break
		}
		n, err = c.frame.Read(p)
		if err == io.EOF {
			c.frame, err = nil, nil
		}
		if err != nil {
			err = c.failed(err)
		}
	}
	if n > 0 || err == nil {
		return n, nil
	}
	if err = c.err(); errors.Is(err, io.EOF) {
		return 0, io.EOF
	}
	return 0, err
}

// nextFrame waits for a frame, unless one is being read. If it fails the carrier has ended.
func (c *carrier) nextFrame() error {
	if err := c.err(); err != nil {
		return err
	}
	if c.frame != nil {
		return nil
	}
	kind, r, err := c.frames.NextReader()
	if err != nil {
		return c.failed(err)
	}
	if kind != websocket.BinaryMessage {
		return c.reject(websocket.CloseUnsupportedData, errText)
	}
	c.frame = r
	return nil
}

// onClose is called by NextReader.
func (c *carrier) onClose(code int, _ string) error {
	if code == websocket.CloseNormalClosure || code == websocket.CloseGoingAway {
		c.end(io.EOF)
	} else {
		c.end(&CloseError{code})
	}
	c.sendClose(websocket.FormatCloseMessage(code, ""))
	return nil
}

// Write implements net.Conn.
func (c *carrier) Write(p []byte) (n int, err error) {
	buf := writeBuffers.Get().(*[]byte)
	defer writeBuffers.Put(buf)
	c.writing.Lock()
	defer c.doneWriting()
	for frame := range slices.Chunk(p, maxCarrierFrame) {
		if err := c.err(); err != nil {
			return n, err
		}
		if err := c.writeFrame(frame, buf); err != nil {
			return n, err
		}
		n += len(frame)
	}
	return n, c.err()
}

// writeFrame writes a frame with the payload p. It masks a copy in buf, because p is the caller's.
func (c *carrier) writeFrame(p []byte, buf *[]byte) error {
	var space [14]byte
	header := c.appendHeader(space[:0], websocket.BinaryMessage, len(p))
	b := append((*buf)[:0], header...)
	for piece := range slices.Chunk(p, carrierPiece) {
		start := len(b)
		b = append(b, piece...)
		c.mask(b[start:], header)
		if err := c.write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	*buf = b
	return nil
}

// Close implements net.Conn. Read and Write return at once. It sends a close frame if no Write is in progress, and does
// not wait for the peer's.
func (c *carrier) Close() error {
	c.closing.Do(func() {
		c.end(net.ErrClosed)
		c.socket.SetReadDeadline(time.Unix(1, 0))
		if c.writing.TryLock() {
			c.sendCloseLocked(c.closeMessage())
			c.writing.Unlock()
		}
		c.abort()
	})
	return nil
}

func (c *carrier) LocalAddr() net.Addr              { return c.socket.LocalAddr() }
func (c *carrier) RemoteAddr() net.Addr             { return c.socket.RemoteAddr() }
func (c *carrier) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *carrier) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *carrier) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
