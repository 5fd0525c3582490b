package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// maxOut bounds the messages that a client has not read yet, beside their
	// bytes (shared.outBytes). A client that lets more come together loses its
	// stream, since the server must not wait for it and what is lost could not
	// be told.
	maxOut = 8192

	// flushTime is how long a client may take to read what the server had said
	// before it ended.
	flushTime = 5 * time.Second

	// lingering is how long a call that was cancelled may still speak: what the
	// server had on its way when the cancellation reached it.
	lingering = time.Second

	// maxSharedCalls bounds the calls of one client. Those beyond are refused.
	maxSharedCalls = 4096
)

const causeTooSlow = "client too slow"

// A sharer is one client's stream on a shared upstream.
type sharer struct {
	// Static after join.
	c       jsonrpc.Conn
	log     *slog.Logger
	alone   bool // the stream is of one connection, not of all clients of a principal
	sh      *shared
	wg      sync.WaitGroup // write, close
	written chan struct{}  // closed by write

	// Guarded by shared.mu.
	can       mcp.Abilities
	hello     *sharedCall                // its initialize, from then on
	ready     bool                       // which was answered: now it hears of what goes to all
	calls     map[jsonrpc.ID]*sharedCall // not settled, by the client's id
	atServer  int                        // of them, sent to the server
	lingers   time.Time                  // a call was cancelled, and until then may still speak
	sent      bool                       // a call was sent to the server
	questions map[int64]*sharedQuestion  // open, by the id that was minted for the client
	asked     int64                      // minted
	level     int                        // wanted; zero if the client did not say
	subs      map[string]struct{}        // URIs subscribed to
	tasks     []*sharedTask              // the oldest, which is forgotten first, first
	running   int                        // of them, not ended
	urls      []string                   // elicitationIds, likewise
	cursors   cursors

	waiting      int       // messages in the server's queue
	waitingBytes int       // in them
	room         sync.Cond // they became fewer, or ended changed

	wake     sync.Cond          // out or ended changed
	out      []*jsonrpc.Message // to write
	outBytes int
	ended    bool
	flush    bool  // out is written before the stream is closed
	err      error // the end
	lost     int   // calls open at the end, for the log
}

func newSharer(c jsonrpc.Conn, log *slog.Logger) *sharer {
	return &sharer{
		c: c, log: log, written: make(chan struct{}),
		calls:     make(map[jsonrpc.ID]*sharedCall),
		questions: make(map[int64]*sharedQuestion),
		subs:      make(map[string]struct{}),
	}
}

// join makes s a sharer of sh, unless that has ended.
func (sh *shared) join(s *sharer) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ended || sh.modern != nil && sh.modern.retired {
		return false
	}
	sh.stopIdleLocked()
	s.sh, s.room.L, s.wake.L = sh, &sh.mu, &sh.mu
	sh.sharers[s] = struct{}{}
	return true
}

// serve runs a sharer that has joined to its end.
func (s *sharer) serve(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { s.endWith(causeHostStopped, context.Cause(ctx)) })
	defer unhook()
	s.wg.Go(s.write)

	s.end(s.read())
	s.wg.Wait()
	return s.err
}

// read owns Recv of the stream.
func (s *sharer) read() error {
	var batch []*jsonrpc.Message
	for {
		var end error
		batch, end = jsonrpc.RecvAll(s.c, batch[:0])
		for _, m := range batch {
			if m.Batch == nil {
				s.receive(m)
			}
			for _, e := range m.Batch {
				s.receive(e)
			}
		}
		clear(batch)
		if isEnd(end) { // the proxy sends no invalid ones
			return jsonrpc.Closed(end)
		}
	}
}

func (s *sharer) receive(m *jsonrpc.Message) {
	switch {
	case m.IsRequest():
		s.request(m)
	case m.IsNotification():
		s.notified(m)
	default:
		s.answered(m)
	}
}

// write owns Send of the stream.
func (s *sharer) write() {
	defer close(s.written)
	for {
		batch := s.next()
		if batch == nil {
			return
		}
		if err := jsonrpc.SendAll(s.c, batch); err != nil {
			s.end(jsonrpc.Closed(err))
			return
		}
	}
}

// next waits for messages to the client and takes them all; nil at the end.
func (s *sharer) next() []*jsonrpc.Message {
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	for len(s.out) == 0 && !s.ended {
		s.wake.Wait()
	}
	batch := s.out
	s.out, s.outBytes = nil, 0
	return batch
}

// putLocked queues a message to the client. m must be nobody else's.
func (s *sharer) putLocked(m *jsonrpc.Message) {
	if s.ended {
		return
	}
	size := m.Size()
	if len(s.out) >= maxOut || len(s.out) > 0 && s.outBytes+size > s.sh.outBytes {
		s.sh.dropLocked(s, &jsonrpc.ClosedError{Cause: causeTooSlow, Delivered: true, Event: jsonrpc.NewEvent()}, false)
		return
	}
	s.out = append(s.out, m)
	s.outBytes += size
	s.wake.Signal()
}

