package frontend

import (
	"log/slog"
	"net/http"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxBacklog bounds the bytes of notifications that wait for a modern client to read its response,
// in addition to the backlog of its principal. A request whose client leaves more unread is
// cancelled.
const maxBacklog = 4 << 20

// A principalConn is the Conn for the requests of all modern clients with the same principal and
// path. Each POST has an id of its own there. Recv returns the messages of POSTs. Send finds the
// POST for a message, and never waits for a client.
type principalConn struct {
	// Static after construction.
	log     *slog.Logger
	backlog *principalBacklog
	by      caller        // of the first POST
	relay   *relay        // nil if there are no other replicas
	gone    chan struct{} // closed when ServePrincipal has returned

	mu      sync.Mutex // guards the fields below, and those of all waiters
	idle    idleTimer
	lastID  int64
	waiting jsonrpc.Table[int64, *waiter] // open requests

	// in holds messages for Recv. It needs no bound of its own: it has at most a request for each
	// open POST, and a cancellation for each request that Recv has returned.
	in *jsonrpc.Queue
}

func newPrincipalConn(log *slog.Logger, u *principalBacklog) *principalConn {
	c := &principalConn{log: log, backlog: u, gone: make(chan struct{})}
	c.in, c.idle.mu = jsonrpc.NewQueue(&c.mu), &c.mu
	return c
}

// Recv implements [jsonrpc.Conn].
func (c *principalConn) Recv() (*jsonrpc.Message, error) { return c.in.Next() }

// RecvAll implements [jsonrpc.RecvAll].
func (c *principalConn) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	return c.in.Take(batch)
}

// OnSend implements [jsonrpc.Direct].
func (c *principalConn) OnSend(handle func(*jsonrpc.Message) bool) { c.in.OnPass(handle) }

// ask enters a request and owns m from then on. Messages for it are written to out; tasks are the
// client's names in it. The caller must call abandon at the end.
func (c *principalConn) ask(m *jsonrpc.Message, out *responder, tasks map[string]string) *waiter {
	p := &waiter{c: c, out: out, clientID: m.ID, method: m.Method, tasks: tasks, wake: make(chan struct{}, 1)}
	p.backlog = streamBacklog{of: c.backlog, cut: p.cut}
	if m := (jsonrpc.Queued{Message: m, Of: p}); c.enter(p, m.Message) && !c.in.Pass(m) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.in.Force(m)
	}
	return p
}

// enter gives a request its id. It returns false if the connection has ended, which answers it.
func (c *principalConn) enter(p *waiter, m *jsonrpc.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	p.id = c.lastID
	if c.waiting.Add(p.id, p) != nil {
		p.failLocked(closing(jsonrpc.NotSent))
		return false
	}
	m.ID = jsonrpc.IntID(p.id)
	return true
}

// name puts the connection's id of a request where a message of an extension names it by the id that
// the client gave it. It returns an error if there is none, or if several clients have one with that
// id, unless the id could not be mistaken for one of the connection's.
func (c *principalConn) name(m *jsonrpc.Message) error {
	n := mcp.Read(m)
	id, ok := n.ID(mcp.Subscription)
	if !ok || !n.Method.MaybeOfExtension() || n.Err(mcp.InMeta, mcp.Subscription) != nil { // which Serve refuses
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	named := c.waiting.All(func(p *waiter) bool { return p.clientID == id })
	if len(named) != 1 {
		if number, ok := id.Answered(); ok && number <= c.lastID {
			return mcp.ErrUnknownSubscription
		}
		return nil
	}
	m.Params = jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: n.At(mcp.Subscription), With: jsonrpc.IntID(named[0].id).Raw()})
	return nil
}

// tell passes on a notification, unless the connection has ended.
func (c *principalConn) tell(m *jsonrpc.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.Force(jsonrpc.Queued{Message: m})
}

// abandon cancels a request unless it has been answered. If Recv has returned the request, Serve
// gets a cancellation. Later messages for it are dropped, and nothing is written any more.
func (c *principalConn) abandon(p *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting.Take(p.id, p) {
		c.cancelLocked(p)
	}
	p.backlog.add(-p.backlog.size())
	p.events, p.taken, p.over = nil, 0, true
}

