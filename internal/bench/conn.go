package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The protocol versions that clients here speak: with a session, and without.
const (
	revision = "2025-11-25"
	modern   = "2026-07-28"
)

// A conn is one connection of a client. Its one caller writes its requests and reads the
// answers itself, which costs the least; of several at a time, readLoop brings them the answers.
type conn struct {
	// Static after construction.
	wire   wire
	w      io.WriteCloser
	modern bool   // its requests say all of themselves, and there is no session
	prefix string // of the names of tools
	whole  bool   // answers are wanted with their messages
	// several says that readLoop runs.
	several bool

	r *bufio.Reader // owned by readLoop, if that runs

	writing sync.Mutex // guards framed, and writes to w
	framed  []byte

	mu       sync.Mutex // guards the fields below; not held while writing
	inFlight map[int]chan<- answer
	err      error // why readLoop ended
}

// An answer is what became of a request.
type answer struct {
	size    int    // of the message
	message []byte // if that is wanted
	err     error
}

// ample is the read buffer of a client whose speed is measured.
const ample = 64 << 10

func newConn(w wire, r io.Reader, wc io.WriteCloser, buffer int) *conn {
	return &conn{wire: w, r: bufio.NewReaderSize(r, buffer), w: wc, inFlight: map[int]chan<- answer{}}
}

// dialTCP connects to a server on this machine.
func dialTCP(addr string) (net.Conn, error) {
	return net.DialTimeout("tcp", addr, 5*time.Second)
}

