package frontend

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// plainWait is how long a POST of the legacy era waits for a plain response. It is short, because
// only an event stream can be resumed, and because a client that leaves is noticed only afterwards.
const plainWait = 50 * time.Millisecond

// A streamable is the endpoint of Streamable HTTP. It handles legacy clients itself.
type streamable struct {
	open   *openSessions
	bodies *bodies
	alarms *sync.Pool // see waitPlain
	modern *modernClients
	relay  *relay // nil if there are no other replicas
}

func (h *streamable) serve(w http.ResponseWriter, r *http.Request, c caller) {
	switch r.Method {
	case http.MethodPost:
		h.post(w, r, c)
	case http.MethodGet:
		h.get(w, r, c)
	case http.MethodDelete:
		h.delete(w, r, c)
	default:
		if !refusedModern(w, r) {
			notAllowed(w, "GET, POST, DELETE, OPTIONS")
		}
	}
}

// post receives one message or one batch from a client and answers it. The header names its
// session. Without the header, the message is initialize or of the modern era, which ignores the
// header.
func (h *streamable) post(w http.ResponseWriter, r *http.Request, c caller) {
	if !checkPost(w, r) || !checkAccept(w, r, typeJSON, typeSSE) {
		return
	}
	id := field(r.Header, headerSession)
	modern := modernHeader(r)
	named := id != "" && !modern
	var s *httpSession
	if named {
		var answered bool
		if s, answered = h.find(w, r, c, id); answered {
			return
		}
	}
	switch {
	case s != nil:
		defer s.idle.release()
		if !s.fits(w, r) {
			return
		}
	case !h.open.isDraining():
	case named: // before reading the body
		noSession(w)
		return
	default: // a listen is its connection, which ends soon
		if field(r.Header, headerMethod) == mcp.MethodListen || !h.relay.toReady(w, r, c.who) {
			unavailable(w, shuttingDown)
		}
		return
	}
	m, body := h.bodies.readMessage(w, r, c.who.Principal, s.unusable)
	switch {
	case m == nil:
	case modern || isModern(m):
		h.modern.post(w, r, c, m, body)
	case s != nil:
		h.postTo(w, r, c, s, m)
	case named:
		noSession(w)
	default:
		h.postFirst(w, r, c, m)
	}
}

// find returns the session with that id and holds it. If another replica has it, find answers r with its
// response; if nobody knows, with 503.
func (h *streamable) find(w http.ResponseWriter, r *http.Request, from caller, id string) (s *httpSession, answered bool) {
	if !h.open.keeper.await(r.Context()) {
		unavailable(w, ownerAway)
		return nil, true
	}
	if s = h.open.find(r.Context(), id, from, false); s != nil {
		return s, false
	}
	answered, here := h.relay.toOwner(w, r, from.who, id)
	if here {
		s = h.open.find(r.Context(), id, from, false)
	}
	return s, answered
}

// passesOn answers a request for an upstream that this replica does not have, if it belongs to a session, suspended
// call or task of another replica: that one may have it, while a changed configuration has not reached all.
func (h *streamable) passesOn(w http.ResponseWriter, r *http.Request, c caller) bool {
	id := field(r.Header, headerSession)
	switch {
	case h.relay == nil:
		return false
	case id != "" && !modernHeader(r):
		s, answered := h.find(w, r, c, id)
		if s != nil {
			s.idle.release()
		}
		return answered
	case r.Method != http.MethodPost || !modernHeader(r) || isFromReplica(r.Context()):
		return false
	case !checkPost(w, r):
		return true
	}
	m, body := h.bodies.readMessage(w, r, c.who.Principal, (*httpSession)(nil).unusable)
	return m == nil || h.relay.toGiver(w, r, c.who, h.relay.givenIn(m), body)
}

// postTo receives a message for a session.
func (h *streamable) postTo(w http.ResponseWriter, r *http.Request, from caller, s *httpSession, m *jsonrpc.Message) {
	messages := []*jsonrpc.Message{m}
	if m.Batch != nil {
		messages = m.Batch
	}
	reason := s.check(messages, m.Batch != nil, from)
	switch {
	case reason != "":
		refuse(w, http.StatusBadRequest, reason)
		return
	case m.IsResponse() && s.askedBefore(m.ID):
		refuse(w, http.StatusNotFound, "the call that asked this has ended, since the session went on at another replica")
		return
	}
	h.exchange(w, r, s, messages, m.Batch != nil)
}

