package frontend

import "net/http"

// get opens the standalone stream, or resumes the stream that Last-Event-ID
// names. An id that is unknown or too old is 400, not 404: the session lives, and
// 404 would make the client begin a new one.
func (h *HTTP) get(w http.ResponseWriter, r *http.Request, upstream string) {
	if refusedModern(w, r) {
		return
	}
	if !accepts(r, typeSSE) {
		refuse(w, http.StatusNotAcceptable, "Accept must list text/event-stream")
		return
	}
	s := h.require(w, r, upstream)
	if s == nil {
		return
	}
	defer s.release()
	lastID := r.Header.Get(headerLastID)
	st, rd, ok := s.attach(lastID)
	if !ok {
		refuse(w, http.StatusBadRequest, "unknown or expired Last-Event-ID")
		return
	}
	s.pump(w, r, st, rd, lastID == "")
}

// delete ends a session. What is in flight is answered with the one error.
func (h *HTTP) delete(w http.ResponseWriter, r *http.Request, upstream string) {
	if refusedModern(w, r) {
		return
	}
	s := h.require(w, r, upstream)
	if s == nil {
		return
	}
	defer s.release()
	s.end(errDeleted, false)
	w.WriteHeader(http.StatusNoContent)
}

// refusedModern refuses a client that says it is of the era without sessions, and
// names none: there is only POST for it.
func refusedModern(w http.ResponseWriter, r *http.Request) bool {
	modern := modernHeader(r) && r.Header.Get(headerSession) == ""
	if modern {
		notAllowed(w, "POST, OPTIONS")
	}
	return modern
}
