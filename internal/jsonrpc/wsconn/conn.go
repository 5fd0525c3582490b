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

// A Config configures a [Conn]. The zero value is ready to use.
type Config struct {
	Limits jsonrpc.Limits

	// Ping is the period of pings; zero means 20 s. A peer that sends nothing for two of them is gone. Time in which
	// this process was stopped does not count.
	Ping time.Duration

	// Slots bound the messages over 64 KiB that are received at the same time, and so the memory that they take. Nil:
	// no bound.
	Slots jsonrpc.Slots

	// LargeTimeout bounds the time for such a message; zero means a minute.
	LargeTimeout time.Duration

	// WriteTimeout bounds the time in which the peer must take 256 KiB; zero means 30 s.
	WriteTimeout time.Duration
}

const (
	defaultPing         = 20 * time.Second
	defaultLargeTimeout = time.Minute
	defaultWriteTimeout = 30 * time.Second
	largeMessage        = 64 << 10
	readBuffer          = 1 << 10 // kept by an idle Conn; longer messages bypass it
)

// A Conn is a [jsonrpc.Conn] on a WebSocket. It has no goroutine; a timer sends pings.
type Conn struct {
	framer

	// Static after construction.
	limits   jsonrpc.Limits
	slots    jsonrpc.Slots // nil for no bound
	within   time.Duration
	ping     time.Duration
	timer    *time.Timer // runs tick, which alone uses watchdog and sending
	watchdog jsonrpc.Watchdog
	sending  time.Time // when the last tick was that found a Send in progress
	opened   time.Time

	heard atomic.Int64 // when the peer last sent something, in nanoseconds after opened

	gone       chan struct{} // closed by Close
	closing    sync.Once
	reading    sync.Mutex // held by Recv; guards the field below
	peerClosed bool       // the peer sent a close frame
}

// newConn makes a Conn of an upgraded connection.
func (cfg Config) newConn(frames *websocket.Conn, socket net.Conn, client bool) *Conn {
	c := &Conn{
		limits: cfg.Limits, slots: cfg.Slots, within: cmp.Or(cfg.LargeTimeout, defaultLargeTimeout),
		ping: cmp.Or(cfg.Ping, defaultPing), opened: time.Now(), gone: make(chan struct{}),
	}
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

// scratch buffers are used only while a message arrives.
var scratch = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// readAll reads r to the end. Most messages fit the scratch buffer, and are copied out of it.
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
			// One byte more than the limit, to read the end.
			text = append(make([]byte, 0, min(2*len(text), max(len(buf), c.limits.MaxMessage())+1)), text...)
		}
	}
}

// enter waits for a slot for the current message, and bounds the time for the rest of it.
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

// timedOut reports whether a read missed its deadline. gorilla does not wrap that error.
func timedOut(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}

// setReadDeadline sets a deadline, but keeps that of Close.
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

// onClose is called by NextReader. It answers with the peer's code, and closes the socket for writing, so that the
// peer's Close need not wait for ours.
func (c *Conn) onClose(code int, _ string) error {
	c.peerClosed = true
	c.end(&CloseError{code})
	c.sendClose(websocket.FormatCloseMessage(code, ""))
	if s, ok := c.socket.(interface{ CloseWrite() error }); ok {
		s.CloseWrite()
	}
	return nil
}

// tick pings the peer, or ends the connection if the peer is silent. While a Send is in progress there is no ping to
// answer, and the deadline of the write counts.
func (c *Conn) tick() {
	if c.err() != nil {
		return
	}
	now, free := time.Now(), c.writing.TryLock()
	if !free {
		c.sending = now
	}
	wait := c.watchdog.Look(now, min(now.Sub(c.opened)-time.Duration(c.heard.Load()), now.Sub(c.sending)))
	if free {
		if wait > 0 {
			c.write(c.appendFrame(nil, websocket.PingMessage, nil))
		}
		c.doneWriting()
	}
	if wait == 0 {
		c.end(ErrSilent)
		c.abort()
		return
	}
	c.timer.Reset(wait)
	if c.err() != nil { // Close may have stopped the timer just before
		c.timer.Stop()
	}
}

// Send implements [jsonrpc.Conn].
func (c *Conn) Send(m *jsonrpc.Message) error { return c.SendAll([]*jsonrpc.Message{m}) }

// SendAll sends messages, and combines small ones into one write.
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
		if len(buf) == 0 {
			if large, err := c.writeLarge(m); err != nil {
				return err
			} else if large {
				continue
			}
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

// Transport returns the name of the transport.
func (c *Conn) Transport() string { return "websocket" }

// PolicyViolation is the close code for a peer that may not go on.
const PolicyViolation = websocket.ClosePolicyViolation

// CloseAs sets the close frame of a following Close: a code, and a reason of at most 123 bytes.
func (c *Conn) CloseAs(code int, reason string) {
	message := websocket.FormatCloseMessage(code, reason)
	c.closeAs.Store(&message)
}

// Close implements [jsonrpc.Conn]. It unblocks Recv and Send at once, and waits at most a second for the peer to close.
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
	c.sendClose(c.closeMessage())
	c.reading.Lock()
	defer c.reading.Unlock()
	// Closing a socket with unread input resets the connection, and the peer could lose our last frames. So the input
	// is read to the end. (TCP, TLS and Unix sockets have CloseWrite.)
	if s, ok := c.socket.(interface{ CloseWrite() error }); ok && !c.peerClosed && s.CloseWrite() == nil {
		c.socket.SetReadDeadline(deadline)
		io.Copy(io.Discard, c.socket)
	}
	c.socket.Close()
}
