package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// revision is the protocol version that all clients here speak.
const revision = "2025-11-25"

// A conn is one connection of a client that keeps count of nothing: the calls
// that it makes differ in their ids only. One goroutine uses it.
type conn struct {
	wire wire
	r    *bufio.Reader
	w    io.WriteCloser
	out  []byte // framed messages that wait for flush
	msg  []byte
	id   int
}

func newConn(w wire, r io.Reader, wc io.WriteCloser) *conn {
	return &conn{wire: w, r: bufio.NewReaderSize(r, 64<<10), w: wc}
}

// dialTCP connects to a server on this machine.
func dialTCP(addr string) (net.Conn, error) {
	return net.DialTimeout("tcp", addr, 5*time.Second)
}

// dialWebSocket returns a conn to the WebSocket endpoint of the proxy at addr.
func dialWebSocket(addr string) (*conn, error) {
	nc, err := dialTCP(addr)
	if err != nil {
		return nil, err
	}
	c := newConn(&wsWire{}, nc, nc)
	_, err = io.WriteString(nc, "GET /ws HTTP/1.1\r\nHost: "+addr+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mcp\r\n\r\n")
	if err != nil {
		return nil, err
	}
	head, err := new(httpWire).readHead(c.r)
	if err != nil {
		return nil, err
	}
	if head.status != 101 {
		return nil, fmt.Errorf("websocket handshake: status %d", head.status)
	}
	return c, nil
}

// dialHTTP returns a conn to the Streamable HTTP endpoint of the proxy at addr,
// in the given session.
func dialHTTP(addr, session string) (*conn, error) {
	nc, err := dialTCP(addr)
	if err != nil {
		return nil, err
	}
	return newConn(&httpWire{host: addr, session: session}, nc, nc), nil
}

// initialize opens the MCP session.
func (c *conn) initialize() error {
	c.message(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + revision +
		`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err := c.flush(); err != nil {
		return err
	}
	return c.answer(0)
}

// initialized tells the server that the client is ready.
func (c *conn) initialized() error {
	c.message(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if err := c.flush(); err != nil {
		return err
	}
	if _, ok := c.wire.(*httpWire); ok {
		_, err := c.wire.next(c.r) // 202
		return err
	}
	return nil
}

// padding makes a call's message about 300 bytes long, and so its answer.
var padding = strings.Repeat("The quick brown fox. ", 10)

// request queues a call whose answer has size bytes of text, or padding.
func (c *conn) request(size int) {
	c.id++
	m := append(c.msg[:0], `{"jsonrpc":"2.0","id":`...)
	m = strconv.AppendInt(m, int64(c.id), 10)
	m = append(m, `,"method":"tools/call","params":{"name":"echo","arguments":{`...)
	if size > 0 {
		m = append(m, `"size":`...)
		m = strconv.AppendInt(m, int64(size), 10)
	} else {
		m = append(m, `"text":"`+padding+`"`...)
	}
	c.msg = append(m, `}}}`...)
	c.out = c.wire.frame(c.out, c.msg)
}

func (c *conn) message(m string) {
	c.out = c.wire.frame(c.out, []byte(m))
}

func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.w.Write(c.out)
	c.out = c.out[:0]
	return err
}

// answer waits for the next result, which has at least size bytes, and passes
// over notifications.
func (c *conn) answer(size int) error {
	for {
		m, err := c.wire.next(c.r)
		if err != nil {
			return fmt.Errorf("waiting for an answer: %w", err)
		}
		head := m[:min(len(m), 128)]
		switch {
		case bytes.Contains(head, []byte(`"result":`)) && len(m) >= size:
			return nil
		case !bytes.Contains(head, []byte(`"method":`)):
			return fmt.Errorf("not an answer: %.300q", m)
		}
	}
}

// call makes one call and waits for its answer.
func (c *conn) call(size int) error {
	c.request(size)
	if err := c.flush(); err != nil {
		return err
	}
	return c.answer(size)
}

// pump keeps width calls in flight until deadline and returns how many were
// answered. What is queued while answers are still at hand leaves in one write.
func (c *conn) pump(width int, deadline time.Time) (answered int, err error) {
	for range width {
		c.request(0)
	}
	for inFlight := width; inFlight > 0; {
		if c.r.Buffered() == 0 {
			if err := c.flush(); err != nil {
				return answered, err
			}
		}
		if err := c.answer(0); err != nil {
			return answered, err
		}
		answered++
		if time.Now().Before(deadline) {
			c.request(0)
		} else {
			inFlight--
		}
	}
	return answered, nil
}

