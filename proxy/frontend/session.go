package frontend

import (
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// inbound is how many messages from POSTs wait for Recv; then the POSTs wait.
const inbound = 64

// Why a session ended.
var (
	errDeleted    = errors.New("deleted by the client")
	errIdle       = errors.New("idle for too long")
	errGone       = errors.New("the client did not return")
	errDropped    = errors.New("connection dropped by the client")
	errNotStarted = errors.New("initialize failed")
	errServed     = errors.New("closed by the proxy")
	errStopped    = errors.New("the proxy stopped")
)

// A session is one client that speaks HTTP, and the Conn that Serve gets: Recv
// returns what POSTs bring, Send finds the stream for a message.
type session struct {
	// Static after construction.
	id       string
	upstream string
	legacy   bool   // 2024-11-05: everything goes to the one stream
	keep     int    // events that the store holds
	onEnd    func() // called once, when the session has ended
	unread   *unread

	in      chan *jsonrpc.Message // from POSTs to Recv; never closed
	refused chan struct{}         // capacity 1: answers is not empty
	done    chan struct{}         // closed by end

	mu          sync.Mutex // guards the fields below and all streams
	room        sync.Cond  // a stream takes messages again, or is detached, or the session ended
	closed      bool
	cause       error  // of the end
	own         bool   // this side closed
	version     string // negotiated; before that, what the client asked for
	established bool   // initialize succeeded
	lease
	busy func() bool // work goes on besides requests; nil: never

	pending    map[jsonrpc.ID]*stream // requests without a response; who removes one answers it
	answers    []*jsonrpc.Message     // errors for questions that found no room
	standalone *stream
	streams    map[int]*stream // event streams of POSTs that can be resumed
	lastStream int
	store      []*stream // whose oldest stored event is next to go, in order
	storeBytes int
	dropped    int // messages pushed out of the store that no client ever got
}

func newSession(id, upstream string) *session {
	s := &session{
		id: id, upstream: upstream, keep: storeEvents, unread: newUnread(jsonrpc.Limits{}),
		in: make(chan *jsonrpc.Message, inbound), refused: make(chan struct{}, 1), done: make(chan struct{}),
		pending:    make(map[jsonrpc.ID]*stream),
		standalone: &stream{first: 1},
		streams:    make(map[int]*stream),
	}
	s.room.L = &s.mu
	return s
}

// Recv implements [jsonrpc.Conn]. What POSTs brought before the client ended the
// session still arrives.
func (s *session) Recv() (*jsonrpc.Message, error) {
	for {
		select {
		case <-s.done:
			return s.rest()
		default:
		}
		select {
		case m := <-s.in:
			return m, nil
		case <-s.refused:
			if m := s.nextAnswer(); m != nil {
				return m, nil
			}
		case <-s.done:
		}
	}
}

// rest returns what is left after the end, and then the end.
func (s *session) rest() (*jsonrpc.Message, error) {
	s.mu.Lock()
	own, cause := s.own, s.cause
	s.mu.Unlock()
	if !own {
		select {
		case m := <-s.in:
			return m, nil
		default:
		}
	}
	return nil, jsonrpc.Closed(cause)
}

// answerLocked makes Recv return m, a response that the client cannot give.
func (s *session) answerLocked(m *jsonrpc.Message) {
	s.answers = append(s.answers, m)
	notify(s.refused)
}

func (s *session) nextAnswer() *jsonrpc.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) == 0 {
		return nil
	}
	m := s.answers[0]
	s.answers = s.answers[1:]
	if len(s.answers) > 0 {
		notify(s.refused)
	}
	return m
}

// notify puts a token into a channel of capacity 1, unless there is one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Send implements [jsonrpc.Conn]. A response goes to the POST that asked; a
// message that is Related to a request goes to that request's POST; all others
// go to the standalone stream, which stores them until a GET opens it. It waits
// while the client does not read the stream.
func (s *session) Send(m *jsonrpc.Message) error {
	e := event{data: m.Append(make([]byte, 0, m.Size())), response: m.IsResponse()}
	if m.IsRequest() {
		e.question = m.ID
	}
	s.mu.Lock()
	st, err := s.sendLocked(m, e)
	failed := st != nil && st.init && m.Error != nil
	s.mu.Unlock()
	if failed {
		s.end(errNotStarted, false) // a session that did not come about is not kept
	}
	return err
}

