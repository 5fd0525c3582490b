package frontend

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	sweepEvery  = 20 * time.Millisecond // how often sessions are looked at that are in use
	moveTime    = time.Second           // for sessions that are in use until the end
	moveAtOnce  = 32
	moveTimeout = 3 * time.Second        // of one record
	endReaders  = 500 * time.Millisecond // for what is being written
)

// errMoved is the end of a session that another replica serves from now on.
var errMoved = errors.New("moved to another replica")

// Move begins to move the sessions of Streamable HTTP to other replicas, each when nothing is in flight.
// Until then they are served as ever. Shortly before the deadline of ctx, or when it ends, what is in
// flight gets the connection-closed error, and the rest is moved. Sessions that no other replica takes
// end. Drain must have been called. wait waits until no session is left, and returns how many were
// moved. Without other replicas Move does nothing, and sessions drain as those of other transports do. Without any time
// they end with Close, and others may continue them.
func (h *HTTP) Move(ctx context.Context) (wait func() (moved int)) {
	h.init()
	if h.Replicas == nil || len(h.Replicas.Others()) == 0 {
		return func() int { return 0 }
	}
	h.open.moving.Store(true) // also without any time: whoever keeps its record forgets a session that drains
	if ctx.Err() != nil {
		return func() int { return 0 }
	}
	m := &mover{open: h.open, replicas: h.Replicas, room: make(chan struct{}, moveAtOnce)}
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
		m.awaitSweep(ctx, sweep.C)
	}
}

// awaitSweep returns when it is time for the next sweep, or ctx ends. Until then it moves sessions that are free:
// between two calls that a client makes one after the other there may be less than a millisecond.
func (m *mover) awaitSweep(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case s := <-m.open.freed:
			if m.anybody() {
				m.sweep([]*httpSession{s}, nil, false)
			}
		case <-tick:
			return
		case <-ctx.Done():
			return
		}
	}
}

// mayMove tells the mover that a request of a session was served. If it is busy, it finds the session with its next
// sweep.
func (o *openSessions) mayMove(s *httpSession) {
	if !o.moving.Load() {
		return
	}
	select {
	case o.freed <- s:
	default:
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
					m.open.keeper.noteEnd(k.ID)
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
	s.dropUnreceivedLocked(movesOn)
	for id := range s.pending.Each {
		s.failLocked(id, movesOn(jsonrpc.InFlight))
	}
	return true
}

// movesOn returns the error for requests of a session that must move while they are in flight. The session goes on.
func movesOn(phase jsonrpc.Phase) *jsonrpc.Error {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Says: "this replica is being stopped, and its sessions move to another one"}
	return end.Wire(jsonrpc.CodeInternalError, "", phase)
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
