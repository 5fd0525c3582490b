package session

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// openLocked returns the current attempt, and begins one if there is none. After hangUp it returns
// an attempt that has ended.
func (u *upstreamConn) openLocked() *attempt {
	if u.closed {
		a := u.newAttempt()
		a.ended, a.err = true, peer.Unsent(u.gone, u.up.Name)
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
		u.wg.Add(1)
		go u.run(a)
	}
	return u.attempt
}

func (u *upstreamConn) newAttempt() *attempt {
	a := &attempt{started: make(chan struct{}), closed: make(chan struct{})}
	a.peer = peer.New(peer.Options{
		Name: u.up.Name, Minted: &u.minted, Apart: true, Class: classOf,
		Room: jsonrpc.Room{Messages: maxQueue, Bytes: u.maxBytes}, Full: u.queueFull,
		Sent: observeSent, Over: observeOver,
		Request:   func(r *peer.Request) { u.asked(a, r) },
		Cancelled: u.client.questionCancelled,
		Notified:  func(m *jsonrpc.Message, of *peer.Call) { u.notified(incoming{a: a, m: m, of: of}) },
		Progress:  func(c *peer.Call, m *jsonrpc.Message, _ jsonrpc.Span) { u.notified(incoming{a: a, m: m, of: c}) },
		Invalid: func(bad *jsonrpc.InvalidError) *jsonrpc.Message {
			u.log.Debug("unusable message from upstream", "err", bad)
			return nil
		},
		Refuse: peer.DropDuplicates,
		Dropped: func(m *jsonrpc.Message) {
			u.noteAnswer(m)
			u.answeredLate(m.ID)
			u.client.drop("unknown or late answer from upstream", m)
		},
	})
	if u.era == mcp.Legacy {
		a.peer.Hold(afterInitialize)
	}
	return a
}

// maxQueue bounds the messages that wait for one upstream to read, because reading from the client
// never stops for it.
const maxQueue = 8192

// queueFull logs a message that was dropped because the queue was full, with one warning for each start
// of the upstream.
func (u *upstreamConn) queueFull(m *jsonrpc.Message) {
	level := slog.LevelDebug
	if !u.dropLogged.Swap(true) {
		level = slog.LevelWarn
	}
	u.log.Log(u.ctx, level, "message dropped: the upstream does not read", "method", m.Method)
}

// answeredLate ends the count of an abandoned call.
func (u *upstreamConn) answeredLate(id jsonrpc.ID) {
	n, ok := id.Answered()
	if !ok || !u.limited {
		return
	}
	u.abandoned.answered(n)
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
		return peer.Unsent(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartTimeout}, u.up.Name) // the start goes on
	}
}

// run opens a stream for one attempt, and begins to serve it.
func (u *upstreamConn) run(a *attempt) {
	if a.after != nil { // the host may wait for the end of its server
		<-a.after.closed
		a.after = nil
	}
	over := func(err error) {
		close(a.closed)
		u.end(a, err)
		u.wg.Done()
	}
	conn, err := u.client.dial(u)
	u.mu.Lock()
	u.reached = err == nil
	u.mu.Unlock()
	if err != nil {
		over(err)
		return
	}
	if err := u.adopt(a, conn); err != nil {
		conn.Close()
		over(err)
		return
	}
	a.peer.Start(context.Background(), conn, func(err error) {
		conn.Close()
		over(err)
	})
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
		u.subscriptions.Resume(u)
		return nil
	}
	c := u.newCall(a, mcp.MethodInitialize)
	c.Room = &a.first
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			u.initialized(a, answer)
		}
	}
	return c.Send(&jsonrpc.Message{Params: c.own(u.ctx, u.client.initializeParams()), Forwarded: u.up.with(u.forwarded)})
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
		a.err = peer.Unsent(end, u.up.Name)
		close(a.started)
	}
	u.held.clear()
	if u.sessionCtx.Err() == nil { // otherwise this side has left, and the server may continue
		u.abandoned.end()
	}
	u.lists.Outdate(catalog.Tools, catalog.Prompts, catalog.Resources) // the next process may have other lists
	return end
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
	if u.isSubscribed(a) {
		u.reopenSoon()
	}
}

// isSubscribed reports whether the client has subscriptions at the server of a, which had started and has ended: the
// client may wait for updates alone, and send no request that would start the server again.
func (u *upstreamConn) isSubscribed(a *attempt) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !a.ready || a.rests || u.closed {
		return false
	}
	_, subscriptions := u.client.stateAt(u)
	return subscriptions != nil
}

// reopenSoon opens the stream to an upstream at which the client has subscriptions, to replay them,
// when its server has ended, its link is back, or it has other settings.
func (u *upstreamConn) reopenSoon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reopening {
		return
	}
	u.reopening = true
	u.wg.Go(func() {
		timer := time.NewTimer(rand.N(reopenWithin))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-u.ctx.Done():
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.reopening = false
		if u.ctx.Err() == nil {
			u.openLocked()
		}
	})
}

// reopenWithin is the time over which sessions spread the opening of their streams when a link is
// back.
const reopenWithin = 500 * time.Millisecond

// initialized handles an upstream's answer to initialize.
func (u *upstreamConn) initialized(a *attempt, answer *jsonrpc.Message) {
	if answer.Error != nil || answer.Result[0] != '{' { // it cannot be used
		u.mu.Lock()
		defer u.mu.Unlock()
		if !a.ended {
			u.log.Debug("upstream refused initialize") // its host warns, ends the stream and sends the event
			a.own = whyNotInitialized(u.up.Name, answer.Error)
			conn := a.conn
			time.AfterFunc(lastWords, func() { conn.Close() })
		}
		return
	}
	u.lists.Note(answer.Result)
	// Now, because the client's next list waits for this, and acknowledges what was announced.
	unseen := u.lists.Unannounced()
	u.mu.Lock()
	u.dropLogged.Store(false)
	u.lists.Started()
	a.peer.SendIn(&a.first, jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	lazy := u.lists.IsLazy()
	if lazy {
		u.listFirst(a)
	}
	u.replayLocked(a)
	a.peer.Release(afterInitialize)
	a.ready = true
	close(a.started)
	u.watchLocked(a)
	u.noteAliveLocked(a)
	u.mu.Unlock()
	if !lazy { // else listFirst compares
		u.wg.Go(func() { u.lists.Returned(unseen, func() bool { return u.isOpen(a) }) })
	}
}

// introduced starts an upstream that describes itself in initialize, and returns the description.
func (u *upstreamConn) introduced(ctx context.Context) (json.RawMessage, *lists.Failure) {
	u.mu.Lock()
	a := u.attempt // initialize began it, and it may have failed already
	if a == nil || a.counted {
		a = u.openLocked()
	}
	a.counted = true
	u.mu.Unlock()
	if err := u.await(ctx, a); err != nil {
		return nil, lists.FailureOf(err)
	}
	return u.lists.Says().Result, nil
}
