package frontend

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// plainWait is how long a POST of the legacy era waits for a response that can go as
// plain JSON. Its client needs the event stream, to resume it.
const plainWait = 50 * time.Millisecond

// post takes one message, or one batch, from a client and answers it.
func (h *HTTP) post(w http.ResponseWriter, r *http.Request, upstream string) {
	if no := checkPost(r); no != nil {
		refuse(w, no.status, no.reason)
		return
	}
	if !accepts(r, typeJSON) || !accepts(r, typeSSE) {
		refuse(w, http.StatusNotAcceptable, "Accept must list application/json and text/event-stream")
		return
	}
	if r.Header.Get(headerSession) == "" || modernHeader(r) {
		h.postAlone(w, r, upstream)
		return
	}
	s := h.session(r.Header.Get(headerSession), upstream, false)
	if s == nil {
		h.postStale(w, r, upstream)
		return
	}
	defer s.release()
	if !s.fits(w, r) {
		return
	}
	m := h.readMessage(w, r, s)
	switch {
	case m == nil:
	case isModern(m):
		h.postModern(w, r, upstream, m)
	default:
		h.postTo(w, r, s, m)
	}
}

// postTo takes what a client sends to its session.
func (h *HTTP) postTo(w http.ResponseWriter, r *http.Request, s *session, m *jsonrpc.Message) {
	messages, reason := unbundle(m, s)
	if reason != "" {
		refuse(w, http.StatusBadRequest, reason)
		return
	}
	h.exchange(w, r, s, messages, m.Batch != nil)
}

// postStale takes what names a session that there is not. To a modern client the
// header means nothing ("ignore it"), and the body says of which era it is.
func (h *HTTP) postStale(w http.ResponseWriter, r *http.Request, upstream string) {
	if h.isDraining() { // before anything of it is read
		noSession(w)
		return
	}
	m := h.readMessage(w, r, nil)
	switch {
	case m == nil:
	case isModern(m):
		h.postModern(w, r, upstream, m)
	default:
		noSession(w)
	}
}

// postAlone takes what comes without a session: a message of the modern era, which
// has none, or initialize. Modern clients may send the header; it means nothing.
func (h *HTTP) postAlone(w http.ResponseWriter, r *http.Request, upstream string) {
	if h.isDraining() { // before anything of it is read
		unavailable(w, "the proxy is shutting down")
		return
	}
	m := h.readMessage(w, r, nil)
	switch {
	case m == nil:
	case modernHeader(r) || isModern(m):
		h.postModern(w, r, upstream, m)
	case !knownVersion(r.Header.Get(headerVersion)):
		refuse(w, http.StatusBadRequest, "unsupported "+headerVersion)
	case !m.IsRequest() || m.Method != mcp.MethodInitialize:
		refuse(w, http.StatusBadRequest, headerSession+" is missing, and the message is not initialize")
	default:
		h.postInitialize(w, r, upstream, m)
	}
}

// postInitialize begins a session.
func (h *HTTP) postInitialize(w http.ResponseWriter, r *http.Request, upstream string, m *jsonrpc.Message) {
	if !h.enter(w) {
		return
	}
	s := h.begin(upstream, func(s *session) {
		raw, _ := jsonrpc.Member(m.Params, "protocolVersion")
		s.version, _ = jsonrpc.Unquote(raw)
		s.expireAfter(h.sessionIdle(), h.sessionGone())
	})
	defer s.release()
	h.exchange(w, r, s, []*jsonrpc.Message{m}, false)
}

// require returns the session that r names and holds it; if there is none, or r
// does not fit it, the client has been told.
func (h *HTTP) require(w http.ResponseWriter, r *http.Request, upstream string) *session {
	id := r.Header.Get(headerSession)
	if id == "" {
		refuse(w, http.StatusBadRequest, headerSession+" is missing")
		return nil
	}
	s := h.session(id, upstream, false)
	if s == nil {
		noSession(w)
		return nil
	}
	if !s.fits(w, r) {
		s.release()
		return nil
	}
	return s
}

// fits reports whether r is in the version of the session; if not, the client has
// been told.
func (s *session) fits(w http.ResponseWriter, r *http.Request) bool {
	ok := s.accepts(r.Header.Get(headerVersion))
	if !ok {
		refuse(w, http.StatusBadRequest, "unsupported "+headerVersion)
	}
	return ok
}

// noSession refuses what is for a session that there is not. 404 makes the client
// begin a new one.
func noSession(w http.ResponseWriter) { refuse(w, http.StatusNotFound, "no such session") }

