package tap

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Conn returns c, whose messages can be tapped from now on. It implements [observe.Tap]; a nil t
// returns c itself.
func (t *Taps) Conn(p observe.Point, c jsonrpc.Conn) jsonrpc.Conn {
	if t == nil {
		return c
	}
	tapped := &conn{Conn: c, taps: t, at: p}
	tapped.received.in, tapped.sent.in = !p.Away, p.Away
	prompt, ok := c.(jsonrpc.Prompt)
	direct, both := c.(jsonrpc.Direct)
	if !ok || !both {
		return tapped
	}
	return &memoryConn{tapped, prompt, direct}
}

// A conn is a Conn at a Point.
type conn struct {
	jsonrpc.Conn
	taps *Taps         // static
	at   observe.Point // static

	sender atomic.Pointer[sender] // of the last message

	mu             sync.Mutex // guards the fields below
	received, sent way
	time           int // activeTaps.time when the ways were last used
}

// A way is one direction of a conn.
type way struct {
	in   bool // to the proxy; static
	open map[jsonrpc.ID]asked
}

// maxOpen bounds the remembered requests of each way. Responses to others, and to ids that are too long to be shown,
// have no method.
const maxOpen = 4096

// asked is what a response does not repeat of its request.
type asked struct {
	at           time.Time
	method, tool string
	from         *sender
}

// Recv implements [jsonrpc.Conn].
func (c *conn) Recv() (*jsonrpc.Message, error) {
	m, err := c.Conn.Recv()
	if now := c.taps.now.Load(); now != nil && err == nil {
		c.pass(now, []*jsonrpc.Message{m}, &c.received, &c.sent)
	}
	return m, err
}

// RecvAll is [jsonrpc.RecvAll].
func (c *conn) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	before := len(batch)
	batch, err := jsonrpc.RecvAll(c.Conn, batch)
	if now := c.taps.now.Load(); now != nil {
		c.pass(now, batch[before:], &c.received, &c.sent)
	}
	return batch, err
}

// Send implements [jsonrpc.Conn].
func (c *conn) Send(m *jsonrpc.Message) error {
	if now := c.taps.now.Load(); now != nil {
		c.pass(now, []*jsonrpc.Message{m}, &c.sent, &c.received)
	}
	return c.Conn.Send(m)
}

// SendAll is [jsonrpc.SendAll].
func (c *conn) SendAll(batch []*jsonrpc.Message) error {
	if now := c.taps.now.Load(); now != nil { // before sending, so that no answer passes earlier
		c.pass(now, batch, &c.sent, &c.received)
	}
	return jsonrpc.SendAll(c.Conn, batch)
}

// CloseCause is [jsonrpc.CloseWith].
func (c *conn) CloseCause(cause error) error { return jsonrpc.CloseWith(c.Conn, cause) }

// CloseWrite half-closes a Conn that can do so.
func (c *conn) CloseWrite() {
	if half, ok := c.Conn.(interface{ CloseWrite() }); ok {
		half.CloseWrite()
	}
}

// A memoryConn is a conn over a Conn in memory.
type memoryConn struct {
	*conn
	prompt jsonrpc.Prompt
	direct jsonrpc.Direct
}

// SendNow implements [jsonrpc.Prompt] while nobody looks.
func (c *memoryConn) SendNow(m jsonrpc.Queued) bool {
	return c.taps.now.Load() == nil && c.prompt.SendNow(m)
}

// OnSend implements [jsonrpc.Direct] while nobody looks.
func (c *memoryConn) OnSend(handle func(*jsonrpc.Message) bool) {
	if handle == nil {
		c.direct.OnSend(nil)
		return
	}
	c.direct.OnSend(func(m *jsonrpc.Message) bool { return c.taps.now.Load() == nil && handle(m) })
}

// Rest implements [jsonrpc.Resting].
func (c *memoryConn) Rest(resume func()) bool {
	r, ok := c.Conn.(jsonrpc.Resting)
	return ok && r.Rest(resume)
}