// dialWebSocket returns a conn to the WebSocket endpoint of a proxy.
func dialWebSocket(addr, path string, buffer int) (*conn, error) {
	nc, err := dialTCP(addr)
	if err != nil {
		return nil, err
	}
	c := newConn(&wsWire{}, nc, nc, buffer)
	_, err = io.WriteString(nc, "GET "+path+" HTTP/1.1\r\nHost: "+addr+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
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

// dialHTTP returns a conn to the Streamable HTTP endpoint of the proxy at addr.
func dialHTTP(addr string) (*conn, error) {
	nc, err := dialTCP(addr)
	if err != nil {
		return nil, err
	}
	return newConn(&httpWire{host: addr}, nc, nc, ample), nil
}

// another returns one more conn for the client of c, whose wire is w.
func (c *conn) another(w *httpWire, buffer int) (*conn, error) {
	nc, err := dialTCP(w.host)
	if err != nil {
		return nil, err
	}
	wire := *w
	wire.body = nil
	another := newConn(&wire, nc, nc, buffer)
	another.modern, another.prefix, another.whole, another.several = c.modern, c.prefix, c.whole, c.several
	return another, nil
}

// dialModern is dialHTTP for a client without a session.
func dialModern(addr string) (*conn, error) {
	c, err := dialHTTP(addr)
	if err != nil {
		return nil, err
	}
	c.modern, c.wire.(*httpWire).modern = true, true
	return c, nil
}

// send writes one message. If it is a request, its answer goes to the channel,
// which has room for it.
func (c *conn) send(msg []byte, id int, to chan<- answer) error {
	if to != nil {
		if err := c.expect(id, to); err != nil {
			return err
		}
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	c.framed = c.wire.frame(c.framed[:0], msg)
	_, err := c.w.Write(c.framed)
	return err
}

func (c *conn) expect(id int, to chan<- answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.inFlight[id] = to
	return nil
}

// readLoop delivers answers until the connection ends, which is then the answer
// to all that is in flight.
func (c *conn) readLoop() {
	for {
		id, a, err := c.read()
		if err != nil {
			c.fail(err)
			return
		}
		c.settle(id, a)
	}
}

// read returns the next answer.
func (c *conn) read() (id int, a answer, err error) {
	for {
		m, err := c.wire.next(c.r)
		if err != nil {
			return 0, answer{}, fmt.Errorf("waiting for an answer: %w", err)
		}
		if id, a, ok := parseAnswer(m); ok {
			if c.whole {
				a.message = bytes.Clone(m)
			}
			return id, a, nil
		}
	}
}

// ask sends a request and returns its answer.
func (c *conn) ask(msg []byte, id int, to chan answer) (answer, error) {
	if c.several {
		if err := c.send(msg, id, to); err != nil {
			return answer{}, err
		}
		return <-to, nil
	}
	if err := c.send(msg, id, nil); err != nil {
		return answer{}, err
	}
	for {
		if got, a, err := c.read(); err != nil || got == id {
			return a, err
		}
	}
}

func (c *conn) settle(id int, a answer) {
	c.mu.Lock()
	to := c.inFlight[id]
	delete(c.inFlight, id)
	c.mu.Unlock()
	if to != nil {
		to <- a
	}
}

func (c *conn) fail(err error) {
	c.mu.Lock()
	c.err = err
	lost := c.inFlight
	c.inFlight = nil
	c.mu.Unlock()
	for _, to := range lost {
		to <- answer{err: err}
	}
}

// parseAnswer reads as little of m as it can; ok is false for what is no answer. The id
// comes first, or last.
func parseAnswer(m []byte) (id int, a answer, ok bool) {
	head := m[:min(len(m), 128)]
	if bytes.Contains(head, []byte(`"method":`)) {
		return 0, answer{}, false
	}
	_, rest, found := bytes.Cut(head, []byte(`"id":`))
	if !found {
		_, rest, found = cutLast(m[max(0, len(m)-64):], []byte(`"id":`))
	}
	if !found {
		return 0, answer{}, false
	}
	end := bytes.IndexAny(rest, ",}")
	id, err := strconv.Atoi(string(rest[:max(end, 0)]))
	if err != nil {
		return 0, answer{}, false
	}
	if !bytes.Contains(head, []byte(`"result":`)) {
		return id, answer{err: fmt.Errorf("not a result: %.300q", m)}, true
	}
	return id, answer{size: len(m)}, true
}

// cutLast is bytes.Cut around the last sep.
func cutLast(s, sep []byte) (before, after []byte, found bool) {
	if i := bytes.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, nil, false
}

// A caller makes one request after another.
type caller struct {
	conn   *conn
	nextID func() int // ids differ within a session
	msg    []byte
	answer chan answer // from readLoop, has room for one; never closed
}

func (c *conn) caller(nextID func() int) *caller {
	return &caller{conn: c, nextID: nextID, answer: make(chan answer, 1)}
}

// initialize opens the MCP session, or asks what there is without one.
func (c *caller) initialize() error {
	if c.conn.modern {
		return c.request("server/discover", `{"of":"echo"}`, 0)
	}
	return c.request("initialize", `{"protocolVersion":"`+revision+
		`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`, 0)
}

// initialized tells the server that the client is ready.
func (c *caller) initialized() error {
	if c.conn.modern {
		return nil
	}
	return c.conn.send([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), 0, nil)
}

// padding, a tool's arguments, makes a call's message about 300 bytes long, and so its answer.
var padding = `,"arguments":{"text":"` + strings.Repeat("The quick brown fox. ", 10) + `"}}`

// call calls a tool whose result has size bytes, or is as long as padding.
func (c *caller) call(size int) error { return c.callTool(c.conn.prefix+"echo", size) }

func (c *caller) callTool(name string, size int) error {
	return c.request("tools/call", called(name, size), size)
}

// called has the params of a call.
func called(name string, size int) string {
	if size > 0 {
		return `{"name":"` + name + `","arguments":{"size":` + strconv.Itoa(size) + `}}`
	}
	return `{"name":"` + name + `"` + padding
}

// said begins the params of a request without a session.
const said = `{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + modern +
	`","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},`

var errShort = errors.New("the answer is too short")

func (c *caller) request(method, params string, size int) error {
	id := c.nextID()
	c.compose(id, method, params)
	a, err := c.conn.ask(c.msg, id, c.answer)
	if err != nil {
		return err
	}
	if a.err != nil {
		return refused{a}
	}
	if a.size < size {
		return errShort
	}
	return nil
}

// compose writes a request to msg.
func (c *caller) compose(id int, method, params string) {
	m := append(c.msg[:0], `{"jsonrpc":"2.0","id":`...)
	m = strconv.AppendInt(m, int64(id), 10)
	m = append(m, `,"method":"`...)
	m = append(m, method...)
	m = append(m, `","params":`...)
	if c.conn.modern {
		m = append(m, said...)
		params = params[1:]
	}
	c.msg = append(append(m, params...), '}')
}

// refused is an answer that is an error, as one.
type refused struct{ answer }

func (r refused) Error() string { return r.err.Error() }

func (r refused) Unwrap() error { return r.err }
