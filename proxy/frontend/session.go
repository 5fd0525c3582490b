package frontend

import (
	"errors"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Causes of the end of a session.
var (
	errDeleted    = errors.New("deleted by the client")
	errIdle       = errors.New("idle for too long")
	errGone       = errors.New("the client did not return")
	errDropped    = errors.New("connection dropped by the client")
	errNotStarted = errors.New("initialize failed")
	errServed     = errors.New("closed by the proxy")
	errStopped    = errors.New("the proxy stopped")
	errMoved      = errors.New("moved to another replica") // which serves the session from now on
)

// An httpSession is one legacy client on HTTP, and the Conn for Serve: Recv returns the messages of
// POSTs, Send finds the stream for a message. It is a Table and a Queue and not a Peer, because its
// requests and their responses travel on different connections.
type httpSession struct {
	// Static after construction.
	id    string
	of    caller // who began it, and on which path
	sse   bool   // HTTP+SSE: everything is sent on the one stream
	onEnd func() // called once, when the session has ended

	mu          sync.Mutex                              // guards the fields below
	in          *jsonrpc.Queue                          // from POSTs to Recv; finished when the session has ended
	room        jsonrpc.Room                            // of the messages of POSTs in it
	pending     jsonrpc.Table[jsonrpc.ID, *eventStream] // open requests
	out         eventStreams
	queued      streamBacklog // messages that wait for Send; not guarded
	idle        idleTimer
	busy        func() bool // the client has work besides requests; nil: it never has
	version     string      // negotiated; before that, the version that the client asked for
	established bool        // initialize succeeded
	movable
}

func newHTTPSession(id string, of caller, u *principalBacklog) *httpSession {
	s := &httpSession{id: id, of: of, onEnd: func() {}, room: jsonrpc.Room{Messages: inbound}}
	s.in, s.idle.mu = jsonrpc.NewQueue(&s.mu), &s.mu
	s.out = eventStreams{mu: &s.mu, idle: &s.idle, backlog: u, keep: storeEvents, numbered: make(map[int]*eventStream)}
	s.out.standalone = s.out.newStream(&eventStream{})
	s.out.read = streamBacklog{of: u, cut: s.out.evictRead}
	s.out.read.spare.Store(true)
	s.out.room.L = &s.mu
	s.queued = streamBacklog{of: u, cut: s.unblock}
	s.out.refuse = func(question jsonrpc.ID) { s.answerLocked(jsonrpc.NewError(question, jsonrpc.Overloaded(""))) }
	return s
}

// Recv implements [jsonrpc.Conn]. It still returns messages of POSTs that came before the client
// ended the session.
func (s *httpSession) Recv() (*jsonrpc.Message, error) {
	return s.in.Next()
}

// OnSend implements [jsonrpc.Direct].
func (s *httpSession) OnSend(handle func(*jsonrpc.Message) bool) { s.in.OnPass(handle) }

// Send implements [jsonrpc.Conn]. A response is sent to the POST of its request, a message that is
// Related to a request to that request's POST, and all others to the standalone stream, which
// stores them until a GET opens it. Send blocks while the client does not read the stream.
func (s *httpSession) Send(m *jsonrpc.Message) error {
	e := eventOf(m)
	s.mu.Lock()
	resumed, failed := s.resumedLocked(m)
	var err error
	if !resumed {
		var st *eventStream
		st, err = s.sendLocked(m, e)
		failed = st != nil && st.init && m.Error != nil
	}
	s.mu.Unlock()
	if failed {
		s.end(errNotStarted, false) // do not keep a session whose initialize failed
	}
	return err
}

// SendNow implements [jsonrpc.Prompt] for small responses. Larger ones take long to copy, and those
// to initialize may end the session.
func (s *httpSession) SendNow(m jsonrpc.Queued) bool {
	if !m.IsResponse() || m.Size() > smallBody {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.routeLocked(m.Message)
	if st == nil || st.init || st.full() || s.resuming != nil || s.in.Err() != nil {
		return false
	}
	if m.Leave() {
		_, _ = s.sendLocked(m.Message, eventOf(m.Message))
	}
	return true
}

// Waits adds the size of messages that wait for Send; bytes may be negative.
func (s *httpSession) Waits(bytes int) { s.queued.grow(bytes) }

// unblock ends the streams that block Send.
func (s *httpSession) unblock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.standalone.full() {
		s.out.cutLocked(s.out.standalone)
	}
	for id := range s.pending.Each {
		if st := s.pending.Get(id); st.full() {
			s.out.cutLocked(st)
		}
	}
}

// sendLocked returns the stream that took the message, nil for none.
func (s *httpSession) sendLocked(m *jsonrpc.Message, e event) (*eventStream, error) {
	st := s.routeLocked(m)
	for st != nil && st.full() && s.in.Err() == nil {
		s.out.room.Wait()
		st = s.routeLocked(m)
	}
	switch {
	case s.in.Err() != nil:
		return nil, s.in.Err()
	case st == nil: // late or unknown: whoever took the request has answered it
	case e.response && !s.sse:
		if st.init && m.Error == nil {
			s.negotiatedLocked(m)
		}
		s.settleLocked(m.ID, e)
	case st.lost || st.backlog.room(len(e.data)):
		s.out.push(st, e)
	case e.response: // the client waits for it, and an error is small
		s.out.push(st, event{data: jsonrpc.NewError(e.id, unreadable()).Text(), id: e.id, response: true})
	default:
		s.out.dropped++
		s.out.drop(e)
		st.backlog.end()
	}
	return st, nil
}

// routeLocked returns the stream for m, nil if nobody waits for it.
func (s *httpSession) routeLocked(m *jsonrpc.Message) *eventStream {
	switch {
	case s.sse:
		return s.out.standalone
	case m.IsResponse():
		return s.pending.Get(m.ID)
	}
	st, standalone := s.pending.Get(m.Related), s.out.standalone
	// The client may get a question on another stream: it may not return for one that it has dropped.
	if st == nil || m.IsRequest() && (st.lost || st.reader == nil && standalone.reader != nil) {
		return standalone
	}
	return st
}

// negotiatedLocked reads the response to initialize.
func (s *httpSession) negotiatedLocked(m *jsonrpc.Message) {
	s.established = true
	s.changes.note(s.id)
	raw, _ := jsonrpc.Member(m.Result, "protocolVersion")
	if version, ok := jsonrpc.Unquote(raw); ok {
		s.version = version
	}
}

// settleLocked takes the request with that id and answers it.
func (s *httpSession) settleLocked(id jsonrpc.ID, e event) {
	st, _ := s.pending.TakeKey(id)
	st.owed--
	// A small response costs less than its connection.
	if len(e.data) > smallBody && !st.lost && !st.backlog.room(len(e.data)) {
		e.data = jsonrpc.NewError(id, unreadable()).Text()
	}
	s.out.push(st, e)
}

func (s *httpSession) failLocked(id jsonrpc.ID, err *jsonrpc.Error) {
	s.settleLocked(id, event{data: jsonrpc.NewError(id, err).Text(), id: id, response: true})
}

// Close implements [jsonrpc.Conn].
func (s *httpSession) Close() error {
	s.end(errServed, true)
	return nil
}

// end ends the session once: every open request gets the connection-closed error, and every stream
// ends. own means that Serve's side ends it; then the requests that Recv has not returned are known
// not to have run.
func (s *httpSession) end(cause error, own bool) {
	s.mu.Lock()
	ended := s.endLocked(cause, own)
	s.mu.Unlock()
	if ended {
		s.onEnd()
	}
}

// endLocked reports whether this call ended the session.
func (s *httpSession) endLocked(cause error, own bool) bool {
	first := s.in.Err() == nil
	s.in.Finish(cause, 0, nil)
	if own {
		s.dropUnreceivedLocked(ending)
	}
	if !first {
		return false
	}
	for id := range s.pending.Each {
		s.failLocked(id, ending(jsonrpc.InFlight))
	}
	s.pending.Close(s.in.Err())
	if s.resuming != nil && s.resuming.answered != nil {
		close(s.resuming.answered)
	}
	s.resuming = nil
	s.out.close()
	s.idle.stop()
	return true
}

// dropUnreceivedLocked answers with an error the requests that Recv has not returned, and never will.
func (s *httpSession) dropUnreceivedLocked(why func(jsonrpc.Phase) *jsonrpc.Error) {
	var unreceived []*jsonrpc.Message
	s.in.Drop(func(m jsonrpc.Queued) bool {
		unreceived = append(unreceived, m.Message)
		return true
	})
	for _, m := range unreceived {
		if m.IsRequest() && s.pending.Get(m.ID) != nil {
			s.failLocked(m.ID, why(jsonrpc.NotSent))
		}
	}
}

// ending returns the error for requests of a client whose own connection ends.
func ending(phase jsonrpc.Phase) *jsonrpc.Error {
	return jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.Cause{}, phase)
}