// pass offers messages in the direction there to the taps, and matches responses with requests in the direction back.
func (c *conn) pass(now *activeTaps, batch []*jsonrpc.Message, there, back *way) {
	if len(batch) == 0 || !slices.ContainsFunc(now.taps, func(t *Tap) bool { return t.o.at(&c.at) }) {
		return
	}
	at := time.Now()
	for _, m := range batch {
		if m.Batch != nil {
			c.pass(now, m.Batch, there, back)
			continue
		}
		if m.Unusable != nil {
			continue
		}
		l := c.lineOf(now, m, there, back, at)
		for _, t := range now.taps {
			t.offer(&l, m)
		}
	}
}

func (c *conn) lineOf(now *activeTaps, m *jsonrpc.Message, there, back *way, at time.Time) line {
	l := line{time: at, in: there.in, method: start(m.Method), bytes: m.Len()}
	if len(m.ID.String()) <= maxName {
		l.id = m.ID
	}
	switch {
	case m.IsResponse():
		l.kind = observe.KindResponse
		c.recall(now, &l, back)
		if l.err = errorOf(m, l.method); l.err != nil {
			l.upstream = upstreamOf(m)
		}
	case m.IsRequest():
		l.kind = observe.KindRequest
		l.tool = start(toolOf(m))
		l.from = c.from(m)
		c.remember(now, &l, there)
	default:
		l.kind = observe.KindNotification
		l.from = c.from(m)
		c.forget(m, there)
	}
	return l
}

// start cuts a name to what a line needs, so that queued lines stay small.
func start(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.Clone(name[:maxName+1])
}

// from returns the sender of a message, or for nil the client of the session.
func (c *conn) from(m *jsonrpc.Message) *sender {
	var client, principal string
	if c.at.Who != nil {
		client, principal = c.at.Who(m)
	}
	s := c.sender.Load()
	if s == nil || s.client != client || s.principal != principal { // most senders are the same
		s = newSender(&c.at, client, principal)
		c.sender.Store(s)
	}
	return s
}

// remember notes a request for its response.
func (c *conn) remember(now *activeTaps, l *line, w *way) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.time != now.time { // there was a time without taps
		c.time, c.received.open, c.sent.open = now.time, nil, nil
	}
	if w.open == nil {
		w.open = make(map[jsonrpc.ID]asked)
	}
	if len(w.open) < maxOpen && !l.id.IsZero() {
		w.open[l.id] = asked{l.time, l.method, l.tool, l.from}
	}
}

// recall adds the method and tool of the request to its response.
func (c *conn) recall(now *activeTaps, l *line, w *way) {
	c.mu.Lock()
	a, ok := w.open[l.id]
	delete(w.open, l.id)
	ok = ok && c.time == now.time
	c.mu.Unlock()
	if !ok {
		l.from = c.from(nil)
		return
	}
	l.method, l.tool, l.from, l.took = a.method, a.tool, a.from, l.time.Sub(a.at)
}

// forget drops a cancelled request, which may never be answered.
func (c *conn) forget(m *jsonrpc.Message, w *way) {
	if m.Method != mcp.MethodCancelled {
		return
	}
	if id, ok := mcp.Read(m).ID(mcp.Key); ok {
		c.mu.Lock()
		delete(w.open, id)
		c.mu.Unlock()
	}
}

// toolOf returns the tool that a request calls, "" for none.
func toolOf(m *jsonrpc.Message) string {
	if m.Method != mcp.MethodToolsCall {
		return ""
	}
	if rest, ok := bytes.CutPrefix(m.Params, []byte(`{"name":"`)); ok { // as most clients write it
		if end := bytes.IndexAny(rest[:min(len(rest), maxName)], `"\`); end >= 0 && rest[end] == '"' {
			return string(rest[:end])
		}
	}
	tool, _ := mcp.Read(m).Text(mcp.Key)
	return tool
}
