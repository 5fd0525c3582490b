package frontend

import "github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"

// Bounds on the events that a session holds. Those that a connected client has
// not read yet make Send wait, per stream. Those kept for a client that may
// resume push out the oldest, per session; the newest stays however large it is.
const (
	storeEvents = 256
	storeBytes  = 4 << 20
)

// A stream is the messages that belong together on the wire: the response to one
// POST, or the standalone stream that a GET opens. It outlives the connections
// that carry it, so that a client can resume it. session.mu guards it.
//
//	events:  [ stored …          | waiting to be written … ]
//	           first               first+stored        last
type stream struct {
	number int // in event ids; 0 is the standalone stream, -1 one that is plain
	owed   int // responses still to come
	batch  bool
	init   bool // of the request that opened the session

	// plain holds until the first byte: what comes may yet go as plain JSON.
	plain bool

	// lost means that nobody can ever read it: its client went away without
	// an event id to resume from.
	lost bool

	reader *reader // nil if no connection carries the stream now
	events []event
	first  int // number of events[0]; numbers start with 1
	stored int // how many events count towards the session's store
	sent   int // number of the last event written to a connection
	queued int // bytes of the events that wait to be written
}

// An event is one message of a stream.
type event struct {
	data     []byte     // JSON text
	question jsonrpc.ID // of a request to the client
	response bool
}

// A reader is one HTTP response that carries a stream. Its own goroutine takes
// the events.
type reader struct {
	wake  chan struct{} // capacity 1: there is something to take
	at    int           // number of the last event taken; changes under session.mu
	batch []event       // the events taken last; only for its goroutine
}

func newReader(at int) *reader { return &reader{wake: make(chan struct{}, 1), at: at} }

func newPostStream(batch bool) *stream {
	return &stream{number: -1, batch: batch, plain: true, first: 1, reader: newReader(0)}
}

// wake tells who carries st to look at it again.
func (st *stream) wake() {
	if st.reader != nil {
		notify(st.reader.wake)
	}
}

func (st *stream) last() int { return st.first + len(st.events) - 1 }

// full reports whether Send must wait for the connection.
func (st *stream) full() bool {
	return st.reader != nil && (len(st.events)-st.stored >= storeEvents || st.queued >= storeBytes)
}

// done reports whether the last response has come. The standalone stream, which
// owes none, ends with its session.
func (st *stream) done() bool { return st.number != 0 && st.owed == 0 }

// pushLocked adds an event to st, whoever reads it.
func (s *session) pushLocked(st *stream, e event) {
	if st.lost {
		s.refuseLocked(e)
		return
	}
	st.events = append(st.events, e)
	st.queued += len(e.data)
	s.unread.add(len(e.data))
	if st.reader == nil {
		s.storeLocked(st, st.last())
		return
	}
	if !st.plain || !e.response || st.owed == 0 { // a batch goes as JSON only if it is complete
		st.wake()
	}
}

// storeLocked moves the events of st up to number last into the session's store.
func (s *session) storeLocked(st *stream, last int) {
	for st.first+st.stored <= last && st.stored < len(st.events) {
		size := len(st.events[st.stored].data)
		st.queued -= size
		s.unread.give(size)
		st.stored++
		s.store = append(s.store, st)
		s.storeBytes += size
	}
	for len(s.store) > s.keep || (s.storeBytes > storeBytes && len(s.store) > 1) {
		s.evictLocked()
	}
}

// evictLocked forgets the oldest event of the store.
func (s *session) evictLocked() {
	st := s.store[0]
	s.store[0] = nil
	s.store = s.store[1:]
	e := st.events[0]
	st.events[0] = event{}
	st.events = st.events[1:]
	if st.first > st.sent {
		s.dropped++
		s.refuseLocked(e)
	}
	st.first++
	st.stored--
	s.storeBytes -= len(e.data)
	s.forgetLocked(st)
}

// refuseLocked answers a question that no client ever got, so that the upstream that
// asked does not wait for ever.
func (s *session) refuseLocked(e event) {
	if !e.question.IsZero() {
		s.answerLocked(jsonrpc.NewError(e.question, jsonrpc.Overloaded("")))
	}
}

// forgetLocked removes a stream that no client can want any more.
func (s *session) forgetLocked(st *stream) {
	if st.done() && st.reader == nil && len(st.events) == 0 {
		delete(s.streams, st.number)
	}
}

// number makes a POST's stream an event stream, which can be resumed.
func (s *session) number(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastStream++
	st.number, st.plain = s.lastStream, false
	s.streams[st.number] = st
}

// takeAll takes all events of a plain stream if they are all there is: the
// responses. Nothing of it is stored.
func (s *session) takeAll(st *stream) ([]event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.owed > 0 {
		return nil, false
	}
	for _, e := range st.events {
		if !e.response {
			return nil, false
		}
	}
	return st.events, true
}

// wroteAll records that a plain stream went out, or never will. Nobody looks at it
// any more.
func (s *session) wroteAll(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.seen()
	s.loseLocked(st)
}

// take copies the events that rd has not taken into rd.batch, and reports whether
// more may come.
func (s *session) take(st *stream, rd *reader) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(rd.batch)
	rd.batch = rd.batch[:0]
	if st.reader != rd { // replaced by a newer connection
		return false
	}
	rd.at = max(rd.at, st.first-1) // what was evicted in the meantime is lost
	rd.batch = append(rd.batch, st.events[rd.at-st.first+1:]...)
	rd.at += len(rd.batch)
	return !st.done() && !s.closed
}

// wrote records that the events that rd took went out, and lets Send go on.
func (s *session) wrote(st *stream, rd *reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.sent = max(st.sent, rd.at)
	if st != s.standalone {
		s.lease.seen()
	}
	if st.reader == rd {
		s.storeLocked(st, rd.at)
		s.room.Broadcast()
	}
}

// detach takes the connection of rd away from st. What it did not write stays
// for a client that can resume; if it cannot, nobody will ever read it.
func (s *session) detach(st *stream, rd *reader, resumable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.reader != rd {
		return
	}
	st.reader = nil
	if st == s.standalone && !s.closed {
		s.lease.cut()
	}
	if resumable || st.sent > 0 || st.number == 0 {
		s.storeLocked(st, st.last())
		s.forgetLocked(st)
	} else {
		s.loseLocked(st)
	}
	s.room.Broadcast()
}

// loseLocked gives up a stream that nobody can resume.
func (s *session) loseLocked(st *stream) {
	st.lost = true
	delete(s.streams, st.number)
	for _, e := range st.events {
		s.refuseLocked(e)
	}
	s.unread.give(st.queued)
	st.events, st.queued = nil, 0
}

// attach makes a new connection carry the stream that lastID names, from the
// event after it; without an id the standalone stream, from the first event that
// no connection took. It replaces the connection that carried it. False means
// that there is no such stream (any more).
func (s *session) attach(lastID string) (*stream, *reader, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.standalone
	at := st.sent
	if st.reader != nil {
		at = st.reader.at
	}
	if lastID != "" {
		number, event, ok := parseEventID(lastID)
		if !ok || number < 0 {
			return nil, nil, false
		}
		if number > 0 {
			st = s.streams[number]
		}
		if st == nil || event < 0 || event > st.last() {
			return nil, nil, false
		}
		at = event
	}
	st.wake() // who carried it until now finds that it does no more
	st.reader = newReader(at)
	return st, st.reader, true
}