// postFirst receives initialize, which begins a session.
func (h *streamable) postFirst(w http.ResponseWriter, r *http.Request, from caller, m *jsonrpc.Message) {
	switch {
	case !knownVersion(field(r.Header, headerVersion)):
		refuse(w, http.StatusBadRequest, "unsupported "+headerVersion)
		return
	case !m.IsRequest() || m.Method != mcp.MethodInitialize:
		refuse(w, http.StatusBadRequest, headerSession+" is missing, and the message is not initialize")
		return
	}
	leave := h.open.enter(w, r, from.who)
	if leave == nil {
		return
	}
	from.sent(m)
	s := h.open.session(from)
	s.version, _ = mcp.Read(m).Text(mcp.Key)
	h.open.begin(s, leave)
	defer s.idle.release()
	h.exchange(w, r, s, []*jsonrpc.Message{m}, false)
}

// get opens the standalone stream, or resumes the stream of Last-Event-ID. The id of a stream that is unknown or over
// gets 400 and not 404, which would make the client begin a new session. If events after it have been pushed out, the
// stream goes on with the oldest that is kept, since the response may be among those. When the client's proof
// ends, the stream ends, and later messages wait for the client to return with a new one.
func (h *streamable) get(w http.ResponseWriter, r *http.Request, from caller) {
	if refusedModern(w, r) || !checkAccept(w, r, typeSSE) {
		return
	}
	s := h.require(w, r, from)
	if s == nil {
		return
	}
	defer s.idle.release()
	defer s.gotten()()
	lastID := field(r.Header, headerLastID)
	out := newResponder(w)
	rd := s.out.attach(lastID, out)
	if rd == nil {
		refuse(w, http.StatusBadRequest, "unknown or expired Last-Event-ID")
		return
	}
	ctx, cancel := h.open.guard.whileGood(r.Context(), from.who)
	defer cancel()
	pump(ctx, out, s, rd, lastID == "")
}

// gotten counts a GET until the returned function is called.
func (s *httpSession) gotten() (over func()) {
	add := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gets += n
	}
	add(1)
	return func() { add(-1) }
}

// delete ends a session. Open requests get the connection-closed error.
func (h *streamable) delete(w http.ResponseWriter, r *http.Request, from caller) {
	if refusedModern(w, r) {
		return
	}
	s := h.require(w, r, from)
	if s == nil {
		return
	}
	defer s.idle.release()
	s.end(errDeleted, false)
	writeStatus(w, http.StatusNoContent)
}

// refusedModern refuses a modern client, which may only POST, and reports whether it did. A client
// with a session is not modern.
func refusedModern(w http.ResponseWriter, r *http.Request) bool {
	modern := modernHeader(r) && field(r.Header, headerSession) == ""
	if modern {
		notAllowed(w, "POST, OPTIONS")
	}
	return modern
}

// require returns the session of r and holds it. If it returns nil, it has answered r.
func (h *streamable) require(w http.ResponseWriter, r *http.Request, from caller) *httpSession {
	id := field(r.Header, headerSession)
	if id == "" {
		refuse(w, http.StatusBadRequest, headerSession+" is missing")
		return nil
	}
	s, answered := h.find(w, r, from, id)
	if s == nil {
		if !answered {
			noSession(w)
		}
		return nil
	}
	if !s.fits(w, r) {
		s.idle.release()
		return nil
	}
	return s
}

// fits reports whether r has the version of the session, and refuses it if not.
func (s *httpSession) fits(w http.ResponseWriter, r *http.Request) bool {
	ok := s.accepts(field(r.Header, headerVersion))
	if !ok {
		refuse(w, http.StatusBadRequest, "unsupported "+headerVersion)
	}
	return ok
}

