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
	// slack is added to the limit of a message. The proxy replaces ids and names, also by
	// longer ones, and the next hop must not refuse a message that the previous one has
	// accepted.
	slack = 4 << 10

	// lastTimeout is how long a closing line, and a Send before it, may wait
	// for a proxy that does not read.
	lastTimeout = 5 * time.Second
)

// A conn is a stream after its hello, as a sequence of messages.
type conn struct {
	// Static after construction.
	stream *stream
	out    *jsonrpc.LineWriter
	limits jsonrpc.Limits // of a message

	// Set before c can be closed.
	host     bool   // c is the host's end, which sends a closing line
	finished func() // called when both sides have closed c; may be nil

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
	c.lines.Bound(s)
	return c
}

// Recv implements [jsonrpc.Conn]. The error at the end is always a [*jsonrpc.ClosedError],
// and Send fails from then on.
func (c *conn) Recv() (*jsonrpc.Message, error) {
	var related jsonrpc.ID
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if !isNote(line) {
			m, err := c.limits.Decode(line)
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
			return nil, c.shut(plain(n.closed), nil, longAgo)
		}
		related = n.related // zero for a note of a later version
	}
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

// maxAtOnce bounds the messages that RecvAll returns.
const maxAtOnce = 64

// line returns the next line.
func (c *conn) line() ([]byte, error) {
	if end := c.end.Load(); end != nil {
		return nil, end
	}
	line, err := c.lines.ReadLine()
	end, ended := errors.AsType[*jsonrpc.ClosedError](err)
	switch {
	case ended && end == errSlowLine && c.host:
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
	if !slices.ContainsFunc(messages, hasNote) {
		return c.out.WriteAll(messages)
	}
	var text []byte
	for _, m := range messages {
		text = appendMessage(text, m)
	}
	return c.out.WriteLines(text)
}

// Close implements [jsonrpc.Conn]. Messages that were sent before are still delivered.
func (c *conn) Close() error {
	if !c.host {
		c.shut(errClosed, nil, longAgo)
		return nil
	}
	c.shut(errClosed, closingLine(errClosed), longAgo)
	c.stream.y.SetWriteDeadline(longAgo) // after CloseCause: do not wait
	return nil
}

// CloseCause is [jsonrpc.CloseWith]. At the host's end it closes c after a closing line with
// the [*jsonrpc.ClosedError] in cause. It does not wait: the proxy receives the messages
// that were sent before, and then that error. A Send that waits for a proxy that does not
// read fails within seconds, or at once when Close is called.
func (c *conn) CloseCause(cause error) error {
	if !c.host {
		return c.Close()
	}
	end, ok := errors.AsType[*jsonrpc.ClosedError](cause)
	if !ok {
		end = errClosed
	}
	c.shut(end, closingLine(end), time.Now().Add(lastTimeout))
	return nil
}

// shut ends c with end, unless it has ended, and returns the end. A Send in progress fails
// at the deadline. A goroutine does the rest: it sends last, unless that is nil, as the
// last line, and closes the stream.
func (c *conn) shut(end *jsonrpc.ClosedError, last []byte, deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.end.Load(); first != nil {
		return first
	}
	c.end.Store(end)
	c.stream.stop(deadline)
	c.stream.link.leave(func() { c.leave(last) }, c.finish)
	return end
}

func (c *conn) leave(last []byte) {
	if last != nil && c.out.WriteLines(last) == nil {
		c.stream.drain(time.Now().Add(lingerTimeout))
	}
	if !c.stream.link.dead.Load() { // otherwise the other side would see a closed stream instead of a lost link
		c.stream.y.Close()
	}
}

// finish waits until the other side has closed the stream, too, or yamux resets it after
// closeTimeout.
func (c *conn) finish() {
	c.stream.drain(time.Time{})
	c.stream.link.finished(c.stream)
	if c.finished != nil {
		c.finished()
	}
}
