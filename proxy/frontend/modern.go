package frontend

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// modernHeader reports whether the header of r names a version without sessions,
// known or not. Versions are dates; what is none decides nothing.
func modernHeader(r *http.Request) bool {
	return slices.ContainsFunc(r.Header[headerVersion], func(v string) bool { return mcp.IsModern(v) && v[0] <= '9' })
}

// isModern reports whether a message, wherever it stands, is one of a modern
// client. A batch is if one of its messages is.
func isModern(m *jsonrpc.Message) bool {
	if m.Batch != nil {
		return slices.ContainsFunc(m.Batch, isModern)
	}
	return mcp.MethodOf(m.Method).ModernOnly() || claims(m.Params)
}

// claims reports whether params name a version in _meta. Those that cannot, nearly
// all of legacy clients, are not parsed for it. The key may be written with \u.
func claims(params json.RawMessage) bool {
	if !bytes.Contains(params, []byte("protocolVersion")) && !bytes.Contains(params, []byte(`\u`)) {
		return false
	}
	meta, _ := mcp.ReadMeta(params)
	return meta.Claimed
}

// postModern takes one message of a modern client and answers it.
func (h *HTTP) postModern(w http.ResponseWriter, r *http.Request, upstream string, m *jsonrpc.Message) {
	if h.ServePrincipal == nil {
		badRequest(w, m, mcp.UnsupportedVersion(r.Header.Get(headerVersion), mcp.LegacyVersions))
		return
	}
	if err := checkModern(r.Header, m); err != nil {
		badRequest(w, m, err)
		return
	}
	// Over HTTP a request is cancelled by closing its stream, and the core has no
	// other notification. One that says no version could not be told from a legacy
	// one behind this.
	if m.IsNotification() && (m.Method == mcp.MethodCancelled || !claims(m.Params)) {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	t := h.trunk(w, r, trunkKey{upstream, h.Guard.principal()})
	if t == nil {
		return
	}
	defer t.release()
	if m.IsNotification() {
		t.tell(m)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	m.Headers = repeated(r.Header)
	h.answerModern(w, r, t.ask(m))
}

// badRequest refuses m, under its id if it is a request.
func badRequest(w http.ResponseWriter, m *jsonrpc.Message, err *jsonrpc.Error) {
	id := m.ID
	if !m.IsRequest() {
		id = jsonrpc.ID{}
	}
	writeError(w, http.StatusBadRequest, id, err)
}

// answerModern writes what comes for p: as plain JSON if that is the response, else
// as an event stream, which the response ends. It begins when something else comes
// or the connection would be silent for too long, and no sooner: then the status
// could not say any more what the response is. A client that goes away before
// cancels the request.
func (h *HTTP) answerModern(w http.ResponseWriter, r *http.Request, p *waiter) {
	defer p.t.abandon(p)
	h.waitPlain(r.Context(), p.wake, keepAlive)
	if r.Context().Err() != nil {
		return
	}
	if body, status, ok := p.plain(); ok {
		writeJSON(w, status, body)
		return
	}
	out := newResponder(w)
	if out.begin() == nil {
		copyEvents(r.Context(), out, p)
	}
}

// trunk returns the trunk for key, made if there is none, and holds it. One that is
// ending is waited for, so that there are never two. It is nil if there is no room
// for one, which the client has been told, or if the client is gone.
func (h *HTTP) trunk(w http.ResponseWriter, r *http.Request, key trunkKey) *trunk {
	for {
		h.mu.Lock()
		t := h.trunks[key]
		h.mu.Unlock()
		if t == nil {
			if !h.enter(w) {
				return nil
			}
			if t = h.beginTrunk(key); t != nil {
				return t
			}
			continue
		}
		if t.hold() {
			return t
		}
		select {
		case <-t.gone:
		case <-r.Context().Done():
			return nil
		}
	}
}

// beginTrunk makes a trunk in the room that enter made for it, and holds it; nil if
// somebody else was first.
func (h *HTTP) beginTrunk(key trunkKey) *trunk {
	t := newTrunk(key, h.logger(), h.unread)
	t.hold() // even if it ends at once it is the one for this POST
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trunks[key] != nil {
		h.leaveLocked()
		return nil
	}
	h.trunks[key] = t
	go h.runTrunk(t)
	return t
}

// runTrunk is the goroutine of a trunk.
func (h *HTTP) runTrunk(t *trunk) {
	defer close(t.gone)
	t.expireAfter(h.sessionIdle())
	t.log.Debug("trunk opened", "upstream", t.upstream)
	err := h.ServePrincipal(h.ctx, t.upstream, t.principal, t)
	t.Close()
	t.log.Debug("trunk ended", "upstream", t.upstream, "cause", jsonrpc.CauseOf(err))
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.trunks, t.trunkKey)
	h.leaveLocked()
}