// sendLocked returns the stream that took the message, nil if none did.
func (s *session) sendLocked(m *jsonrpc.Message, e event) (*stream, error) {
	st := s.routeLocked(m)
	for st != nil && st.full() && !s.closed {
		s.room.Wait()
		st = s.routeLocked(m)
	}
	switch {
	case s.closed:
		return nil, jsonrpc.Closed(s.cause)
	case st == nil: // late or unknown: whoever took the request answered it
	case e.response && !s.legacy:
		if st.init {
			s.negotiatedLocked(m)
		}
		s.settleLocked(m.ID, st, e)
	default:
		s.pushLocked(st, e)
	}
	return st, nil
}

// negotiatedLocked learns from the response to initialize.
func (s *session) negotiatedLocked(m *jsonrpc.Message) {
	if m.Error != nil {
		return
	}
	s.established = true
	raw, _ := jsonrpc.Member(m.Result, "protocolVersion")
	if version, ok := jsonrpc.Unquote(raw); ok {
		s.version = version
	}
}

// routeLocked returns the stream for m, nil if nobody waits for it.
func (s *session) routeLocked(m *jsonrpc.Message) *stream {
	switch {
	case s.legacy:
		return s.standalone
	case m.IsResponse():
		return s.pending[m.ID]
	}
	st := s.pending[m.Related]
	if st == nil || (st.lost && m.IsRequest()) { // a question may still reach the client elsewhere
		return s.standalone
	}
	return st
}

// settleLocked takes the request id out of the table and answers it.
func (s *session) settleLocked(id jsonrpc.ID, st *stream, e event) {
	delete(s.pending, id)
	st.owed--
	if !s.unread.hasRoom(len(e.data)) {
		e.data = jsonrpc.NewError(id, unreadable()).Append(nil)
	}
	s.pushLocked(st, e)
}

func (s *session) settleErrorLocked(id jsonrpc.ID, st *stream, err *jsonrpc.Error) {
	s.settleLocked(id, st, event{data: jsonrpc.NewError(id, err).Append(nil), response: true})
}

// Close implements [jsonrpc.Conn].
func (s *session) Close() error {
	s.end(errServed, true)
	return nil
}

// end ends the session, once: everything that waits for a response gets the one
// error, and every stream ends. own says that Serve's side wants it; requests
// that it never received are then known not to have run.
func (s *session) end(cause error, own bool) {
	s.mu.Lock()
	ended := s.endLocked(cause, own)
	s.mu.Unlock()
	if ended {
		s.onEnd()
	}
}

// endLocked reports whether it was this call that ended the session.
func (s *session) endLocked(cause error, own bool) bool {
	s.own = s.own || own
	if s.closed {
		return false
	}
	s.closed, s.cause = true, cause
	if own {
		s.refuseQueuedLocked()
	}
	for id, st := range s.pending {
		s.settleErrorLocked(id, st, ending(jsonrpc.InFlight))
	}
	for _, st := range s.streams {
		st.wake()
	}
	s.standalone.wake()
	s.lease.stop()
	s.room.Broadcast()
	close(s.done)
	return true
}

// refuseQueuedLocked answers the requests that Recv has not returned and never will.
func (s *session) refuseQueuedLocked() {
	for {
		select {
		case m := <-s.in:
			if st := s.pending[m.ID]; st != nil && m.IsRequest() {
				s.settleErrorLocked(m.ID, st, ending(jsonrpc.NotSent))
			}
		default:
			return
		}
	}
}

// ending is the one error when the client's own connection ends.
func ending(phase jsonrpc.Phase) *jsonrpc.Error {
	return jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", "", phase)
}

// hold keeps the session from expiring while an HTTP request is served; false if
// it has ended. The caller must release it.
func (s *session) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.lease.take()
	return true
}

func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.give()
}

// expireAfter ends the session when no HTTP request was open for idle. A call in
// flight does not keep it: nobody may ever come back for the result. But it does
// from ending after gone, when the standalone stream was cut and nothing came since.
func (s *session) expireAfter(idle, gone time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.start(idle, gone, s.expire)
}

func (s *session) expire() {
	busy := s.isBusy()
	s.mu.Lock()
	cause := errIdle
	if s.lease.alone {
		cause = errGone
	}
	ended := !s.closed && !s.lease.renew(busy || len(s.pending) > 0) && s.endLocked(cause, false)
	s.mu.Unlock()
	if ended {
		s.onEnd()
	}
}

// KeepWhile gives a function that reports whether work goes on for the client
// besides its requests: as long as it does, the client may be away for longer. It is
// called with no lock held.
func (s *session) KeepWhile(busy func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = busy
}

func (s *session) isBusy() bool {
	s.mu.Lock()
	busy := s.busy
	s.mu.Unlock()
	return busy != nil && busy()
}