// end ends s because its client has gone.
func (s *sharer) end(err error) {
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	s.sh.dropLocked(s, err, false)
}

// endWith ends s with a cause for its client.
func (s *sharer) endWith(cause string, err error) {
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	s.sh.dropLocked(s, &jsonrpc.ClosedError{Cause: cause, Delivered: s.sent, Event: jsonrpc.NewEvent(), Err: err}, false)
}

// dropLocked is the one place through which every end of a sharer passes; the
// first one counts. With flush the client gets first what is queued for it.
func (sh *shared) dropLocked(s *sharer, err error, flush bool) {
	if s.ended {
		return
	}
	s.ended, s.err, s.flush, s.lost = true, err, flush, len(s.calls)
	delete(sh.sharers, s)
	if !flush {
		s.out = nil
	}
	if !sh.ended {
		sh.leaveLocked(s)
	}
	s.calls, s.questions, s.subs, s.tasks, s.urls, s.cursors = nil, nil, nil, nil, nil, cursors{}
	sh.idleLocked()
	s.wake.Broadcast()
	s.room.Broadcast()
	s.wg.Go(s.close)
}

// close closes the stream; a client that does not read is waited for, a little,
// only if there is something left to read for it.
func (s *sharer) close() {
	if s.flush {
		select {
		case <-s.written:
		case <-time.After(flushTime):
		case <-s.sh.forced.Done():
		}
	}
	jsonrpc.CloseWith(s.c, s.err)
	log := s.log.With("cause", jsonrpc.CauseOf(s.err), "in_flight", s.lost)
	end, ok := errors.AsType[*jsonrpc.ClosedError](s.err)
	if ok {
		log = log.With("event", end.Event)
	}
	if ok && end.Cause == causeTooSlow {
		log.Warn("client of a shared upstream does not read")
		return
	}
	log.Debug("client has left a shared upstream")
}

// leaveLocked clears up what s has open with a server that stays: one stimulus for
// each call. A question gets the one error, which ends the calls that possibly wait
// for it; all others are cancelled.
func (sh *shared) leaveLocked(s *sharer) {
	for _, n := range slices.Sorted(maps.Keys(s.questions)) {
		q := s.questions[n]
		s.markLocked(q)
		delete(sh.asked, q.id)
		sh.tellLocked(jsonrpc.NewError(q.id, clientGone()))
	}
	speaks := s.running > 0 || time.Now().Before(s.lingers)
	var fading []*sharedCall
	byAge := func(a, b *sharedCall) int { return cmp.Compare(a.n, b.n) }
	for _, c := range slices.SortedFunc(maps.Values(s.calls), byAge) {
		switch {
		case sh.fadeLocked(c):
			fading = append(fading, c)
		case sh.abandonLocked(c):
			speaks = true
			if !c.creates {
				sh.tellLocked(mcp.Cancellation(jsonrpc.IntID(c.n), "client disconnected"))
			}
		}
	}
	if speaks {
		sh.leftTill = time.Now().Add(lingering)
	}
	if len(fading) > 0 {
		sh.wg.Go(func() { sh.cancelLate(fading) })
	}
	for _, t := range s.tasks {
		if !t.ended {
			sh.cancelTaskLocked(t.raw)
		}
		sh.tasks.removeLocked(t)
	}
	for _, id := range s.urls {
		delete(sh.urls, id)
	}
	sh.unsubscribeAllLocked(s)
	sh.countLocked(s, -1)
	sh.levelLocked()
}

// fadeFor is how long a call whose question got the one error may take to end by
// itself. Then it is cancelled all the same.
const fadeFor = 30 * time.Second

// fadeLocked leaves a marked call of a client that leaves to itself, and reports
// whether it did. What such calls say belongs to nobody, so that nothing which could
// be theirs is attributed to another client meanwhile.
func (sh *shared) fadeLocked(c *sharedCall) bool {
	if !c.marked || sh.calls[c.n] != c || sh.tasks.orphans >= maxOrphans {
		return false
	}
	c.orphan, c.fades = true, true
	sh.tasks.orphans++
	sh.fading++
	return true
}

// cancelLate cancels those of the calls that have not ended by themselves in time.
func (sh *shared) cancelLate(fading []*sharedCall) {
	late := time.NewTimer(fadeFor)
	defer late.Stop()
	select {
	case <-late.C:
	case <-sh.over:
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, c := range fading {
		if sh.calls[c.n] != c {
			continue
		}
		sh.leftTill = time.Now().Add(lingering)
		if c.creates { // it is cancelled as the task that it may become
			c.fades = false
			sh.fading--
			continue
		}
		sh.removeLocked(c)
		sh.tellLocked(mcp.Cancellation(jsonrpc.IntID(c.n), "client disconnected"))
	}
}

func clientGone() *jsonrpc.Error {
	return jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", "client disconnected", jsonrpc.InFlight)
}
