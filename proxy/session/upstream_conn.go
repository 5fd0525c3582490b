package session

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// A clientSide is the session of an upstreamConn, as that sees it. The connection knows streams:
// attempts to open one, their ends, rest, messages that are held back, and calls of its own. What
// a message means for the client, and what the client has asked for, only the session knows.
//
// initializeParams, stateAt, needs and isSole are called with upstreamConn.mu held. They do not wait,
// and take only locks that come after it. The others are called without it.
type clientSide interface {
	// dial opens a stream to the upstream.
	dial(u *upstreamConn) (jsonrpc.Conn, error)

	// initializeParams returns the params of initialize for upstreams.
	initializeParams() json.RawMessage

	// stateAt returns what is restored at an upstream that starts again. level is the params of the
	// last logging/setLevel, nil if there was none. subscriptions are the params of the client's
	// subscriptions to its resources.
	stateAt(u *upstreamConn) (level json.RawMessage, subscriptions []json.RawMessage)

	// needs reports whether the client has something at the upstream that ends with its server.
	needs(u *upstreamConn) bool

	// isSole reports whether the client has no other upstream.
	isSole(u *upstreamConn) bool

	// handle handles a notification of the upstream, or a request other than a ping. In the legacy
	// era, the client is ready. It is called in the order of the messages, and may wait for room.
	handle(u *upstreamConn, in incoming)

	// questionCancelled cancels a request that was handled: by m, in which its id is at a span, or,
	// if m is nil, because its stream has ended.
	questionCancelled(r *peer.Request, m *jsonrpc.Message, at jsonrpc.Span)

	// drop counts a message without a receiver.
	drop(reason string, m *jsonrpc.Message)
}

// surroundings are what all upstream connections of a session have in common. They are static.
type surroundings struct {
	client        clientSide
	clientReady   *atomic.Bool // until when messages are held back
	subscriptions *listen.Subscriptions
	sessionLists  *lists.Session

	session    string // its name in logs
	sessionLog *slog.Logger
	sessionCtx context.Context // ends with the session
	began      time.Time       // of the session
	wg         *sync.WaitGroup // of its goroutines

	forwarded *jsonrpc.Forwarded // headers of the client for what has none of its own; nil for none

	// As in [lists.Server]: trials are of the router.
	try   func(k lists.Key, up *Upstream, capabilities json.RawMessage) *lists.Asking
	renew func(k lists.Key, up *Upstream, capabilities json.RawMessage)

	hooks    *observe.Hooks
	limited  bool // there are policies: abandoned requests count
	maxBytes int  // of a queue
}

// now is session.now.
func (of *surroundings) now() time.Duration { return time.Since(of.began) }

// An upstreamConn is one session's connection to one upstream: at most one open stream, opened when
// first needed, and again after it ended.
type upstreamConn struct {
	// Static after construction.
	*surroundings
	era    mcp.Era
	up     *Upstream
	log    *slog.Logger
	ctx    context.Context // ends with the session, or when the upstream connection is hung up
	cancel context.CancelFunc

	lists *lists.Upstream // what it says and lists; with a lock of its own

	dropLogged atomic.Bool // since its last start: a message was dropped because the queue was full

	minted atomic.Int64 // last id; never reused, so that a late answer settles no other call

	used atomic.Int64 // when it was last in use, by session.now; only if it may rest

	// Each has its own lock.
	held      heldBack  // messages for a client that is not ready
	abandoned abandoned // requests that still count

	mu        sync.Mutex                   // guards the fields below and attempts; may be taken with session.mu held, never the other way
	attempt   *attempt                     // the current stream, or the last one
	reached   bool                         // the last completed dial reached the host
	closed    bool                         // hung up for good: no new attempt and no new call
	gone      *jsonrpc.ClosedError         // why it is closed; without a cause at the session's end
	reopening bool                         // reopenSoon is waiting
	suspended map[catalog.Digest]time.Time // until when it waits for the client's return, by state; see idle.go
}

func newUpstreamConn(of *surroundings, era mcp.Era, up *Upstream) *upstreamConn {
	u := &upstreamConn{surroundings: of, era: era, up: up, log: of.sessionLog.With("upstream", up.Name)}
	u.ctx, u.cancel = context.WithCancel(of.sessionCtx)
	u.lists = of.sessionLists.New(lists.Config{
		Name: up.Name, Era: era, Lazy: up.Lazy, Private: len(up.Forward) > 0, Shared: up.Shared, Allows: up.allows, Log: u.log, Ctx: u.ctx,
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

// isCold reports whether the upstream has not answered anything on an attempt, and has not answered
// initialize either, or starting says that its server still starts.
func (u *upstreamConn) isCold(a *attempt, starting bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !a.heard && (!a.ready || starting)
}

// isOpen reports whether an attempt is the open stream.
func (u *upstreamConn) isOpen(a *attempt) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !a.ended && !u.closed
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
	streams := a != nil && !a.ended
	switch {
	case cause.IsZero():
	case streams && a.own == nil:
		a.own = u.gone
	default: // requests that come later fail with an event that the end of no stream logs
		u.log.Debug("upstream hung up", "cause", cause.String(), "event", u.gone.Event)
	}
	if !streams {
		return
	}
	within := lastWords
	if !a.ready {
		within = 0
	}
	a.peer.Hold(requests) // End settles them
	a.peer.Finish(nil, within)
}

// restsLocked reports whether the upstream rests.
func (u *upstreamConn) restsLocked() bool { return u.attempt != nil && u.attempt.rests && !u.closed }

// noteUse notes that the upstream is in use.
func (u *upstreamConn) noteUse() {
	if u.up.IdleStop > 0 {
		u.used.Store(int64(u.now()))
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

// alive reports whether the upstream has answered initialize.
func (u *upstreamConn) alive() bool { return u.state().State.Ready }
