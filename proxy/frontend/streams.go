package frontend

import (
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Bounds on the events that a session holds. Events that a connected client has not read yet block
// Send, per stream. Events kept for a client that may resume push out the oldest, per session; the
// newest event stays, however large it is. All of them count in the principal's backlog.
const (
	storeEvents = 256
	storeBytes  = 4 << 20
)

// eventStreams are the event streams of one session, and the store from which a disconnected client
// resumes them. The lock of the session guards everything here except readers' batches. The methods
// of a reader, attach, number, cut and evictRead lock it themselves; all others need it.
type eventStreams struct {
	// Static after construction.
	mu      *sync.Mutex               // of the session
	idle    *idleTimer                // of the session
	refuse  func(question jsonrpc.ID) // called for a question that its client will never get
	backlog *principalBacklog
	read    streamBacklog // stored events that clients have received
	keep    int           // events that the store holds; 0 if streams cannot be resumed

	room       sync.Cond // on mu: a stream takes messages again, is detached, or the session has ended
	closed     bool
	released   bool // the session is being moved: no connection carries a stream any more
	standalone *eventStream
	numbered   map[int]*eventStream // of POSTs, that can be resumed
	last       int                  // last number given to a stream
	store      []*eventStream       // one element for each stored event, oldest first
	bytes      int                  // of the stored events
	dropped    int                  // messages that were pushed out of the store and never sent
}

// An eventStream is one stream of messages: the response to one POST, or the standalone stream that
// a GET opens. It outlives the connections that carry it, so that a client can resume it.
type eventStream struct {
	number int // in event ids; 0 is the standalone stream, -1 a plain one
	owed   int // responses still to come
	batch  bool
	init   bool // has the response to initialize

	// plain is true until the first byte: the responses may still be sent as plain JSON.
	plain bool

	// lost means that nobody can ever read the stream: its client left without an event id to
	// resume from.
	lost bool

	reader  *reader       // nil if no connection carries the stream now
	events  []event       // first the stored ones, then those to be written
	first   int           // number of events[0]; numbers begin at 1
	stored  int           // how many events count towards the session's store
	sent    int           // number of the last event written to a connection
	queued  int           // bytes of the events to be written
	backlog streamBacklog // the unsent events; spare while no connection carries the stream
}

// carry makes rd carry st, from the event after at.
func (o *eventStreams) carry(rd *reader, st *eventStream, at int) *reader {
	rd.out, rd.st, rd.wake, rd.at = o, st, make(chan struct{}, 1), at
	st.reader = rd
	st.backlog.spare.Store(false)
	return rd
}

// newPost returns the reader of a new stream for a POST.
func (o *eventStreams) newPost(batch bool) *reader {
	var p struct { // both have about the same life
		st eventStream
		rd reader
	}
	p.st.number, p.st.batch, p.st.plain = -1, batch, true
	return o.carry(&p.rd, o.newStream(&p.st), 0)
}

func (o *eventStreams) newStream(st *eventStream) *eventStream {
	st.first = 1
	st.backlog = streamBacklog{of: o.backlog, cut: func() { o.cut(st) }}
	st.backlog.spare.Store(true)
	return st
}

// wake notifies the reader of st.
func (st *eventStream) wake() {
	if st.reader != nil {
		notify(st.reader.wake)
	}
}

func (st *eventStream) lastEvent() int { return st.first + len(st.events) - 1 }

// full reports whether Send must wait for the connection.
func (st *eventStream) full() bool {
	return st.reader != nil && (len(st.events)-st.stored >= storeEvents || st.queued >= storeBytes)
}

// done reports whether the last response has come. The standalone stream has no responses, and ends
// with its session.
func (st *eventStream) done() bool { return st.number != 0 && st.owed == 0 }

// push adds an event to st.
func (o *eventStreams) push(st *eventStream, e event) {
	if st.lost {
		o.drop(e)
		return
	}
	st.events = append(st.events, e)
	st.queued += len(e.data)
	st.backlog.add(len(e.data))
	if st.reader == nil {
		o.keepTo(st, st.lastEvent())
		return
	}
	if !st.plain || !e.response || st.owed == 0 { // a batch is sent as JSON only if it is complete
		st.wake()
	}
}

// keepTo moves the events of st up to number last into the store.
func (o *eventStreams) keepTo(st *eventStream, last int) {
	for st.first+st.stored <= last && st.stored < len(st.events) {
		size := len(st.events[st.stored].data)
		st.queued -= size
		st.stored++
		o.store = append(o.store, st)
		o.bytes += size
	}
	for len(o.store) > o.keep || (o.bytes > storeBytes && len(o.store) > 1) {
		o.evict()
	}
}

// evict drops the oldest event of the store.
func (o *eventStreams) evict() {
	st := o.store[0]
	o.store[0] = nil
	o.store = o.store[1:]
	o.dropFirst(st)
}

// evictRead drops the stored events that clients have received.
func (o *eventStreams) evictRead() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.store = slices.DeleteFunc(o.store, func(st *eventStream) bool {
		read := st.first <= st.sent
		if read {
			o.dropFirst(st)
		}
		return read
	})
}