// refuse cancels a listen whose client may no longer receive it, and answers it with why.
func (c *principalConn) refuse(p *waiter, why *jsonrpc.ClosedError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting.Take(p.id, p) {
		c.cancelLocked(p)
		p.failLocked(jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "", why.Cause, jsonrpc.InFlight))
	}
}

func (c *principalConn) cancelLocked(p *waiter) {
	if !p.received {
		c.in.Drop(func(m jsonrpc.Queued) bool { return m.Of == p })
		return
	}
	c.in.Force(jsonrpc.Queued{Message: mcp.Cancellation(jsonrpc.IntID(p.id), "")})
}

// Send implements [jsonrpc.Conn]. It drops messages that belong to no open POST.
func (c *principalConn) Send(m *jsonrpc.Message) error {
	p, err := c.route(m)
	if p == nil {
		if err == nil && m.Method != "" {
			c.log.Debug("message belongs to no request, dropped", "method", m.Method)
		}
		return err
	}
	c.pass(p, m)
	return nil
}

// SendNow implements [jsonrpc.Prompt] for small responses, like that of a session.
func (c *principalConn) SendNow(m jsonrpc.Queued) bool {
	if !m.IsResponse() || m.Size() > smallBody {
		return false
	}
	p, _ := c.route(m.Message)
	if p == nil {
		return false
	}
	if m.Leave() {
		c.pass(p, m.Message)
	}
	return true
}

// pass brings a message to its POST.
func (c *principalConn) pass(p *waiter, m *jsonrpc.Message) {
	e := event{data: p.text(m), response: m.IsResponse(), refused: m.Refused}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.waiting.Has(p.id, p): // abandoned meanwhile
	case e.response:
		c.waiting.Take(p.id, p)
		p.settleLocked(e, statusOf(m))
	case p.backlog.size() > maxBacklog:
		p.giveUpLocked(closing(jsonrpc.InFlight))
	case !p.backlog.room(len(e.data)):
		p.giveUpLocked(unreadable())
	default:
		p.pushLocked(e)
	}
}

// route returns the waiter for m, nil if there is none. Requests have none, because a modern server
// asks in its results.
func (c *principalConn) route(m *jsonrpc.Message) (*waiter, error) {
	id, ok := m.ID.Answered()
	if m.Method != "" {
		if id, ok = m.Related.Int(); !ok {
			listen, _ := mcp.Read(m).ID(mcp.Subscription) // to which it claims to belong
			id, ok = listen.Int()
		}
		ok = ok && m.ID.IsZero()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok {
		return nil, c.waiting.Closed()
	}
	return c.waiting.Get(id), c.waiting.Closed()
}

// Forwarded returns the headers of the first POST that upstreams get, nil for none, and a digest of
// those that say who the user is, which are the same in all POSTs.
func (c *principalConn) Forwarded() (headers *jsonrpc.Forwarded, user string) {
	return c.by.forwarded, c.by.user
}

// Transport returns the name of the transport.
func (c *principalConn) Transport() string { return "http" }

// Close implements [jsonrpc.Conn].
func (c *principalConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(errServed)
	return nil
}

// endLocked ends the connection once. Every open POST gets the connection-closed error.
func (c *principalConn) endLocked(cause error) {
	for _, p := range c.waiting.Close(jsonrpc.Closed(cause)) {
		phase := jsonrpc.NotSent
		if p.received {
			phase = jsonrpc.InFlight
		}
		p.failLocked(closing(phase))
	}
	c.in.Close(cause)
	c.idle.stop()
}

// closing returns the connection-closed error for modern clients.
func closing(phase jsonrpc.Phase) *jsonrpc.Error {
	return jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "", jsonrpc.Cause{}, phase)
}

// expire ends the connection if no POST was open for HTTP.SessionIdle.
func (c *principalConn) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle.expired(false) {
		c.endLocked(errIdle)
	}
}

// A waiter is one request on a principalConn, with the messages for it. It is the feed of the
// POST's response.
type waiter struct {
	// Static once the request is handed over.
	c        *principalConn
	out      *responder
	id       int64      // on the connection
	clientID jsonrpc.ID // as the client wrote it
	method   string
	tasks    map[string]string // see given
	wake     chan struct{}     // capacity 1: there is something to write

	// Guarded by principalConn.mu.
	received bool          // Recv has returned the request
	over     bool          // abandoned
	events   []event       // to be written; a response is the last
	backlog  streamBacklog // unwritten events
	taken    int           // the bytes of the backlog that are being written
	status   int           // of the response, if it is plain JSON
}