// readMessage reads the body. A body that cannot be used has been refused, and
// nil is returned; a bad answer to a question of s becomes an error for who
// asked.
func (h *HTTP) readMessage(w http.ResponseWriter, r *http.Request, s *session) *jsonrpc.Message {
	body, no := h.readBody(r)
	if no != nil {
		w.Header().Set("Connection", "close") // the rest of the body is not wanted
		if no.status == http.StatusServiceUnavailable {
			unavailable(w, no.reason)
		} else {
			refuse(w, no.status, no.reason)
		}
		return nil
	}
	m, err := h.Limits.Decode(body)
	if err == nil {
		return m
	}
	bad, _ := errors.AsType[*jsonrpc.InvalidError](err) // it always is one
	if s != nil && bad.Reply && !bad.ID.IsZero() {
		s.mu.Lock()
		s.answerLocked(jsonrpc.NewError(bad.ID, bad.Wire()))
		s.mu.Unlock()
	}
	id := jsonrpc.ID{}
	if modernHeader(r) && !bad.Reply {
		id = bad.ID
	}
	writeError(w, http.StatusBadRequest, id, bad.Wire())
	return nil
}

// unbundle returns the messages of a batch, which exists in 2025-03-26 alone, or
// of a single message; or why they are refused.
func unbundle(m *jsonrpc.Message, s *session) (messages []*jsonrpc.Message, reason string) {
	messages = []*jsonrpc.Message{m}
	if m.Batch != nil {
		if s.legacy || s.versionOf() != "2025-03-26" {
			return nil, "batches exist in protocol version 2025-03-26 only"
		}
		messages = m.Batch
	}
	for _, m := range messages {
		if m.Method == mcp.MethodInitialize && !s.legacy {
			return nil, "the session is initialized already"
		}
	}
	return messages, ""
}

// exchange hands messages to Serve and answers the POST that brought them.
func (h *HTTP) exchange(w http.ResponseWriter, r *http.Request, s *session, messages []*jsonrpc.Message, batch bool) {
	st, err := s.expect(messages, batch)
	switch err {
	case nil:
	case errDuplicateID:
		refuse(w, http.StatusBadRequest, err.Error())
		return
	default:
		refuse(w, http.StatusNotFound, err.Error())
		return
	}
	err = s.deliver(r.Context(), st, messages)
	switch {
	case st != nil: // if the session ended, each request has been answered with that
		h.answer(w, r, s, st)
	case err != nil:
		refuse(w, http.StatusNotFound, errSessionEnded.Error())
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// answer writes the responses of st: as plain JSON if they are all there soon and
// nothing else is, else as an event stream.
func (h *HTTP) answer(w http.ResponseWriter, r *http.Request, s *session, st *stream) {
	rd := st.reader
	h.waitPlain(r.Context(), rd.wake, plainWait)
	if r.Context().Err() != nil { // not a cancel; but the response has nowhere to go
		s.detach(st, rd, false)
		if st.init { // nobody knows the session's id
			s.end(errDropped, false)
		}
		return
	}
	events, complete := s.takeAll(st)
	if !complete {
		s.number(st)
		s.announce(w, st)
		s.pump(w, r, st, rd, true)
		return
	}
	s.announce(w, st)
	writePlain(w, events, st.batch)
	s.wroteAll(st)
}

// waitPlain waits for a stream to be complete, or to need an event stream, which it
// does after d.
func (h *HTTP) waitPlain(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	timer, ok := h.timers.Get().(*time.Timer)
	if ok {
		timer.Reset(d)
	} else {
		timer = time.NewTimer(d)
	}
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
	timer.Stop()
	h.timers.Put(timer)
}

// announce tells the client the id of its new session, unless it is known that
// there will be none.
func (s *session) announce(w http.ResponseWriter, st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.init && (st.owed > 0 || s.established) {
		w.Header()[headerSession] = []string{s.id}
	}
}

// smallBody is what net/http holds back, so that it finds the length itself.
const smallBody = 2 << 10

// writePlain writes responses as one JSON value.
func writePlain(w http.ResponseWriter, responses []event, batch bool) {
	body := responses[0].data
	if batch {
		body = []byte{'['}
		for i, e := range responses {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, e.data...)
		}
		body = append(body, ']')
	}
	writeJSON(w, http.StatusOK, body)
}

// writeJSON writes a response that is all there.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = headerJSON
	if len(body) > smallBody {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(status)
	newResponder(w).write(body) // the client may be gone: nobody to tell
}

// pump writes the events of st to w until the stream is complete, the connection
// drops, or another connection takes the stream over. A fresh stream is primed.
func (s *session) pump(w http.ResponseWriter, r *http.Request, st *stream, rd *reader, fresh bool) {
	out := newResponder(w)
	primed := fresh && s.versionOf() >= "2025-11-25"
	resumable := primed || !fresh
	defer func() { s.detach(st, rd, resumable) }()
	if out.begin() != nil {
		return
	}
	if primed && out.prime(eventID(st.number, rd.at)) != nil {
		return
	}
	copyEvents(r.Context(), out, sessionFeed{s, st, rd})
}
