package link

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// slack is added to the limit of a message. The proxy puts in ids and names,
	// which may be longer than those that came, and the next hop must not refuse
	// what the one before has accepted.
	slack = 4 << 10

	// lastTimeout is how long a closing line, and a Send before it, may wait
	// for room in the window of a proxy that does not read.
	lastTimeout = 5 * time.Second
)

// A conn is a stream after its hello, as messages. It is the proxy's end as it
// is; the host's end is a hostConn.
type conn struct {
	// Static after construction.
	stream *stream
	out    *jsonrpc.LineWriter
	limits jsonrpc.Limits // of a message that must be checked

	// Set before anybody can close c; may be nil.
	tells    bool   // it is a hostConn
	over     func() // called once, when c ends
	finished func() // called when the other side has closed c too, unless the link has ended

	// Owned by Recv.
	lines *jsonrpc.LineReader

	end atomic.Pointer[jsonrpc.ClosedError] // set once, by shut
	mu  sync.Mutex                          // held by shut
}

func newConn(l *link, y *yamux.Stream, limits jsonrpc.Limits) *conn {
	limits.Message = limits.MaxMessage() + slack
	s := &stream{y: y, link: l, over: make(chan struct{})}
	l.enter(s)
	c := &conn{stream: s, out: jsonrpc.NewLineWriter(s), limits: limits, lines: jsonrpc.NewLineReader(s, limits)}
	if !l.trusted { // else the line is whole already
		c.lines.Bound(largeLines{s})
	}
	return c
}

// Recv implements [jsonrpc.Conn]. Its end is always a [*jsonrpc.ClosedError],
// and the end of c: Send fails from then on.
func (c *conn) Recv() (*jsonrpc.Message, error) {
	var related jsonrpc.ID
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if !isNote(line) {
			m, err := c.decode(line)
			if err == nil {
				m.Related = related
			}
			return m, err
		}
		n, err := parseNote(line)
		if err != nil {
			return nil, err
		}
		if n.closed != nil {
			if !c.stream.link.trusted {
				n.closed = plain(n.closed)
			}
			return nil, c.shut(n.closed, nil, longAgo)
		}
		related = n.related // zero for a note from a later version
	}
}

// decode decodes a message. In one process the other end has checked it.
func (c *conn) decode(line []byte) (*jsonrpc.Message, error) {
	if c.stream.link.trusted {
		return jsonrpc.DecodeOwn(line)
	}
	return c.limits.Decode(line)
}

// RecvAll is [jsonrpc.RecvAll].
func (c *conn) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	for {
		m, err := c.Recv()
		if err != nil {
			return batch, err
		}
		if batch = append(batch, m); len(batch) >= maxAtOnce || !c.lines.Buffered() {
			return batch, nil
		}
	}
}

// maxAtOnce bounds what RecvAll returns at once.
const maxAtOnce = 64

// line returns the next line.
func (c *conn) line() ([]byte, error) {
	if end := c.end.Load(); end != nil {
		return nil, end
	}
	line, err := c.lines.ReadLine()
	end, ended := errors.AsType[*jsonrpc.ClosedError](err)
	switch {
	case ended && end == errSlowLine && c.tells:
		return nil, c.shut(end, closingLine(end), time.Now().Add(lastTimeout))
	case ended:
		return nil, c.shut(end, nil, longAgo)
	}
	return line, err
}

// Send implements [jsonrpc.Conn].
func (c *conn) Send(m *jsonrpc.Message) error { return c.SendAll([]*jsonrpc.Message{m}) }

// SendAll is [jsonrpc.SendAll].
func (c *conn) SendAll(messages []*jsonrpc.Message) error {
	if end := c.end.Load(); end != nil {
		return end
	}
	if !slices.ContainsFunc(messages, func(m *jsonrpc.Message) bool { return !m.Related.IsZero() }) {
		return c.out.WriteAll(messages)
	}
	var text []byte
	for _, m := range messages {
		text = appendMessage(text, m)
	}
	return c.out.WriteLines(text)
}

// Close implements [jsonrpc.Conn]. What was sent before is still delivered.
func (c *conn) Close() error {
	c.shut(errClosed, nil, longAgo)
	return nil
}

// shut ends c with end, unless it has ended, and returns the end. A Send in
// progress fails at the deadline. The rest needs time and happens behind: last,
// if it is not nil, is sent as the last line, and the stream is closed.
func (c *conn) shut(end *jsonrpc.ClosedError, last []byte, deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.end.Load(); first != nil {
		return first
	}
	c.end.Store(end)
	if c.over != nil {
		c.over()
	}
	c.stream.stop(deadline)
	c.stream.link.leave(func() { c.leave(last) }, c.finish)
	return end
}

func (c *conn) leave(last []byte) {
	if last != nil && c.out.WriteLines(last) == nil {
		c.stream.linger()
	}
	if !c.stream.link.dead.Load() { // the other side would take it for the end of the stream alone
		c.stream.y.Close()
	}
}

func (c *conn) finish() {
	c.stream.finish()
	c.stream.link.finished(c.stream)
	if c.finished != nil {
		c.finished()
	}
}

// A hostConn is the host's end, which tells the proxy why it closes.
type hostConn struct{ *conn }

// Close implements [jsonrpc.Conn].
func (c hostConn) Close() error {
	c.shut(errClosed, closingLine(errClosed), longAgo)
	c.stream.y.SetWriteDeadline(longAgo) // after CloseCause: do not wait
	return nil
}

// CloseCause closes c after a closing line that tells the [*jsonrpc.ClosedError]
// in cause. It does not wait: the proxy receives what was sent before and then
// that error. A Send that waits for a proxy that does not read fails within
// seconds, or at once when Close is called.
func (c hostConn) CloseCause(cause error) error {
	end, ok := errors.AsType[*jsonrpc.ClosedError](cause)
	if !ok {
		end = errClosed
	}
	c.shut(end, closingLine(end), time.Now().Add(lastTimeout))
	return nil
}
