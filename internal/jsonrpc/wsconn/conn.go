package wsconn

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Config is what a [Conn] is made with. The zero value is ready to use.
type Config struct {
	Limits jsonrpc.Limits

	// Ping is how often the peer is pinged; zero means 20 s. A peer that is
	// silent for two of these, without even a part of a message, is gone; time in which
	// this process was stopped does not count.
	Ping time.Duration

	// Slots are for messages over 64 KiB: what has come of one stays in memory until
	// the rest is there. Nil: there is no bound.
	Slots jsonrpc.Slots

	// LargeTimeout is how long such a message may take; zero means a minute.
	LargeTimeout time.Duration

	// WriteTimeout is how long the peer may take for 256 KiB before it is gone;
	// zero means 30 s.
	WriteTimeout time.Duration
}

const (
	defaultPing         = 20 * time.Second
	defaultLargeTimeout = time.Minute
	defaultWriteTimeout = 30 * time.Second
	largeMessage        = 64 << 10
	readBuffer          = 1 << 10 // kept by an idle Conn; longer messages are read past it
)

// A Conn is a [jsonrpc.Conn] on a WebSocket. It has no goroutine; pings come from
// a timer.
type Conn struct {
	framer

	// Static after construction.
	limits   jsonrpc.Limits
	slots    jsonrpc.Slots // nil for no bound
	within   time.Duration
	ping     time.Duration
	timer    *time.Timer // runs tick, which alone uses watchdog
	watchdog jsonrpc.Watchdog
	opened   time.Time

	heard atomic.Int64 // when something came last, in nanoseconds after opened

	gone       chan struct{} // closed by Close
	closing    sync.Once
	reading    sync.Mutex // held by Recv; guards the field below
	peerClosed bool       // the peer sent a close frame
}

// newConn makes a Conn of an upgraded connection.
func (cfg Config) newConn(frames *websocket.Conn, socket net.Conn, client bool) *Conn {
	c := &Conn{limits: cfg.Limits, slots: cfg.Slots, within: cmp.Or(cfg.LargeTimeout, defaultLargeTimeout),
		ping: cmp.Or(cfg.Ping, defaultPing), opened: time.Now(), gone: make(chan struct{})}
	c.frames, c.socket, c.masks = frames, socket, client
	c.writeTimeout = cmp.Or(cfg.WriteTimeout, defaultWriteTimeout)
	frames.SetReadLimit(int64(cfg.Limits.MaxMessage()))
	frames.SetPingHandler(c.onPing)
	frames.SetPongHandler(c.onPong)
	frames.SetCloseHandler(c.onClose)
	c.timer = time.AfterFunc(time.Hour, c.tick) // tick uses c.timer: it must be set before it runs
	c.watchdog = jsonrpc.Watchdog{Every: c.ping, Dead: 2 * c.ping}
	c.timer.Reset(c.watchdog.Look(c.opened, 0))
	return c
}

// Recv implements [jsonrpc.Conn]. There is no half-close: it never returns io.EOF.
func (c *Conn) Recv() (*jsonrpc.Message, error) {
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
	switch {
	case errors.Is(err, ErrNoSlot):
		return nil, c.reject(websocket.CloseTryAgainLater, err)
	case errors.Is(err, ErrSlow):
		return nil, c.reject(websocket.ClosePolicyViolation, err)
	case err != nil:
		return nil, c.failed(err)
	}
	m, err := c.limits.Decode(text)
	if err != nil && !utf8.Valid(text) {
		return nil, c.reject(websocket.CloseInvalidFramePayloadData, errUTF8)
	}
	return m, err
}

// A scratch buffer is needed only while a message arrives.
var scratch = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// readAll returns what r holds. Most messages fit the scratch buffer and are
// copied out of it in their true size.
func (c *Conn) readAll(r io.Reader) ([]byte, error) {
	buf := scratch.Get().(*[4 << 10]byte)
	defer scratch.Put(buf)
	text := buf[:0]
	for large := false; ; {
		if len(text) > largeMessage && !large && c.slots != nil {
			if large = c.enter(); !large {
				return nil, ErrNoSlot
			}
			defer c.leave()
		}
		n, err := r.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		c.hear()
		switch {
		case err == io.EOF && cap(text) == len(buf):
			return bytes.Clone(text), nil
		case err == io.EOF:
			return text, nil
		case large && timedOut(err) && c.err() == nil:
			return nil, ErrSlow
		case err != nil:
			return nil, err
		case len(text) == cap(text):
			// One byte past the limit is where the end is read.
			text = append(make([]byte, 0, min(2*len(text), max(len(buf), c.limits.MaxMessage())+1)), text...)
		}
	}
}

