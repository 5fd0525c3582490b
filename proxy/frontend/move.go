package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	maxRecords = 64 << 20 // bytes of all records that nobody has asked for yet

	sweepEvery  = 20 * time.Millisecond // how often sessions are looked at that are in use
	moveTime    = time.Second           // for sessions that are in use until the end
	moveAtOnce  = 32
	moveTimeout = 3 * time.Second        // of one record
	endReaders  = 500 * time.Millisecond // for what is being written
)

// errMoved is the end of a session that another replica serves from now on.
var errMoved = errors.New("moved to another replica")

// movedRecords are sessions that other replicas have moved here, and that their clients have not used
// yet. The first request begins them. Its owner's lock guards it.
type movedRecords struct {
	byID  map[string]*movedRecord
	bytes int
}

type movedRecord struct {
	*record
	text   []byte
	expiry *time.Timer   // nil: never
	frozen chan struct{} // it is being moved; closed when it is over
	taker  string        // as in httpSession
}

// take stores a record of a session that moves here. It returns false if there is no room, or if this replica leaves.
func (o *openSessions) take(r *record, text []byte) bool {
	o.yield(r.ID, r.Of, r.Moves-1) // a copy that is left from a split, if the others were not compared yet
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.byID[r.ID] != nil || o.records.byID[r.ID] != nil || o.draining && o.moved[r.ID] != "" && o.moved[r.ID] != r.Of:
		return true // it was sent again
	case o.draining || o.records.bytes+len(text) > maxRecords:
		return false
	}
	o.addMovedLocked(r, text)
	o.moves.Taken++
	o.tidings.note(Taken, r.Of)
	return true
}

func (o *openSessions) addMovedLocked(r *record, text []byte) {
	m := &movedRecord{record: r, text: text}
	if o.idle > 0 {
		m.expiry = time.AfterFunc(o.idle, func() {
			if o.drop(r.ID, m) {
				o.keeper.note(r.ID)
			}
		})
	}
	o.records.byID[r.ID] = m
	o.records.bytes += len(text)
	delete(o.moved, r.ID) // it may have come back
	if k := o.kept.byID[r.ID]; k != nil && k.age.Moves < r.Moves {
		o.forgetKeptLocked(r.ID)
	}
	o.keeper.note(r.ID)
}

// Moves are what became of sessions that have moved here, and of those that were looked for.
type Moves struct {
	Waiting int // moved here, and not used since
	Kept    int // of others, whose records are here
	Taken   int // moved here, so far
	Resumed int // those of them that were used since
	Adopted int // continued here, since the replica that had them has died
	Yielded int // ended here, since another replica has continued them
	Found   int // found at another replica than the one that made them, which is gone
	Missing int // those that nobody had
}

// Moves returns what became of sessions so far.
func (h *HTTP) Moves() Moves {
	h.init()
	h.open.mu.Lock()
	defer h.open.mu.Unlock()
	all := h.open.moves
	all.Waiting, all.Kept = len(h.open.records.byID), len(h.open.kept.byID)
	return all
}

// onward returns the record for the replica that its session moves on to before its client has used it.
func (k *movedRecord) onward(of string) []byte {
	next := *k.record
	next.Of, next.Moves = of, k.Moves+1
	return next.over(k.text)
}

// drop removes a record, unless its session has begun.
func (o *openSessions) drop(id string, k *movedRecord) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropLocked(id, k)
}

func (o *openSessions) dropLocked(id string, k *movedRecord) bool {
	if o.records.byID[id] != k {
		return false
	}
	delete(o.records.byID, id)
	o.records.bytes -= len(k.text)
	if k.expiry != nil {
		k.expiry.Stop()
	}
	return true
}

// beginMovedLocked returns the session of a record, which its caller starts.
func (o *openSessions) beginMovedLocked(k *movedRecord, from caller) *httpSession {
	o.dropLocked(k.ID, k)
	o.moves.Resumed++
	s := o.newSession(k.ID, from)
	s.resume(k.record, from, k.Digest != o.digest())
	o.counted++
	o.uncounted++
	o.wg.Add(1)
	o.byID[k.ID] = s
	return s
}