// dropFirst drops the first event of st, which has been removed from the store.
func (o *eventStreams) dropFirst(st *eventStream) {
	e := st.events[0]
	st.events[0] = event{}
	st.events = st.events[1:]
	if st.first > st.sent {
		o.dropped++
		o.drop(e)
		st.backlog.add(-len(e.data))
	} else {
		o.read.add(-len(e.data))
	}
	st.first++
	st.stored--
	o.bytes -= len(e.data)
	o.forget(st)
}

// drop handles an event that no client received. It refuses a question, so that its upstream does
// not wait for ever.
func (o *eventStreams) drop(e event) {
	if !e.response && !e.id.IsZero() {
		o.refuse(e.id)
	}
}

// forget removes a stream that no client can resume any more.
func (o *eventStreams) forget(st *eventStream) {
	if st.done() && st.reader == nil && len(st.events) == 0 {
		delete(o.numbered, st.number)
	}
}

// lose drops a stream that nobody can resume.
func (o *eventStreams) lose(st *eventStream) {
	st.lost = true
	delete(o.numbered, st.number)
	o.clear(st)
}

// clear removes all events from st, and returns those that no client received. It refuses the
// questions among them.
func (o *eventStreams) clear(st *eventStream) (unsent []event) {
	for _, e := range st.events[:st.stored] {
		o.bytes -= len(e.data)
	}
	if st.stored > 0 {
		o.store = slices.DeleteFunc(o.store, func(of *eventStream) bool { return of == st })
	}
	read := min(max(st.sent-st.first+1, 0), len(st.events))
	for _, e := range st.events[:read] {
		o.read.add(-len(e.data))
	}
	unsent = st.events[read:]
	for _, e := range unsent {
		o.drop(e)
	}
	st.first += len(st.events)
	st.events, st.stored, st.queued = nil, 0, 0
	st.backlog.add(-st.backlog.size())
	return unsent
}

// cut drops the events of the largest stream of a principal whose backlog is too large. The
// connection that carries it ends. Responses are replaced by errors, for a client that resumes.
func (o *eventStreams) cut(st *eventStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cutLocked(st)
}

// cutLocked is cut with the lock held.
func (o *eventStreams) cutLocked(st *eventStream) {
	if rd := st.reader; rd != nil && rd.to != nil && (rd.at > st.sent || st.plain) {
		rd.to.abort()
	}
	unsent := o.clear(st)
	responses := slices.DeleteFunc(slices.Clone(unsent), func(e event) bool { return !e.response })
	o.dropped += len(unsent) - len(responses)
	st.first -= len(responses)
	for _, e := range responses {
		o.push(st, event{data: jsonrpc.NewError(e.id, unreadable()).Text(), id: e.id, response: true})
	}
	o.forget(st)
	o.room.Broadcast()
}

// release makes all connections end when they have written what is there.
func (o *eventStreams) release() {
	o.released = true
	for _, st := range o.numbered {
		st.wake()
	}
	o.standalone.wake()
}

// abort ends the connections of all streams, whatever they write.
func (o *eventStreams) abort() {
	for _, st := range o.numbered {
		if st.reader != nil && st.reader.to != nil {
			st.reader.to.abort()
		}
	}
	if rd := o.standalone.reader; rd != nil && rd.to != nil {
		rd.to.abort()
	}
}

// close makes all streams end when their events are written.
func (o *eventStreams) close() {
	o.closed = true
	for _, st := range o.numbered {
		o.endStream(st)
	}
	o.endStream(o.standalone)
	o.room.Broadcast()
}

func (o *eventStreams) endStream(st *eventStream) {
	if st.reader == nil { // nobody can resume it any more
		o.lose(st)
	}
	st.wake()
}

// number makes a plain stream an event stream, which can be resumed.
func (o *eventStreams) number(st *eventStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	st.number, st.plain = o.last, false
	o.numbered[st.number] = st
}

// attach makes a new connection, written by to, carry the stream of lastID from the event after it;
// without an id, the standalone stream from the first event that no connection took. It replaces
// the connection that carried the stream before. It returns nil if there is no such stream.
func (o *eventStreams) attach(lastID string, to *responder) *reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.standalone
	at := st.sent
	if st.reader != nil {
		at = st.reader.at
	}
	if lastID != "" {
		number, event, ok := parseEventID(lastID)
		if !ok || number < 0 {
			return nil
		}
		if number > 0 {
			st = o.numbered[number]
		}
		if st == nil || event < 0 || event > st.lastEvent() {
			return nil
		}
		at = event
	}
	st.wake() // the previous connection notices that it was replaced
	rd := o.carry(&reader{}, st, at)
	rd.to = to
	return rd
}

// takeQuestions returns the questions on a stream that nobody has read, for another stream: the client may be there
// and answer them. The stream keeps their data until it is lost.
func (o *eventStreams) takeQuestions(st *eventStream) (questions []event) {
	if o.closed {
		return nil
	}
	for i, e := range st.events {
		if !e.response && !e.id.IsZero() {
			questions = append(questions, e)
			st.events[i].id = jsonrpc.ID{} // else it would be refused
		}
	}
	return questions
}