// enter waits for a place for the message that is being read. The rest of it has to come in
// time.
func (c *Conn) enter() bool {
	ok := c.slots.Enter(c.gone) == nil
	if ok {
		c.setReadDeadline(time.Now().Add(c.within))
	}
	return ok
}

func (c *Conn) leave() {
	c.setReadDeadline(time.Time{})
	c.slots.Leave()
}

// timedOut reports whether a deadline made a read fail. gorilla does not wrap that error.
func timedOut(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}

// setReadDeadline does not undo that of Close.
func (c *Conn) setReadDeadline(t time.Time) {
	c.socket.SetReadDeadline(t)
	if c.err() != nil {
		c.socket.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *Conn) onPing(data string) error {
	c.hear()
	return c.framer.onPing(data)
}

func (c *Conn) onPong(string) error {
	c.hear()
	return nil
}

func (c *Conn) hear() { c.heard.Store(int64(time.Since(c.opened))) }

// onClose is called by NextReader. The answer carries the peer's own code. Nothing
// follows it, so that the peer's Close need not wait for ours.
func (c *Conn) onClose(code int, _ string) error {
	c.peerClosed = true
	c.end(&CloseError{code})
	c.sendClose(goodbye{code: code})
	if s, ok := c.socket.(closeWriter); ok {
		s.CloseWrite()
	}
	return nil
}

// tick pings the peer, or gives it up.
func (c *Conn) tick() {
	if c.err() != nil {
		return
	}
	now := time.Now()
	wait := c.watchdog.Look(now, now.Sub(c.opened)-time.Duration(c.heard.Load()))
	if wait == 0 {
		c.end(ErrSilent)
		c.abort()
		return
	}
	if c.writing.TryLock() { // a Send under way has a deadline of its own
		c.write(c.appendFrame(nil, websocket.PingMessage, nil))
		c.doneWriting()
	}
	c.timer.Reset(wait)
	if c.err() != nil { // Close may have stopped the timer just before
		c.timer.Stop()
	}
}

// Send implements [jsonrpc.Conn].
func (c *Conn) Send(m *jsonrpc.Message) error { return c.SendAll([]*jsonrpc.Message{m}) }

// SendAll sends messages, as many with one write as make up a large one.
func (c *Conn) SendAll(messages []*jsonrpc.Message) error {
	pooled := writeBuffers.Get().(*[]byte)
	defer writeBuffers.Put(pooled)
	c.writing.Lock()
	defer c.doneWriting()
	buf := (*pooled)[:0]
	for i, m := range messages {
		if err := c.err(); err != nil {
			return err
		}
		buf = c.appendMessage(buf, m)
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

// Transport names what carries the messages.
func (c *Conn) Transport() string { return "websocket" }

// PolicyViolation is the code of a close frame for a peer that may not go on.
const PolicyViolation = websocket.ClosePolicyViolation

// CloseAs sets what Close, called next, tells the peer: a code, and a reason of at most
// 123 bytes.
func (c *Conn) CloseAs(code int, reason string) { c.goodbye.Store(&goodbye{code, reason}) }

// Close implements [jsonrpc.Conn]. It unblocks the others at once, and waits at
// most a second for the peer to close.
func (c *Conn) Close() error {
	c.closing.Do(c.close)
	return nil
}

func (c *Conn) close() {
	c.end(nil)
	close(c.gone)
	c.timer.Stop()
	deadline := time.Now().Add(closeTimeout)
	c.socket.SetReadDeadline(time.Unix(1, 0)) // Recv returns
	c.sendClose(c.lastWords())
	c.reading.Lock()
	defer c.reading.Unlock()
	// To close a socket that holds unread input resets the connection, and the
	// peer could lose what was sent last. So its input is read to the end.
	if s, ok := c.socket.(closeWriter); ok && !c.peerClosed && s.CloseWrite() == nil {
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
