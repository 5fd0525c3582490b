package frontend

import (
	"context"
	"net/http"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// modernClients answers the POSTs of modern clients, and owns the connections of principals that
// carry their messages.
type modernClients struct {
	serve  func(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error // HTTP.ServePrincipal
	open   *openSessions
	alarms *sync.Pool // see waitPlain; of this HTTP alone, because tests run in bubbles
	relay  *relay     // nil if there are no other replicas

	mu    sync.Mutex
	conns map[connKey]*principalConn // whose serve has not returned; guarded by mu
}

// post receives one message of a modern client, which came as body, and answers it.
func (h *modernClients) post(w http.ResponseWriter, r *http.Request, from caller, m *jsonrpc.Message, body []byte) {
	if h.serve == nil {
		refuseMessage(w, m, mcp.UnsupportedVersion(field(r.Header, headerVersion), mcp.LegacyVersions))
		return
	}
	if err := checkModern(r.Header, m); err != nil {
		refuseMessage(w, m, err)
		return
	}
	// Over HTTP a client cancels a request by closing its stream, and the protocol has no other
	// notifications from clients. Serve would take a notification without a version for a legacy
	// one.
	if m.IsNotification() && (m.Method == mcp.MethodCancelled || !mcp.Read(m).Has(mcp.Version)) {
		writeStatus(w, http.StatusAccepted)
		return
	}
	given := h.relay.givenIn(m)
	if h.relay.toGiver(w, r, from.who, given, body) {
		return
	}
	given.own(m)
	from.sent(m)
	c := h.conn(w, r, from)
	if c == nil {
		return
	}
	defer c.idle.release()
	unknown := c.name(m)
	switch {
	case m.IsNotification():
		if unknown == nil {
			c.tell(m)
		}
		writeStatus(w, http.StatusAccepted)
		return
	case unknown != nil:
		writeError(w, http.StatusOK, m.ID, jsonrpc.InvalidParams(unknown.Error()))
		return
	}
	m.Headers = repeated(r.Header)
	p := c.ask(m, newResponder(w), given.tasks)
	if m.Method == mcp.MethodListen {
		defer h.open.guard.onEnd(r.Context(), from.who, func(why *jsonrpc.ClosedError) { c.refuse(p, why) })()
	}
	h.answer(w, r, p)
}

// answer writes the messages for p: plain JSON if the response is the first of them, else an event
// stream, which the response ends. The status of plain JSON depends on the response, so the stream
// begins only when something else comes, or when the connection has been silent for long. A client
// that leaves cancels the request. A client whose proof ends still gets its answer, except for a
// listen, which would have no other end.
func (h *modernClients) answer(w http.ResponseWriter, r *http.Request, p *waiter) {
	defer p.c.abandon(p)
	waitPlain(h.alarms, p.wake, r.Context().Done(), keepAlive)
	switch e, status, plain := p.plain(); {
	case plain && e.refused != nil:
		h.open.guard.writeRefused(w, r, e.refused, e.data)
		return
	case plain:
		p.out.writeJSON(status, e.data)
		return
	case r.Context().Err() != nil:
		hangUp()
	}
	if p.out.begin() == nil {
		copyEvents(r.Context(), p.out, p)
	}
}

// conn returns the connection of a principal, and holds it. It begins one if there is none, and
// waits for one that is ending, so that there are never two. It returns nil if there is no room for
// one, after answering the client.
func (h *modernClients) conn(w http.ResponseWriter, r *http.Request, from caller) *principalConn {
	for {
		h.mu.Lock()
		c := h.conns[from.connKey()]
		h.mu.Unlock()
		if c == nil {
			leave := h.open.enter(w, r, from.who)
			if leave == nil {
				return nil
			}
			if c = h.begin(from, leave); c != nil {
				return c
			}
			continue
		}
		if c.idle.hold() {
			return c
		}
		select {
		case <-c.gone:
		case <-r.Context().Done():
			hangUp()
		}
	}
}

// begin begins a principal's connection after enter, and holds it; nil if another POST was first.
func (h *modernClients) begin(by caller, leave func()) *principalConn {
	from := by.connKey()
	c := newPrincipalConn(h.open.log, h.open.backlog.join(from.principal))
	c.by, c.relay = by, h.relay
	c.idle.hold() // first, so that it serves this POST even if it ends at once
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conns[from] != nil {
		h.open.backlog.leave(from.principal)
		leave()
		return nil
	}
	h.conns[from] = c
	go h.run(from, c, leave)
	return c
}

// run is the goroutine of a principal's connection. It calls leave before a POST that waits for
// gone can call enter.
func (h *modernClients) run(from connKey, c *principalConn, leave func()) {
	defer close(c.gone)
	defer h.open.backlog.leave(from.principal)
	c.idle.start(h.open.idle, 0, c.expire)
	log := h.open.log.With("transport", "http", "upstream", from.upstream, "principal", from.principal.String())
	h.open.run(log, c, leave, func(ctx context.Context) error { return h.serve(ctx, from.principal, from.upstream, c) })
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, from)
}
