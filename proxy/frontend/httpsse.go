package frontend

import (
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An httpSSE is the HTTP+SSE transport of 2024-11-05. A GET of /sse is the session: its first event
// names the endpoint for POSTs, all messages to the client follow, and when it drops the session is
// over. It also ends with the proof of its client.
type httpSSE struct {
	open   *openSessions
	bodies *bodies
	relay  *relay // nil if there are no other replicas
}

// get opens a session and writes its stream.
func (h *httpSSE) get(w http.ResponseWriter, r *http.Request, from caller) {
	if r.Method != http.MethodGet {
		notAllowed(w, "GET, OPTIONS")
		return
	}
	if !checkAccept(w, r, typeSSE) {
		return
	}
	leave := h.open.enter(w, r, from.who)
	if leave == nil {
		return
	}
	s := h.open.session(from)
	s.sse, s.out.keep, s.said, s.changes = true, 0, nil, nil // nothing can be resumed, or moved
	out := newResponder(w)
	rd := s.out.attach("", out)
	h.open.begin(s, leave)
	defer s.idle.release()
	defer func() {
		s.end(errDropped, false)
		rd.detach(false, true)
	}()
	if out.begin() != nil {
		return
	}
	// Relative, so that it works behind any path prefix.
	out.buf = appendEvent(out.buf, "endpoint", "", []byte("message?sessionId="+s.id))
	if out.flush() != nil {
		return
	}
	copyEvents(r.Context(), out, rd)
}

// post receives one message for the session in the query.
func (h *httpSSE) post(w http.ResponseWriter, r *http.Request, from caller) {
	if r.Method != http.MethodPost {
		notAllowed(w, "POST, OPTIONS")
		return
	}
	if !checkPost(w, r) {
		return
	}
	id := r.URL.Query().Get("sessionId")
	s := h.open.find(r.Context(), id, from, true)
	if s == nil {
		if answered, _ := h.relay.toOwner(w, r, from.who, id); !answered {
			noSession(w)
		}
		return
	}
	defer s.idle.release()
	m, _ := h.bodies.readMessage(w, r, from.who.Principal, s.unusable)
	if m == nil {
		return
	}
	messages := []*jsonrpc.Message{m} // check refuses batches here
	reason := s.check(messages, m.Batch != nil, from)
	switch {
	case reason != "":
		refuse(w, http.StatusBadRequest, reason)
	case s.deliver(r.Context(), nil, messages) != nil:
		sessionEnded(w)
	default:
		writeStatus(w, http.StatusAccepted)
	}
}