// entered returns the leave of a session that has moved here. It does not count against the bounds, since
// it was admitted elsewhere.
func (o *openSessions) entered(from caller) (leave func()) {
	left := func() {}
	if o.admit != nil {
		if admitted, refusal := o.admit(from.who); refusal == nil {
			left = admitted
		}
	}
	return func() {
		left()
		o.mu.Lock()
		o.uncounted--
		o.mu.Unlock()
		o.leave()
	}
}

// A resumption is a session that has moved here, until its servers have answered what is said again.
type resumption struct {
	first    jsonrpc.ID            // initialize
	rest     []*jsonrpc.Message    // what the client said after it
	uris     map[jsonrpc.ID]string // of the subscriptions among them
	changed  bool                  // the lists may be others
	answered chan struct{}         // closed with the answer to the first, or the end of the session; the client's messages wait for it
}

// resume makes s the session of a record. Nobody uses s yet.
func (s *httpSession) resume(r *record, from caller, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said, s.version, s.moves, s.out.last, s.resumed = &r.Said, r.Protocol, r.Moves, r.Last, "moved"
	if r.Adopted {
		s.resumed = "adopted"
	}
	for _, st := range r.Streams {
		s.out.restore(st)
	}
	first, rest, uris := r.Said.again()
	for _, m := range append([]*jsonrpc.Message{first}, rest...) {
		from.sent(m)
		m.Notes = mcp.Read(m)
	}
	s.resuming = &resumption{first.ID, rest, uris, changed, make(chan struct{})}
	s.answerLocked(first)
}

// resumedLocked takes the answer to something that was said again, and returns whether m is one. A
// session whose servers now have another version, or none, cannot go on.
func (s *httpSession) resumedLocked(m *jsonrpc.Message) (is, fails bool) {
	r := s.resuming
	if r == nil || !m.IsResponse() {
		return false, false
	}
	if uri, ok := r.uris[m.ID]; ok {
		delete(r.uris, m.ID)
		if m.Error == nil { // it may have changed meanwhile
			params := slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte("}"))
			s.tellLocked(mcp.MethodResourceUpdated, params)
		}
	} else if m.ID != r.first {
		return false, false
	} else {
		version, _ := jsonrpc.Member(m.Result, "protocolVersion")
		if text, ok := jsonrpc.Unquote(version); !ok || text != s.version {
			return true, true
		}
		s.established = true
		for _, again := range r.rest {
			s.answerLocked(again)
		}
		if r.changed {
			s.listsLocked(m.Result)
		}
		close(r.answered)
		r.answered = nil
	}
	if r.answered == nil && len(r.uris) == 0 {
		s.resuming = nil
	}
	return true, false
}

// listsLocked tells the client that the lists may have changed, as far as it expects to be told.
func (s *httpSession) listsLocked(result json.RawMessage) {
	can, _ := jsonrpc.Member(result, "capabilities")
	for kind, method := range map[string]string{
		"tools": mcp.MethodToolsChanged, "prompts": mcp.MethodPromptsChanged, "resources": mcp.MethodResourcesChanged,
	} {
		of, _ := jsonrpc.Member(can, kind)
		if tells, _ := jsonrpc.Member(of, "listChanged"); string(tells) == "true" {
			s.tellLocked(method, nil)
		}
	}
}

// tellLocked puts a notification on the standalone stream.
func (s *httpSession) tellLocked(method string, params json.RawMessage) {
	s.out.push(s.out.standalone, event{data: jsonrpc.NewNotification(method, params).Text()})
}