// check returns why the messages of a batch, which only 2025-03-26 has, or of a single message are refused, or "".
// It sets their sender to from, whose proof may be newer than the session's. A question whose response in the batch
// is unusable is answered with an error.
func (s *httpSession) check(messages []*jsonrpc.Message, batch bool, from caller) (reason string) {
	if batch && (s.sse || s.versionOf() != "2025-03-26") {
		return "batches exist in protocol version 2025-03-26 only"
	}
	usable := false
	for _, m := range messages {
		if m.Method == mcp.MethodInitialize && !s.sse {
			return "the session is initialized already"
		}
		from.sent(m)
		if m.Unusable != nil {
			s.unusable(m.Unusable)
		} else {
			usable = true
		}
	}
	if !usable {
		return messages[0].Unusable.Reason
	}
	return ""
}

// exchange passes messages to Serve and answers their POST.
func (h *streamable) exchange(w http.ResponseWriter, r *http.Request, s *httpSession, messages []*jsonrpc.Message, batch bool) {
	s.awaitResumed(r.Context())
	rd, err := s.expect(messages, batch)
	if errors.Is(err, jsonrpc.ErrInUse) {
		refuse(w, http.StatusBadRequest, "a request with this id is in flight")
		return
	}
	if errors.Is(err, errMoved) { // while the body was read, at the end of the drain
		refuseMoved(w, messages, batch)
		return
	}
	if err == nil {
		err = s.deliver(r.Context(), rd, messages)
	}
	switch {
	case rd != nil: // if the session ended, each request has been answered with that
		h.answer(w, r, s, rd)
	case err != nil:
		sessionEnded(w)
	default:
		writeStatus(w, http.StatusAccepted)
	}
}

// refuseMoved answers messages that came too late for a session that moves.
func refuseMoved(w http.ResponseWriter, messages []*jsonrpc.Message, batch bool) {
	var responses []event
	for _, m := range messages {
		if m.IsRequest() {
			responses = append(responses, event{data: jsonrpc.NewError(m.ID, ending(jsonrpc.NotSent)).Text()})
		}
	}
	if len(responses) == 0 {
		unavailable(w, "the session is being moved")
		return
	}
	writeJSON(w, http.StatusOK, joined(responses, batch))
}

func sessionEnded(w http.ResponseWriter) { refuse(w, http.StatusNotFound, "the session has ended") }

// answer writes the responses on rd: plain JSON if all are there soon and nothing else is, else an
// event stream. A refusal comes at once, so its status and challenge reach the client. If something
// came before it, and in a batch, the client gets only the error.
func (h *streamable) answer(w http.ResponseWriter, r *http.Request, s *httpSession, rd *reader) {
	waitPlain(h.alarms, rd.wake, nil, plainWait)
	out := newResponder(w)
	responses, complete := rd.responses(out)
	if r.Context().Err() != nil && (len(responses) == 0 || rd.st.init) { // this does not cancel, but there is nowhere to send the response
		rd.detach(false, false)
		if rd.st.init { // nobody knows the session's id
			s.end(errDropped, false)
		}
		hangUp()
	}
	if !complete {
		s.out.number(rd.st)
	}
	if s.isNew(rd) {
		w.Header()[headerSession] = []string{s.id}
	}
	if !complete {
		pump(r.Context(), out, s, rd, true)
		return
	}
	defer rd.wrotePlain()
	if why := responses[0].refused; why != nil && !rd.st.batch {
		h.open.guard.writeRefused(w, r, why, responses[0].data)
		return
	}
	out.writeJSON(http.StatusOK, joined(responses, rd.st.batch))
}

// joined returns responses as one JSON value.
func joined(responses []event, batch bool) []byte {
	if !batch {
		return responses[0].data
	}
	all := make([][]byte, len(responses))
	for i, e := range responses {
		all[i] = e.data
	}
	return jsonrpc.Array(all)
}

// pump writes the events on rd until the stream is complete, ctx ends, or another connection takes
// over the stream. A fresh stream is primed.
func pump(ctx context.Context, out *responder, s *httpSession, rd *reader, fresh bool) {
	primed := fresh && s.versionOf() >= "2025-11-25"
	defer func() { rd.detach(primed || !fresh, proofEnd(ctx) != nil) }()
	if out.begin() != nil {
		return
	}
	if primed && out.prime(eventID(rd.st.number, rd.at)) != nil {
		return
	}
	copyEvents(ctx, out, rd)
}
