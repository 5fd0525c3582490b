package session

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
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

// An attempt is one stream from its opening to its end. In the modern era, which has no initialize,
// it is ready when it is open.
type attempt struct {
	peer    *peer.Peer    // on the stream; its queue holds messages before that is open
	started chan struct{} // closed when initialize was answered, or the stream ended before
	first   jsonrpc.Room  // unbounded room for the handshake
	closed  chan struct{} // closed when its stream is
	after   *attempt      // that was idle, and whose stream is closed first; nil for none
	entered atomic.Int32  // goroutines that are about to send something; incremented with upstreamConn.mu held

	// Guarded by upstreamConn.mu.
	conn    jsonrpc.Conn // nil until the stream is open
	ready   bool         // initialize was answered
	heard   bool         // the upstream has answered anything
	counted bool         // a client waits or has waited for its start
	ended   bool
	rests   bool                 // ended because it was idle
	own     *jsonrpc.ClosedError // the end that this side chose; nil: that of Recv
	err     *jsonrpc.Error       // why it ended before it was ready
	look    *time.Timer          // calls lookAt; nil before it is ready, and if it never rests
	busy    bool                 // it was busy at the last look
}

// Classes of messages that may be held back from an upstream.
const (
	afterInitialize jsonrpc.Class = 1 << iota // held until the answer to initialize
	requests                                  // not sent when the stream is hung up
)

func classOf(m *jsonrpc.Message) jsonrpc.Class {
	switch {
	case m.IsResponse(), m.Method == mcp.MethodInitialize, m.Method == mcp.MethodInitialized:
		return 0
	case m.IsRequest():
		return afterInitialize | requests
	}
	return afterInitialize
}

// maxQueue bounds the messages that wait for one upstream to read, because reading from the client
// never stops for it.
const maxQueue = 8192

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

// openLocked returns the current attempt, and begins one if there is none. After hangUp it returns
// an attempt that has ended.
func (u *upstreamConn) openLocked() *attempt {
	if u.closed {
		a := u.newAttempt()
		a.ended, a.err = true, u.lost(u.gone)
		a.peer.End(u.gone)
		close(a.started)
		return a
	}
	if u.attempt == nil || u.attempt.ended {
		a := u.newAttempt()
		if u.restsLocked() {
			a.after = u.attempt
			u.lists.Outdate(catalog.Tools, catalog.Prompts, catalog.Resources) // as in ended
		}
		u.attempt = a
		u.s.wg.Go(func() { u.run(a) })
	}
	return u.attempt
}

func (u *upstreamConn) newAttempt() *attempt {
	a := &attempt{started: make(chan struct{}), closed: make(chan struct{})}
	a.peer = peer.New(peer.Options{
		Name: u.up.Name, Minted: &u.minted, Apart: true, Class: classOf,
		Room: jsonrpc.Room{Messages: maxQueue, Bytes: u.s.router.queueBytes()}, Full: u.queueFull,
		Sent: observeSent, Over: observeOver,
		Request:   func(r *peer.Request) { u.asked(a, r) },
		Cancelled: u.questionCancelled,
		Notified:  func(m *jsonrpc.Message, of *peer.Call) { u.notified(incoming{a: a, m: m, of: of}) },
		Progress:  func(c *peer.Call, m *jsonrpc.Message, _ jsonrpc.Span) { u.notified(incoming{a: a, m: m, of: c}) },
		Invalid:   func(bad *jsonrpc.InvalidError) { u.log.Debug("unusable message from upstream", "err", bad) },
		Refuse:    peer.DropDuplicates,
		Dropped: func(_ string, m *jsonrpc.Message) {
			u.noteAnswer(m)
			u.answeredLate(m.ID)
			u.s.drop("unknown or late answer from upstream", m)
		},
	})
	if u.era == mcp.Legacy {
		a.peer.Hold(afterInitialize)
	}
	return a
}

// open is openLocked without the lock.
func (u *upstreamConn) open() *attempt {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.openLocked()
}

// WakeUp opens the stream if necessary, and reports whether the upstream is ready.
func (u *upstreamConn) WakeUp() (ready bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.openLocked().ready
}

// A streamState is the state of an upstream connection at one time.
type streamState struct {
	lists.State
	attempt *attempt // the last one, nil for none
	dialled bool     // there is a stream
	reached bool     // the last completed dial reached the host
	rests   bool
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

// Start opens the stream if necessary and waits until the upstream has answered initialize. It
// returns the error for those who need the upstream.
func (u *upstreamConn) Start(ctx context.Context) *jsonrpc.Error {
	return u.await(ctx, u.open())
}

// await is Start for an existing attempt.
func (u *upstreamConn) await(ctx context.Context, a *attempt) *jsonrpc.Error {
	select {
	case <-a.started:
		u.mu.Lock()
		defer u.mu.Unlock()
		return a.err
	case <-ctx.Done():
		return u.lost(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartTimeout}) // the start goes on
	}
}

// lost returns the error of a call that was not sent because of the end of its stream: the
// connection-closed error, or overloaded if there was no room for a stream.
func (u *upstreamConn) lost(end *jsonrpc.ClosedError) *jsonrpc.Error {
	return (&peer.Lost{End: end, Phase: jsonrpc.NotSent}).Wire(jsonrpc.CodeInternalError, u.up.Name)
}

