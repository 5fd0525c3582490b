package session

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// An upstreamConn is one session's connection to one upstream: at most one open stream, opened when
// first needed, and again after it ended.
type upstreamConn struct {
	// Static after construction.
	s      *session
	era    mcp.Era
	up     *Upstream
	log    *slog.Logger
	ctx    context.Context // ends with the session, or when the upstream connection is hung up
	cancel context.CancelFunc

	lists *lists.Upstream // what it says and lists; with a lock of its own

	dropLogged atomic.Bool // since its last start: a message was dropped because the queue was full

	minted atomic.Int64 // last id; never reused, so that a late answer settles no other call

	// Each has its own lock.
	held      heldBack  // messages for a client that is not ready
	abandoned abandoned // requests that still count

	mu        sync.Mutex           // guards the fields below and attempts; may be taken with session.mu held, never the other way
	idle      idleWatch            // see idle.go
	attempt   *attempt             // the current stream, or the last one
	reached   bool                 // the last completed dial reached the host
	closed    bool                 // hung up for good: no new attempt and no new call
	gone      *jsonrpc.ClosedError // why it is closed; without a cause at the session's end
	reopening bool                 // reopen is running
}

func newUpstreamConn(set *upstreamSet, up *Upstream) *upstreamConn {
	s := set.s
	u := &upstreamConn{
		s: s, era: set.era, up: up, log: s.log.With("upstream", up.Name),
	}
	u.ctx, u.cancel = context.WithCancel(s.ctx)
	u.lists = s.lists.New(lists.Config{
		Name: up.Name, Era: u.era, Lazy: up.Lazy, Shared: up.Shared, Allows: up.allows, Log: u.log, Ctx: u.ctx,
	}, u)
	return u
}

func (u *upstreamConn) state() streamState {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := streamState{attempt: u.attempt, reached: u.reached, rests: u.restsLocked()}
	if a := u.attempt; a != nil {
		s.Open, s.Ready, s.Heard, s.dialled = !a.ended, a.ready && !a.ended, a.heard, a.conn != nil
	}
	return s
}

// IsHungUp reports whether the upstream gets no more requests, because it was hung up or the
// session ends.
func (u *upstreamConn) IsHungUp() bool { return u.ctx.Err() != nil }

// isOpen reports whether an attempt is the open stream.
func (u *upstreamConn) isOpen(a *attempt) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !a.ended && !u.closed
}

// lost returns the error of a call that was not sent because of the end of its stream: the
// connection-closed error, or overloaded if there was no room for a stream.
func (u *upstreamConn) lost(end *jsonrpc.ClosedError) *jsonrpc.Error {
	return (&peer.Lost{End: end, Phase: jsonrpc.NotSent}).Wire(jsonrpc.CodeInternalError, u.up.Name)
}

// hangUp closes the stream for good, after the client's last messages, for which an upstream
// that does not read has lastWords. The host then cancels the calls of this session. If the session
// continues, its calls fail with the cause when the stream has ended.
func (u *upstreamConn) hangUp(cause jsonrpc.Cause) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed, u.gone = true, &jsonrpc.ClosedError{Cause: cause}
	if !cause.IsZero() {
		u.gone.Event = jsonrpc.NewEvent()
	}
	u.cancel() // interrupts Dial
	a := u.attempt
	if a == nil || a.ended {
		return
	}
	if a.own == nil && !cause.IsZero() {
		a.own = u.gone
	}
	within := lastWords
	if !a.ready {
		within = 0
	}
	a.peer.Hold(requests) // End settles them
	a.peer.Finish(nil, within)
}

// firstIs returns the log level of an event that is worth one warning for each start of the
// upstream. said is set once it was logged.
func firstIs(said *atomic.Bool) slog.Level {
	if said.Swap(true) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// dialled reports whether the host is there. An attempt that something else has begun
// meanwhile, and that still dials, says nothing about that.
func (u *upstreamConn) dialled() bool {
	return u.state().reached
}

// restsLocked reports whether the upstream rests.
func (u *upstreamConn) restsLocked() bool { return u.attempt != nil && u.attempt.rests && !u.closed }

// noteUse notes that the upstream is in use.
func (u *upstreamConn) noteUse() {
	if u.up.IdleStop > 0 {
		u.idle.used.Store(int64(u.s.now()))
	}
}

// noteAliveLocked notes that the upstream has answered something.
func (u *upstreamConn) noteAliveLocked(a *attempt) {
	first := !a.heard
	a.heard = true
	u.lists.Heard(first)
}

// noteAnswer is noteAliveLocked for an answer, whoever waits for it.
func (u *upstreamConn) noteAnswer(answer *jsonrpc.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a := u.attempt; answer.Result != nil && a.ready && !a.ended {
		u.noteAliveLocked(a)
	}
}

// noteAlive is noteAliveLocked for an acknowledgment, which is no answer.
func (u *upstreamConn) noteAlive() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.attempt.ended {
		u.noteAliveLocked(u.attempt)
	}
}
