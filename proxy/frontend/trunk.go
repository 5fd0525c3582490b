package frontend

import (
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxUnread bounds the notifications, in bytes, that wait for a modern client to
// read its response. One that lets more come up is given up.
const maxUnread = 4 << 20

// A trunk is the Conn on which the requests of all modern clients travel that are
// the same principal and use the same path. Each POST has an id of its own there.
// Recv returns what POSTs bring, Send finds the POST for a message, and never
// waits for a client.
type trunk struct {
	// Static after construction.
	trunkKey
	log     *slog.Logger
	unread  *unread
	arrived chan struct{} // capacity 1: queue is not empty
	done    chan struct{} // closed by end
	gone    chan struct{} // closed when ServePrincipal has returned

	mu     sync.Mutex // guards the fields below, and those of all waiters
	closed bool
	cause  error // of the end
	lease
	lastID  int64
	waiting map[int64]*waiter // who removes one answers it, unless it is abandoned

	// queue waits for Recv. It holds a request for each open POST at most, and a
	// cancel for each one that Recv has returned.
	queue []queued
}

// A trunkKey is what POSTs on one trunk have in common.
type trunkKey struct{ upstream, principal string }

// A queued message is a request of p, or a notification.
type queued struct {
	*jsonrpc.Message
	p *waiter
}

func newTrunk(key trunkKey, log *slog.Logger, u *unread) *trunk {
	return &trunk{
		trunkKey: key, log: log, unread: u,
		arrived: make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{}),
		waiting: make(map[int64]*waiter),
	}
}

// maxRecv bounds the messages that RecvAll returns at once.
const maxRecv = 64

// Recv implements [jsonrpc.Conn].
func (t *trunk) Recv() (*jsonrpc.Message, error) {
	var one [1]*jsonrpc.Message
	got, err := t.recv(one[:0], 1)
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

// RecvAll does what [jsonrpc.RecvAll] says.
func (t *trunk) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	return t.recv(batch, maxRecv)
}

func (t *trunk) recv(batch []*jsonrpc.Message, limit int) ([]*jsonrpc.Message, error) {
	for {
		if got, err := t.take(batch, limit); len(got) > len(batch) || err != nil {
			return got, err
		}
		select {
		case <-t.arrived:
		case <-t.done:
		}
	}
}

// take appends what waits for Recv to batch.
func (t *trunk) take(batch []*jsonrpc.Message, limit int) ([]*jsonrpc.Message, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return batch, jsonrpc.Closed(t.cause)
	}
	n := min(len(t.queue), limit)
	for _, q := range t.queue[:n] {
		batch = append(batch, q.Message)
		if q.p != nil {
			q.p.received = true
		}
	}
	t.queue = slices.Delete(t.queue, 0, n)
	if len(t.queue) > 0 {
		notify(t.arrived)
	}
	return batch, nil
}

// ask puts a request on the trunk, which then owns m. Who asked ends with abandon.
func (t *trunk) ask(m *jsonrpc.Message) *waiter {
	p := &waiter{t: t, client: m.ID, method: m.Method, wake: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastID++
	p.id = t.lastID
	if t.closed {
		p.settleLocked(closing(jsonrpc.NotSent))
		return p
	}
	m.ID = jsonrpc.IntID(p.id)
	t.waiting[p.id] = p
	t.queue = append(t.queue, queued{m, p})
	notify(t.arrived)
	return p
}

// tell puts a notification on the trunk, unless that has ended.
func (t *trunk) tell(m *jsonrpc.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tellLocked(m)
}

func (t *trunk) tellLocked(m *jsonrpc.Message) {
	if !t.closed {
		t.queue = append(t.queue, queued{m, nil})
		notify(t.arrived)
	}
}

// abandon gives up a request, unless it has been answered: Serve hears of it, if
// it knows the request at all, and what it sends for it is dropped. Nothing of it is
// written any more.
func (t *trunk) abandon(p *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[p.id] == p {
		delete(t.waiting, p.id)
		t.cancelLocked(p)
	}
	t.unread.give(p.bytes)
	p.bytes = 0
}

func (t *trunk) cancelLocked(p *waiter) {
	if !p.received {
		t.queue = slices.DeleteFunc(t.queue, func(q queued) bool { return q.p == p })
		return
	}
	t.tellLocked(mcp.Cancellation(jsonrpc.IntID(p.id), ""))
}

// Send implements [jsonrpc.Conn]. What belongs to no open POST is dropped.
func (t *trunk) Send(m *jsonrpc.Message) error {
	p, err := t.route(m)
	if p == nil {
		if err == nil && m.Method != "" {
			t.log.Debug("message belongs to no request, dropped", "method", m.Method)
		}
		return err
	}
	e, status := event{data: p.text(m), response: m.IsResponse()}, statusOf(m)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.waiting[p.id] != p: // abandoned meanwhile
	case e.response && !t.unread.hasRoom(len(e.data)):
		p.settleLocked(unreadable())
	case e.response:
		p.endLocked(e, status)
	case p.bytes > maxUnread:
		t.log.Debug("client does not read its response, given up", "method", p.method)
		t.cancelLocked(p)
		p.events = nil
		p.settleLocked(closing(jsonrpc.InFlight))
	default:
		p.pushLocked(e)
	}
	return nil
}

// route returns the waiter that m is for, nil if there is none. Requests are for
// nobody: a modern server asks in its results.
func (t *trunk) route(m *jsonrpc.Message) (*waiter, error) {
	id, ok := m.ID.Answered()
	if m.Method != "" {
		if id, ok = m.Related.Int(); !ok {
			id, ok = subscription(m.Params)
		}
		ok = ok && m.ID.IsZero()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, jsonrpc.Closed(t.cause)
	}
	if !ok {
		return nil, nil
	}
	return t.waiting[id], nil
}

// subscription returns the listen that a notification says it belongs to.
func subscription(params json.RawMessage) (int64, bool) {
	meta, _ := jsonrpc.Member(params, "_meta")
	raw, _ := jsonrpc.Member(meta, mcp.KeySubscription)
	id, _ := jsonrpc.ParseID(raw)
	return id.Int()
}

// Close implements [jsonrpc.Conn].
func (t *trunk) Close() error {
	t.end(errServed)
	return nil
}

// end ends the trunk, once: every open POST is answered with the one error.
func (t *trunk) end(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(cause)
}

func (t *trunk) endLocked(cause error) {
	if t.closed {
		return
	}
	t.closed, t.cause = true, cause
	for _, p := range t.waiting {
		phase := jsonrpc.NotSent
		if p.received {
			phase = jsonrpc.InFlight
		}
		p.settleLocked(closing(phase))
	}
	t.queue = nil
	t.lease.stop()
	close(t.done)
}

// closing is the one error for modern clients.
func closing(phase jsonrpc.Phase) *jsonrpc.Error {
	return jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "", "", phase)
}

// hold keeps the trunk while a POST uses it; false if it has ended. The caller
// must release it.
func (t *trunk) hold() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.lease.take()
	}
	return !t.closed
}

func (t *trunk) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lease.give()
}

// expireAfter ends the trunk when no POST was open for idle.
func (t *trunk) expireAfter(idle time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lease.start(idle, 0, t.expire)
}

func (t *trunk) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed && !t.lease.renew(false) {
		t.endLocked(errIdle)
	}
}
