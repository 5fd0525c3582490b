package frontend

import "net/http"

// The HTTP+SSE transport of 2024-11-05. A GET of /sse is the session: its first
// event names the endpoint for POSTs, all messages to the client follow on it,
// and when it drops the session is over.

// serveSSE opens a session and is its stream.
func (h *HTTP) serveSSE(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet:
		notAllowed(w, "GET, OPTIONS")
		return
	case !accepts(r, typeSSE):
		refuse(w, http.StatusNotAcceptable, "Accept must list text/event-stream")
		return
	case !h.enter(w):
		return
	}
	var st *stream
	var rd *reader
	s := h.begin("", func(s *session) {
		s.legacy, s.keep = true, 0 // nothing can be resumed
		st, rd, _ = s.attach("")
	})
	defer s.release()
	defer s.end(errDropped, false)
	out := newResponder(w)
	if out.begin() != nil {
		return
	}
	// Relative, so that it holds behind whatever path prefix a client sees.
	out.buf = appendEvent(out.buf, "endpoint", "", []byte("message?sessionId="+s.id))
	if out.flush() != nil {
		return
	}
	copyEvents(r.Context(), out, sessionFeed{s, st, rd})
}

// serveMessage takes one message for the session that the query names.
func (h *HTTP) serveMessage(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		notAllowed(w, "POST, OPTIONS")
		return
	}
	if no := checkPost(r); no != nil {
		refuse(w, no.status, no.reason)
		return
	}
	s := h.session(r.URL.Query().Get("sessionId"), "", true)
	if s == nil {
		refuse(w, http.StatusNotFound, "no such session")
		return
	}
	defer s.release()
	m := h.readMessage(w, r, s)
	if m == nil {
		return
	}
	messages, reason := unbundle(m, s)
	if reason != "" {
		refuse(w, http.StatusBadRequest, reason)
		return
	}
	if s.deliver(r.Context(), nil, messages) != nil {
		refuse(w, http.StatusNotFound, errSessionEnded.Error())
		return
	}
	w.WriteHeader(http.StatusAccepted)
}