// Leave implements [jsonrpc.Leaving].
func (p *waiter) Leave() bool {
	p.received = true
	return true
}

// text returns a message as its client gets it, with the client's own id, also where the message names
// the request, and with its names of what this replica has.
func (p *waiter) text(m *jsonrpc.Message) []byte {
	out := *m
	if m.IsResponse() {
		out.ID = p.clientID
	}
	listen := jsonrpc.Value{Key: mcp.KeySubscription, Text: p.clientID.Raw()}
	switch {
	case p.method == mcp.MethodListen && m.Method != "":
		out.Params = mcp.SetMeta(m.Params, listen)
	case p.method == mcp.MethodListen && m.Result != nil:
		out.Result = mcp.SetMeta(m.Result, listen)
	case m.Method != "":
		out.Params = mcp.AnsweredAs(m.Params, jsonrpc.IntID(p.id), p.clientID)
	case mcp.MethodOf(p.method).MaybeOfExtension():
		out.Result = mcp.AnsweredAs(m.Result, jsonrpc.IntID(p.id), p.clientID)
		out.Error = mcp.AnsweredAs(m.Error, jsonrpc.IntID(p.id), p.clientID)
	}
	p.c.relay.give(&out, p)
	return out.Text()
}

func (p *waiter) pushLocked(e event) {
	p.events = append(p.events, e)
	p.backlog.add(len(e.data))
	notify(p.wake)
}

// giveUpLocked answers a request with an error, because its client does not read. It drops the
// waiting events.
func (p *waiter) giveUpLocked(err *jsonrpc.Error) {
	p.c.log.Debug("client does not read its response; request cancelled", "method", p.method)
	if p.c.waiting.Take(p.id, p) {
		p.c.cancelLocked(p)
	}
	p.events = nil
	p.backlog.add(p.taken - p.backlog.size())
	p.failLocked(err)
}

// cut cancels a request because its principal's backlog is too large, and this is the largest part.
// If an event is being written, the response breaks off.
func (p *waiter) cut() {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.over {
		return
	}
	p.giveUpLocked(unreadable())
	if p.taken > 0 {
		p.out.abort()
	}
}

// settleLocked answers the request, which its caller has taken.
func (p *waiter) settleLocked(e event, status int) {
	if len(e.data) > smallBody && !p.backlog.room(len(e.data)) { // a small response costs less than its connection
		p.failLocked(unreadable())
		return
	}
	p.status = status
	p.pushLocked(e)
}

func (p *waiter) failLocked(err *jsonrpc.Error) {
	m := jsonrpc.NewError(p.clientID, err)
	p.status = statusOf(m)
	p.pushLocked(event{data: m.Text(), response: true})
}

// plain returns the response if it is there and nothing comes before it.
func (p *waiter) plain() (response event, status int, ok bool) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if len(p.events) != 1 || !p.events[0].response {
		return event{}, 0, false
	}
	p.taken = p.backlog.size()
	return p.events[0], p.status, true
}

// next implements feed.
func (p *waiter) next(out []byte) ([]byte, bool) {
	p.c.mu.Lock()
	events := p.events
	p.events, p.taken = nil, p.backlog.size()
	p.c.mu.Unlock()
	more := true
	for _, e := range events {
		out = appendEvent(out, "message", "", e.data)
		more = more && !e.response
	}
	return out, more
}

func (p *waiter) written() {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.backlog.add(-p.taken)
	p.taken = 0
}

func (p *waiter) woken() chan struct{} { return p.wake }

// statuses are the HTTP statuses for errors of the modern era; all others have 200 (2026-07-28
// basic/transports/streamable-http).
var statuses = map[string]int{
	"-32601": http.StatusNotFound,
	"-32020": http.StatusBadRequest,
	"-32021": http.StatusBadRequest,
	"-32022": http.StatusBadRequest,
}

// statusOf returns the HTTP status of a plain response.
func statusOf(m *jsonrpc.Message) int {
	if m.Error != nil {
		code, _ := jsonrpc.Member(m.Error, "code")
		if status := statuses[string(code)]; status != 0 {
			return status
		}
	}
	return http.StatusOK
}
