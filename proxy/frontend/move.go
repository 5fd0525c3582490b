package frontend

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	sweepEvery  = 20 * time.Millisecond // how often sessions are looked at that are in use
	moveTime    = time.Second           // for sessions that are in use until the end
	moveAtOnce  = 32
	moveTimeout = 3 * time.Second        // of one record
	endReaders  = 500 * time.Millisecond // for what is being written
	moveAgain   = 3                      // how often a record is sent again at most, since a server has said more
)

// movable is what a session needs to move to another replica, or to be continued by the one that keeps its record. The
// lock of the session guards it.
type movable struct {
	// Nil for a session that never moves; static.
	moving  *atomic.Bool // sessions move away
	changes *changes     // of its record, too
	said    *saidOnce    // guarded

	moves    int64         // how often the session has moved
	records  int64         // made for the replica that it moves to
	resumed  string        // "moved" or "adopted", if it was; static once Serve runs
	gets     int           // GETs being served
	resuming *resumption   // nil unless it has just moved here
	frozen   chan struct{} // it is being moved; closed when that is over
	taker    string        // the replica that may have it already; owned by the mover
}

// Moves reports whether the session moves to another replica instead of draining.
func (s *httpSession) Moves() bool { return s.moving != nil && !s.sse && s.moving.Load() }

// A mover moves the sessions of a replica that leaves.
type mover struct {
	directory *directory
	freed     <-chan *httpSession // as in departure
	replicas  Replicas
	room      chan struct{}
	wg        sync.WaitGroup
	ctx       context.Context // of what is sent; set by run

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
		sessions, records := m.directory.toMove()
		if forced || m.anybody() {
			m.sweep(sessions, records, forced)
		}
		if forced || len(sessions)+len(records) == 0 {
			m.wg.Wait()
			sessions, records = m.directory.toMove()
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
		case s := <-m.freed:
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

// A departure is what sessions know of a replica that leaves.
type departure struct {
	begun atomic.Bool       // sessions of Streamable HTTP move to other replicas
	freed chan *httpSession // sessions that have just answered a request, for the mover
}

// mayMove tells the mover that a request of a session was served. If it is busy, it finds the session with its next
// sweep.
func (d *departure) mayMove(s *httpSession) {
	if !d.begun.Load() {
		return
	}
	select {
	case d.freed <- s:
	default:
	}
}

// handOn lets another replica keep the records whose owners cannot send them again: they have died.
func (m *mover) handOn() {
	others := m.replicas.Others()
	for of, records := range m.directory.kept.orphans(others) {
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
			m.directory.kept.keep(&keeping{Of: of, Forget: b.ids}) // so that it goes on only there
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
		if m.directory.freeze(k) {
			m.start(func() {
				sent := m.send(k.onward(m.replicas.Instance()), k.ID, &k.taker)
				if (sent || forced || len(m.replicas.Others()) == 0) && m.directory.drop(k) && sent { // else whoever keeps it may continue it
					m.directory.changes.noteEnd(k.ID)
				}
				m.directory.thaw(k)
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
	text, last := m.recordOf(s)
	switch movable := text != nil && len(text) <= maxRecord; {
	case movable && m.send(text, s.id, &s.taker):
		for range moveAgain {
			if s.endMoved(last) {
				break
			}
			last = m.sendAgain(s)
		}
		s.end(errMoved, true)
	case !movable || forced || len(m.replicas.Others()) == 0:
		s.end(errStopped, true)
	}
	s.thaw()
}

// recordOf returns the record of a frozen session, nil if it cannot move, and the number of the last event that its
// servers have caused so far.
func (m *mover) recordOf(s *httpSession) (text []byte, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.movableLocked() {
		text = s.movingLocked(m.replicas.Instance(), m.replicas.Digest()).encode()
	}
	return text, s.out.standalone.lastEvent()
}

// endMoved ends a session that has moved, unless its servers have said something since the event last, which its
// record does not have.
func (s *httpSession) endMoved(last int) bool {
	s.mu.Lock()
	more := s.in.Err() == nil && s.out.standalone.lastEvent() > last
	ended := !more && s.endLocked(errMoved, true)
	s.mu.Unlock()
	if ended {
		s.onEnd()
	}
	return !more
}

// sendAgain sends the record of a session again to the replica that has taken it, which needs it until the client
// comes there, and returns the last event as recordOf.
func (m *mover) sendAgain(s *httpSession) (last int) {
	ctx, cancel := context.WithTimeout(m.ctx, keepTimeout)
	defer cancel()
	text, last := m.recordOf(s)
	if to := pick(m.replicas.Others(), s.taker, nil); text != nil && to != nil && to.Instance == s.taker && len(text) <= maxRecord {
		_, _, _ = tell(ctx, to.Via, http.MethodPost, replicaPath+"/again", text)
	}
	return last
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
			m.directory.gone.set(id, to.Instance)
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