// expire ends the session if no HTTP request was open for HTTP.SessionIdle, even with requests in
// flight, because the client may never return for their results. It ends it after HTTP.SessionGone
// if the standalone stream was cut and nothing came since; then requests in flight delay the end up
// to SessionIdle.
func (s *httpSession) expire() {
	busy := s.isBusy()
	s.mu.Lock()
	cause := errIdle
	if s.idle.alone {
		cause = errGone
	}
	ended := s.idle.expired(busy || s.pending.Len() > 0) && s.endLocked(cause, false)
	s.mu.Unlock()
	if ended {
		s.onEnd()
	}
}

// Transport returns the name of the transport.
func (s *httpSession) Transport() string {
	if s.sse {
		return "http+sse"
	}
	return "http"
}

// Resumed returns how the session came from another replica: "moved", or "adopted" after its death; "" if it
// began here.
func (s *httpSession) Resumed() string { return s.resumed }

// Forwarded returns the headers of the request that began the session, as far as upstreams get them,
// nil for none, and a digest of those that say who the user is, which are the same in all requests.
func (s *httpSession) Forwarded() (headers *jsonrpc.Forwarded, user string) {
	return s.of.forwarded, s.of.user
}

// KeepWhile sets a function that reports whether the client has work besides its requests, such as
// a task. While it has, the client may be away for longer. The function is called without locks
// held.
func (s *httpSession) KeepWhile(busy func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = busy
}

func (s *httpSession) isBusy() bool {
	s.mu.Lock()
	busy := s.busy
	s.mu.Unlock()
	return busy != nil && busy()
}

// accepts reports whether a client of this session may send the header MCP-Protocol-Version: v.
// Without the header the negotiated version counts.
func (s *httpSession) accepts(v string) bool {
	return knownVersion(v) || v == "2024-11-05" && v == s.versionOf()
}

func (s *httpSession) versionOf() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

func (s *httpSession) dropped() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.dropped
}

// isNew reports whether the response on rd tells the client its session id: unless initialize is
// known to have failed.
func (s *httpSession) isNew(rd *reader) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return rd.st.init && (rd.st.owed > 0 || s.established)
}