// unsent returns the error of a call that its Peer could not send.
func (u *upstreamConn) unsent(err error) *jsonrpc.Error {
	if err == jsonrpc.ErrFull {
		return jsonrpc.Overloaded(u.up.Name)
	}
	u.mu.Lock()
	gone := u.gone
	u.mu.Unlock()
	if gone != nil { // hung up since it was opened
		err = gone
	}
	return u.lost(jsonrpc.EndOf(err, jsonrpc.CauseLinkLost))
}

// run owns the stream of one attempt.
func (u *upstreamConn) run(a *attempt) {
	if a.after != nil { // the host may wait for the end of its server
		<-a.after.closed
		a.after = nil
	}
	err := u.stream(a)
	close(a.closed)
	u.end(a, err)
}

// stream opens a stream for a and returns how it ended.
func (u *upstreamConn) stream(a *attempt) error {
	conn, err := u.s.router.Dial(u.ctx, u.up.Name, u.s.key, u.era)
	u.mu.Lock()
	u.reached = err == nil
	u.mu.Unlock()
	if err != nil {
		return err
	}
	defer conn.Close()
	conn = u.tapped(conn)
	if err := u.adopt(a, conn); err != nil {
		return err
	}
	return a.peer.Run(context.Background(), conn)
}

// adopt makes conn the stream of a. A stream of the legacy era begins with initialize, which holds
// back everything else. A stream of the modern era is ready.
func (u *upstreamConn) adopt(a *attempt, conn jsonrpc.Conn) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return jsonrpc.ErrClosed
	}
	a.conn = conn
	if u.era == mcp.Modern {
		u.dropLogged.Store(false)
		u.lists.Started()
		a.ready = true
		close(a.started)
		u.watchLocked(a)
		u.s.subscriptions.Resume(u)
		return nil
	}
	params, _ := u.s.handshake.said()
	c := u.newCall(a, mcp.MethodInitialize)
	c.Room = &a.first
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			u.initialized(a, answer)
		}
	}
	return c.Send(&jsonrpc.Message{Params: c.own(u.ctx, params)})
}

// ask makes a call of the session itself and waits for the answer, which may be a connection-closed
// error. It starts the upstream if necessary. If ctx ends first, ask cancels the call and returns
// the error of ctx.
func (u *upstreamConn) ask(ctx context.Context, method string, params json.RawMessage) (*jsonrpc.Message, error) {
	return u.askFor(ctx, nil, method, params)
}

// askFor is ask with a function for the notifications that belong to the call.
func (u *upstreamConn) askFor(ctx context.Context, told func(*jsonrpc.Message), method string, params json.RawMessage) (*jsonrpc.Message, error) {
	answers := make(chan *jsonrpc.Message, 1)
	a := u.enter()
	c := u.newCall(a, method)
	c.onNotification = told
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost != nil {
			answer = jsonrpc.NewError(c.ID, lost.Wire(jsonrpc.CodeInternalError, u.up.Name))
		} else {
			u.noteAnswer(answer)
		}
		answers <- answer
	}
	err := c.Send(&jsonrpc.Message{Params: c.own(ctx, params)})
	a.leave()
	if err != nil {
		return jsonrpc.NewError(c.ID, u.unsent(err)), nil
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
	}
	c.Cancel("no longer needed")
	return nil, context.Cause(ctx)
}

// queueFull logs a message that was dropped because the queue was full.
func (u *upstreamConn) queueFull(m *jsonrpc.Message) {
	u.log.Log(u.s.ctx, firstIs(&u.dropLogged), "message dropped: the upstream does not read", "method", m.Method)
}

// end settles all calls and requests of the stream of a.
func (u *upstreamConn) end(a *attempt, err error) {
	said := *jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
	mine := said
	end := u.ended(a, &mine)
	inFlight, _ := a.peer.Open()
	u.observeEnd(&said, end, inFlight)
	u.log.Debug("stream ended", "cause", end.Cause.String(), "event", end.Event, "err", err, "in_flight", inFlight)
	a.peer.End(end)
}

// toldAs returns the end of a for clients. end is the end of its stream. If this side chose its end
// before the host did, the event is this side's.
func (a *attempt) toldAs(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	if a.own != nil {
		own := *a.own
		own.Delivered, own.Event = end.Delivered, cmp.Or(own.Event, end.Event)
		if own.Cause == end.Cause { // the host may know more about it
			own.Says = cmp.Or(own.Says, end.Says)
		}
		end = &own
	}
	end.Event = cmp.Or(end.Event, jsonrpc.NewEvent()) // older hosts send none
	return end
}

// ended marks a as ended before anything of it is settled, so that later requests open another
// stream. It returns the end for clients.
func (u *upstreamConn) ended(a *attempt, end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	u.mu.Lock()
	defer u.mu.Unlock()
	end = a.toldAs(end)
	if a.rests { // restLocked has ended it, and another stream may be open
		return end
	}
	a.ended = true
	if a.look != nil {
		a.look.Stop()
	}
	if !a.ready {
		a.err = u.lost(end)
		close(a.started)
	}
	u.held.clear()
	if u.s.ctx.Err() == nil { // otherwise this side has left, and the server may continue
		u.abandoned.end()
	}
	u.lists.Outdate(catalog.Tools, catalog.Prompts, catalog.Resources) // the next process may have other lists
	return end
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

// lastWords bounds the last writes to an upstream.
const lastWords = 250 * time.Millisecond

// firstIs returns the log level of an event that is worth one warning for each start of the
// upstream. said is set once it was logged.
func firstIs(said *atomic.Bool) slog.Level {
	if said.Swap(true) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
