package frontend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// inbound bounds the messages of POSTs that wait for Recv. When it is reached, POSTs wait.
const inbound = 64

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

	// Of sessions that may move to another replica: see record.
	moving   *atomic.Bool  // sessions move away; nil: this one never does; static
	changes  *changes      // of its record, too; nil: none is kept; static
	said     *saidOnce     // nil likewise
	moves    int64         // how often the session has moved
	records  int64         // made for the replica that it moves to
	resumed  string        // "moved" or "adopted", if it was; static once Serve runs
	gets     int           // GETs being served
	resuming *resumption   // nil unless it has just moved here
	frozen   chan struct{} // it is being moved; closed when that is over
	taker    string        // the replica that may have it already; owned by the mover
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

// unusable makes Recv return an error for the question that bad should have answered, if it should
// have and s is not nil.
func (s *httpSession) unusable(bad *jsonrpc.InvalidError) {
	if s != nil && bad.Reply && !bad.ID.IsZero() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answerLocked(jsonrpc.NewError(bad.ID, bad.Wire()))
	}
}

// answerLocked makes Recv return m, an answer that the client cannot give.
func (s *httpSession) answerLocked(m *jsonrpc.Message) { s.in.Force(jsonrpc.Queued{Message: m}) }

// expect opens a stream for the responses to the requests among messages, and returns its reader;
// nil if there are no requests. It must be called before the requests are delivered. It answers the
// unusable elements of a batch.
func (s *httpSession) expect(messages []*jsonrpc.Message, batch bool) (*reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil || errors.Is(s.in.Err(), errMoved) {
		return nil, errMoved
	}
	var rd *reader
	var unusable []*jsonrpc.InvalidError
	for i, m := range messages {
		if !m.IsRequest() && m.Unusable == nil {
			continue
		}
		if rd == nil {
			rd = s.out.newPost(batch)
		}
		if m.Unusable != nil {
			unusable = append(unusable, m.Unusable)
			continue
		}
		if err := s.pending.Add(m.ID, rd.st); err != nil {
			s.withdrawLocked(rd, messages[:i])
			return nil, err
		}
		rd.st.init = m.Method == mcp.MethodInitialize // a second initialize was refused earlier
		rd.st.owed++
	}
	for _, bad := range unusable {
		s.out.push(rd.st, eventOf(bad.Answer(s.pending.Get(bad.ID) != nil)))
	}
	return rd, nil
}

// deliver passes messages to Recv, and waits for room. rd is the result of expect for them. If the
// client leaves meanwhile, it withdraws the remaining messages.
func (s *httpSession) deliver(ctx context.Context, rd *reader, messages []*jsonrpc.Message) error {
	if len(messages) == 1 && messages[0].IsRequest() && s.pass(messages[0]) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range messages {
		if m.Unusable != nil { // expect has answered it
			continue
		}
		err := s.in.WaitContext(ctx, &s.room, 1)
		if err == nil {
			err = s.in.Put(jsonrpc.Queued{Message: m, Room: &s.room})
		}
		if err != nil {
			if ctx.Err() != nil {
				s.withdrawLocked(rd, messages[i:])
			}
			return err
		}
		if m.Method == mcp.MethodCancelled && m.IsNotification() && !s.sse {
			s.cancelledLocked(m)
		}
		s.noteLocked(m)
	}
	return nil
}

// pass has a request handled in this goroutine, unless others are ahead of it.
func (s *httpSession) pass(m *jsonrpc.Message) bool {
	q := jsonrpc.Queued{Message: m}
	if s.said != nil {
		q.Of = noting{s, m}
	}
	return s.in.Pass(q)
}

// A noting message is remembered when it is passed, in the order in which Serve gets it.
type noting struct {
	s *httpSession
	m *jsonrpc.Message
}

// Leave implements [jsonrpc.Leaving].
func (n noting) Leave() bool {
	n.s.noteLocked(n.m)
	return true
}

// noteLocked remembers what a client says once, for another replica.
func (s *httpSession) noteLocked(m *jsonrpc.Message) {
	if s.said != nil && s.said.note(m) {
		s.changes.note(s.id)
	}
}

// withdrawLocked removes the requests among messages for which rd waits.
func (s *httpSession) withdrawLocked(rd *reader, messages []*jsonrpc.Message) {
	for _, m := range messages {
		if m.IsRequest() && rd != nil && s.pending.Take(m.ID, rd.st) {
			rd.st.owed--
		}
	}
}

// cancelledLocked answers a request that its client cancels: Serve never answers it, but the POST
// needs a response. initialize cannot be cancelled.
func (s *httpSession) cancelledLocked(m *jsonrpc.Message) {
	id, ok := mcp.Read(m).ID(mcp.Key)
	if !ok {
		return
	}
	if st := s.pending.Get(id); st != nil && !st.init {
		s.failLocked(id, &jsonrpc.Error{Code: jsonrpc.CodeRequestCancelled, Message: "Request cancelled"})
	}
}

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
