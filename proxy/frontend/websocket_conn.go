package frontend

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// Why a WebSocket ended, besides what the kernel and gorilla say.
var (
	errSilent = errors.New("no answer to pings")
	errBinary = errors.New("binary frame")
	errUTF8   = errors.New("text frame is not UTF-8")
)

// A wsConn is one client on a WebSocket. gorilla reads the frames; they are
// written here, so that messages that are ready together go out with one write,
// without a buffer for each client. The only frames that gorilla writes are close
// frames, after which a half-written message matters no more.
//
// It has no goroutine. Pings come from a timer.
type wsConn struct {
	// Static after construction.
	frames       *websocket.Conn
	socket       net.Conn // below frames
	limits       jsonrpc.Limits
	ping         time.Duration
	writeTimeout time.Duration
	timer        *time.Timer // runs tick

	ended   atomic.Pointer[error]  // the first reason, set once
	heard   atomic.Bool            // something came since the last tick
	saidBye atomic.Bool            // a close frame was written, or none can be: nothing may follow
	pong    atomic.Pointer[[]byte] // what is to be answered to the last ping

	closing sync.Once
	writing sync.Mutex // held across every write
	reading sync.Mutex // held by Recv; guards the field below
	goodbye bool       // the client sent a close frame

	quiet int // owned by tick: how many ticks in a row heard nothing
}

// end records why the connection ended, unless that is known, and returns what
// is.
func (c *wsConn) end(cause error) error {
	err := jsonrpc.Closed(cause)
	c.ended.CompareAndSwap(nil, &err)
	return *c.ended.Load()
}

func (c *wsConn) err() error {
	if err := c.ended.Load(); err != nil {
		return *err
	}
	return nil
}

// Recv implements [jsonrpc.Conn].
func (c *wsConn) Recv() (*jsonrpc.Message, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if err := c.err(); err != nil {
		return nil, err
	}
	kind, r, err := c.frames.NextReader()
	if err != nil {
		return nil, c.failed(err)
	}
	if kind != websocket.TextMessage {
		return nil, c.reject(websocket.CloseUnsupportedData, errBinary)
	}
	text, err := c.readAll(r)
	if err != nil {
		return nil, c.failed(err)
	}
	m, err := c.limits.Decode(text)
	if err != nil && !utf8.Valid(text) {
		return nil, c.reject(websocket.CloseInvalidFramePayloadData, errUTF8)
	}
	return m, err
}

// failed ends the connection because of gorilla's err. If that was a matter of
// the protocol, gorilla has told the client.
func (c *wsConn) failed(err error) error {
	if c.err() == nil {
		c.saidBye.Store(true)
	}
	return c.end(err)
}

// A scratch buffer is needed only while a message arrives.
var scratch = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// readAll returns what r holds. Most messages fit the scratch buffer and are
// copied out of it in their true size.
func (c *wsConn) readAll(r io.Reader) ([]byte, error) {
	buf := scratch.Get().(*[4 << 10]byte)
	defer scratch.Put(buf)
	text := buf[:0]
	for {
		n, err := r.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		c.heard.Store(true)
		switch {
		case err == io.EOF && cap(text) == len(buf):
			return bytes.Clone(text), nil
		case err == io.EOF:
			return text, nil
		case err != nil:
			return nil, err
		case len(text) == cap(text):
			// One byte past the limit is where the end is read.
			text = append(make([]byte, 0, min(2*len(text), max(len(buf), c.limits.MaxMessage())+1)), text...)
		}
	}
}

// reject ends the connection because of what the client sent.
func (c *wsConn) reject(code int, cause error) error {
	err := c.end(cause)
	c.sayBye(code)
	return err
}

// onPing is called by NextReader. Recv must not wait for a Send that waits for a
// slow client, so it leaves the answer to that Send.
func (c *wsConn) onPing(data string) error {
	payload := []byte(data)
	c.pong.Store(&payload)
	if c.writing.TryLock() {
		c.doneWriting()
	}
	return nil
}

func (c *wsConn) onPong(string) error {
	c.heard.Store(true)
	return nil
}

// onClose is called by NextReader. The answer carries the client's own code.
func (c *wsConn) onClose(code int, _ string) error {
	c.goodbye = true
	c.end(&websocket.CloseError{Code: code})
	c.sayBye(code)
	return nil
}

// tick pings the client, or gives it up.
func (c *wsConn) tick() {
	if c.err() != nil {
		return
	}
	if c.heard.Swap(false) {
		c.quiet = 0
	} else {
		c.quiet++
	}
	if c.quiet == 2 {
		c.end(errSilent)
		c.socket.Close()
		return
	}
	if c.writing.TryLock() { // a Send in the way has a deadline of its own
		c.write(appendFrame(nil, websocket.PingMessage, nil))
		c.doneWriting()
	}
	c.timer.Reset(c.ping)
	if c.err() != nil { // Close may have stopped the timer just before
		c.timer.Stop()
	}
}

// Close implements [jsonrpc.Conn]. It waits at most a second for the client to
// take leave.
func (c *wsConn) Close() error {
	c.closing.Do(c.close)
	return nil
}

func (c *wsConn) close() {
	c.end(nil)
	c.timer.Stop()
	deadline := time.Now().Add(closeTimeout)
	c.socket.SetReadDeadline(time.Unix(1, 0)) // Recv returns
	c.sayBye(websocket.CloseGoingAway)
	c.reading.Lock()
	defer c.reading.Unlock()
	// Closing a socket that holds unread input resets the connection, and the
	// client could lose what was sent last. So its input is taken to the end.
	if s, ok := c.socket.(closeWriter); ok && !c.goodbye && s.CloseWrite() == nil {
		s.SetReadDeadline(deadline)
		io.Copy(io.Discard, s)
	}
	c.socket.Close()
}

// closeWriter is what TCP, TLS and Unix sockets can: say that no more comes.
type closeWriter interface {
	net.Conn
	CloseWrite() error
}