// awaitResumed waits until the servers of a session that has moved here know its client, or ctx ends.
func (s *httpSession) awaitResumed(ctx context.Context) {
	s.mu.Lock()
	var answered chan struct{}
	if s.resuming != nil {
		answered = s.resuming.answered
	}
	s.mu.Unlock()
	if answered != nil {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
}

// Asked returns the number of the last question that the client may have been asked before the session
// moved here. A late answer to one must not be taken for that to another.
func (s *httpSession) Asked() int64 { return s.moves << 32 }

// askedBefore reports whether a question with that id was asked before the session moved here, or was continued
// here. The call that asked has ended.
func (s *httpSession) askedBefore(question jsonrpc.ID) bool {
	n, ok := question.Int()
	return ok && n <= s.Asked()
}

// Move begins to move the sessions of Streamable HTTP to other replicas, each when nothing is in flight.
// Until then they are served as ever. Shortly before the deadline of ctx, or when it ends, what is in
// flight gets the connection-closed error, and the rest is moved. Sessions that no other replica takes
// end. Drain must have been called. wait waits until no session is left, and returns how many were
// moved. Without other replicas Move does nothing, and sessions drain as those of other transports do.
func (h *HTTP) Move(ctx context.Context) (wait func() (moved int)) {
	h.init()
	if h.Replicas == nil || ctx.Err() != nil || len(h.Replicas.Others()) == 0 {
		return func() int { return 0 }
	}
	m := &mover{open: h.open, replicas: h.Replicas, room: make(chan struct{}, moveAtOnce)}
	h.open.moving.Store(true)
	done := make(chan int, 1)
	go func() { done <- m.run(ctx) }()
	return func() int { return <-done }
}

// Moves reports whether the session moves to another replica instead of draining.
func (s *httpSession) Moves() bool { return s.moving != nil && !s.sse && s.moving.Load() }

// A mover moves the sessions of a replica that leaves.
type mover struct {
	open     *openSessions
	replicas Replicas
	room     chan struct{}
	wg       sync.WaitGroup
	ctx      context.Context // of what is sent; set by run

	mu    sync.Mutex
	moved int // guarded by mu
}

func (m *mover) run(ctx context.Context) int {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-min(moveTime, time.Until(end)/4)))
		defer cancel()
	}
	var stop context.CancelFunc
	m.ctx, stop = context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(moveTime, stop) })()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		forced := ctx.Err() != nil
		sessions, records := m.open.toMove()
		if forced || m.anybody() {
			m.sweep(sessions, records, forced)
		}
		if forced || len(sessions)+len(records) == 0 {
			m.wg.Wait()
			sessions, records = m.open.toMove()
			m.sweep(sessions, records, true) // those that were being moved just now, and that nobody took
			m.wg.Wait()
			m.handOn()
			return m.moved
		}
		select {
		case <-sweep.C:
		case <-ctx.Done():
		}
	}
}

// handOn lets another replica keep the records whose owners cannot send them again: they have died.
func (m *mover) handOn() {
	others := m.replicas.Others()
	for of, records := range m.open.orphans(others) {
		b := new(batch)
		for id, text := range records {
			if b.size >= keepBatch {
				m.handOnBatch(of, b, others)
				b = new(batch)
			}
			b.add(id, text)
		}
		m.handOnBatch(of, b, others)
	}
}

func (m *mover) handOnBatch(of string, b *batch, others []Other) {
	b.body.Of = of
	for _, o := range others {
		if b.via = o.Via; !o.Ready || b.via == nil {
			continue
		}
		if b.post(m.ctx); b.status == http.StatusNoContent {
			m.open.keep(&keeping{Of: of, Forget: b.ids}) // so that it goes on only there
			return
		}
	}
}

// anybody reports whether sessions may be sent somewhere now, or nowhere ever.
func (m *mover) anybody() bool {
	all := m.replicas.Others()
	return len(all) == 0 || slices.ContainsFunc(all, func(o Other) bool { return o.Ready && o.Via != nil })
}

// sweep begins to move those that are not in use, or all.
func (m *mover) sweep(sessions []*httpSession, records []*movedRecord, forced bool) {
	for _, k := range records {
		if m.open.freeze(k) {
			m.start(func() {
				sent := m.send(k.onward(m.replicas.Instance()), k.ID, &k.taker)
				if (sent || forced || len(m.replicas.Others()) == 0) && m.open.drop(k.ID, k) && sent { // else whoever keeps it may continue it
					m.open.keeper.note(k.ID)
				}
				m.open.thaw(k)
			})
		}
	}
	for _, s := range sessions {
		if s.freeze(forced) {
			m.start(func() { m.move(s, forced) })
		}
	}
}

func (m *mover) start(fn func()) {
	m.room <- struct{}{}
	m.wg.Go(func() {
		defer func() { <-m.room }()
		fn()
	})
}

// toMove returns the sessions of Streamable HTTP, and the records of others.
func (o *openSessions) toMove() (sessions []*httpSession, records []*movedRecord) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.byID {
		if !s.sse {
			sessions = append(sessions, s)
		}
	}
	for _, k := range o.records.byID {
		records = append(records, k)
	}
	return sessions, records
}

// freeze makes the requests of a session wait whose record is being moved. It returns false if they do, or
// if the session has begun.
func (o *openSessions) freeze(k *movedRecord) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k.frozen != nil || o.records.byID[k.ID] != k {
		return false
	}
	k.frozen = make(chan struct{})
	return true
}

// freeze makes the requests of a session wait, unless something is in flight and forced is not set. It
// returns false if the session is in use, frozen already, or over.
func (s *httpSession) freeze(forced bool) bool {
	if !s.freezeIdle(forced) {
		return false
	}
	if s.isBusy() && !forced { // asked last, since a response may begin a task
		s.thaw()
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.release()
	return true
}

func (s *httpSession) freezeIdle(forced bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := s.idle.open == s.gets && s.pending.Len() == 0 && s.in.Len() == 0 && s.resuming == nil
	if s.frozen != nil || s.in.Err() != nil || !idle && !forced {
		return false
	}
	s.frozen = make(chan struct{})
	s.dropUnreceivedLocked()
	for id := range s.pending.Each {
		s.failLocked(id, ending(jsonrpc.InFlight))
	}
	return true
}

// move moves a frozen session. If nobody takes it, it goes on, and it ends if it is forced to, or if
// nobody is left to take it.
func (m *mover) move(s *httpSession, forced bool) {
	s.awaitReaders()
	s.mu.Lock()
	var text []byte
	if s.movableLocked() {
		text = s.movingLocked(m.replicas.Digest()).encode()
	}
	s.mu.Unlock()
	switch movable := text != nil && len(text) <= maxRecord; {
	case movable && m.send(text, s.id, &s.taker):
		s.end(errMoved, true)
	case !movable || forced || len(m.replicas.Others()) == 0:
		s.end(errStopped, true)
	}
	s.thaw()
}

// thaw lets the requests of a session go on: it is over, or was not moved.
func (s *httpSession) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.frozen)
	s.frozen, s.out.released = nil, false
}

// thaw is that of a session whose record was to be moved.
func (o *openSessions) thaw(k *movedRecord) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(k.frozen)
	k.frozen = nil
}

// awaitReaders waits until no connection carries a stream of s, and ends those that take too long.
func (s *httpSession) awaitReaders() {
	late := time.Now().Add(endReaders)
	for {
		s.mu.Lock()
		none := s.idle.open == 0
		if !none && time.Now().After(late) {
			s.out.abort()
			none = true
		}
		s.mu.Unlock()
		if none {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// send gives a record to another replica, and remembers which. One that has not answered may have the
// session, so it is asked again until it is gone: *taker is its instance, also for the next send.
func (m *mover) send(text []byte, id string, taker *string) bool {
	ctx, cancel := context.WithTimeout(m.ctx, moveTimeout)
	defer cancel()
	refused := make(map[string]bool)
	for ctx.Err() == nil {
		to := pick(m.replicas.Others(), *taker, refused)
		if to == nil {
			return false
		}
		*taker = to.Instance
		switch status, _, err := tell(ctx, to.Via, http.MethodPost, replicaPath, text); {
		case err != nil:
			rest(ctx, sweepEvery)
		case status != http.StatusNoContent:
			refused[*taker], *taker = true, ""
		default:
			m.open.movedTo(id, to.Instance)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.moved++
			return true
		}
	}
	return false
}

// pick returns the replica that was asked, if it is there, and else any that is ready; nil for none.
func pick(all []Other, asked string, refused map[string]bool) *Other {
	for _, i := range rand.Perm(len(all)) {
		if o := &all[i]; o.Instance == asked {
			return o
		}
	}
	for _, i := range rand.Perm(len(all)) {
		if o := &all[i]; o.Ready && o.Via != nil && !refused[o.Instance] {
			return o
		}
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// movedTo remembers where a session has gone.
func (o *openSessions) movedTo(id, instance string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setMovedLocked(id, instance)
}

func (o *openSessions) setMovedLocked(id, instance string) {
	if o.moved == nil || len(o.moved) >= maxLookups && !o.draining {
		o.moved = make(map[string]string)
	}
	o.moved[id] = instance
}

// whereTo returns where a session has gone; "" if it has not.
func (o *openSessions) whereTo(id string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moved[id]
}
