package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An upstream connection is one session's side of one upstream: at most one open stream, opened
// when first needed, and again after it ended.
type upstreamConn struct {
	// Static after construction.
	s      *session
	era    mcp.Era
	up     *Upstream
	log    *slog.Logger
	wake   sync.Cond       // on session.mu: queue or attempt changed
	ctx    context.Context // ends with the session, or when the upstream connection is hung up
	cancel context.CancelFunc

	// Guarded as they say.
	lists *upstreamLists // what it lists
	seen  *seen          // what the client has seen of that
	lag   lag            // what it owes to clients that did not wait for it

	info atomic.Pointer[serverInfo] // what it said of itself last; see says

	// Said once since its last start: a message was lost to a full queue; it was left
	// out of a list.
	deaf, missed atomic.Bool

	// Guarded by session.mu.
	attempt   *attempt             // the open stream, or the last one
	closed    bool                 // no new attempt and no new request: hung up for good
	gone      *jsonrpc.ClosedError // why; without a cause for the session's end
	reopening bool                 // a goroutine is about to open it, see reopen
	minted    int64                // last id; never reused, so that a late reply settles nothing else
	pending   map[int64]*request
	queue     []queued             // to writeLoop
	bytes     int                  // in queue
	asked     map[jsonrpc.ID]int64 // open server requests: the upstream's id to ours
	held      []incoming           // until the client is ready for it
	heldBytes int                  // in held
}

// An attempt is one stream from its opening to its end. One of the modern era is
// ready when it is open: where this speaks of initialize, it has none.
type attempt struct {
	started chan struct{} // closed when initialize was answered or the stream ended before
	conn    jsonrpc.Conn  // nil until the stream is open
	ready   bool          // initialize was answered: writeLoop may send
	heard   bool          // anything was answered
	counted bool          // a client waits, or waited, for its start
	ended   bool
	done    chan struct{}        // closed with ended
	own     *jsonrpc.ClosedError // the end that this side chose; nil for what Recv says
	err     *jsonrpc.Error       // why it ended before it was ready
}

// incoming is a message that came on an attempt's stream.
type incoming struct {
	a *attempt
	m *jsonrpc.Message
}

func newUpstreamConn(set *upstreamSet, up *Upstream) *upstreamConn {
	s := set.s
	u := &upstreamConn{
		s: s, era: set.era, up: up, log: s.log.With("upstream", up.Name),
		pending: make(map[int64]*request),
		asked:   make(map[jsonrpc.ID]int64),
	}
	u.wake.L = &s.mu
	u.ctx, u.cancel = context.WithCancel(s.ctx)
	u.lists = s.views.upstream(up.Name, u.era, &s.p.memory)
	u.lag.u = u
	u.seen = newSeen()
	return u
}

// openLocked makes sure that there is a stream, or an attempt at one. After
// hangUp it returns an attempt that has ended.
func (u *upstreamConn) openLocked() *attempt {
	if u.closed {
		a := &attempt{started: make(chan struct{}), ended: true, err: u.lost(u.gone, jsonrpc.NotSent)}
		close(a.started)
		return a
	}
	if u.attempt == nil || u.attempt.ended {
		a := &attempt{started: make(chan struct{}), done: make(chan struct{})}
		u.attempt = a
		u.s.wg.Go(func() { u.run(a) })
	}
	return u.attempt
}

// wakeUp opens the stream if need be, and reports whether the upstream is ready.
func (u *upstreamConn) wakeUp() (ready bool) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.openLocked().ready
}

// isHungUp reports whether nothing is to be asked of the upstream any more: it was hung
// up, or the session ends.
func (u *upstreamConn) isHungUp() bool { return u.ctx.Err() != nil }

// isOpen reports whether an attempt is the open stream.
func (u *upstreamConn) isOpen(a *attempt) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return !a.ended && !u.closed
}

// start opens the stream if need be and waits until the upstream has answered
// initialize. The error is the one to give to whoever needs the upstream.
func (u *upstreamConn) start(ctx context.Context) *jsonrpc.Error {
	u.s.mu.Lock()
	a := u.openLocked()
	u.s.mu.Unlock()
	return u.await(ctx, a)
}

// await is start for an attempt that was begun before.
func (u *upstreamConn) await(ctx context.Context, a *attempt) *jsonrpc.Error {
	select {
	case <-a.started:
		u.s.mu.Lock()
		defer u.s.mu.Unlock()
		return a.err
	case <-ctx.Done():
		return u.slow()
	}
}

// lost is the connection-closed error of a request on this upstream connection, or says that there
// was no room for a stream.
func (u *upstreamConn) lost(end *jsonrpc.ClosedError, at jsonrpc.Phase) *jsonrpc.Error {
	if end.Cause == jsonrpc.CauseOverloaded {
		return jsonrpc.Overloaded(u.up.Name)
	}
	return end.Wire(jsonrpc.CodeInternalError, u.up.Name, at)
}

// run owns the stream of one attempt and its Recv. An upstream that has turned
// out to speak the other era is tried once more, of which nobody hears.
func (u *upstreamConn) run(a *attempt) {
	err := u.stream(a)
	if u.again(a, err) {
		err = u.stream(a)
	}
	u.end(a, err)
}

// stream opens a stream for a and returns how it ended.
func (u *upstreamConn) stream(a *attempt) error {
	conn, err := u.s.p.Dialer.Dial(u.ctx, u.up.Name, u.s.key, u.era)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := u.adopt(a, conn); err != nil {
		return err
	}
	return u.receiveAll(a, conn)
}

// again reports whether the stream of a ended because its upstream speaks the
// other era, and if so makes a ready for another one: nothing but initialize was
// sent.
func (u *upstreamConn) again(a *attempt, end error) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if a.ready || u.closed || jsonrpc.EndOf(end, "").Cause != jsonrpc.CauseOtherEra {
		return false
	}
	for _, r := range u.pending {
		if r.sent {
			r.removeLocked()
		}
	}
	for _, sr := range u.s.serverRequests.takeUpstreamLocked(u) {
		u.s.wg.Go(func() { u.s.withdraw(sr) })
	}
	clear(u.asked)
	u.held, u.heldBytes = nil, 0
	a.conn = nil
	return true
}

// adopt makes conn the stream of a. One of the legacy era begins with initialize,
// which is the first message and waits for no queue; one of the modern era is
// ready.
func (u *upstreamConn) adopt(a *attempt, conn jsonrpc.Conn) error {
	u.s.mu.Lock()
	if u.closed {
		u.s.mu.Unlock()
		return jsonrpc.ErrClosed
	}
	a.conn = conn
	if u.era == mcp.Modern {
		u.deaf.Store(false)
		u.missed.Store(false)
		u.readyLocked(a, nil)
		u.s.subscriptions.resume(u)
		u.s.mu.Unlock()
		return nil
	}
	r := u.mintLocked()
	r.markSentLocked(mcp.MethodInitialize)
	r.done = func(answer *jsonrpc.Message) { u.initialized(a, answer) }
	params := ownToken(mcp.MethodInitialize, u.s.hello.params, r.id)
	u.s.mu.Unlock()
	_ = conn.Send(jsonrpc.NewRequest(r.id, mcp.MethodInitialize, params)) // if it fails, Recv says why
	return nil
}

func (u *upstreamConn) receiveAll(a *attempt, conn jsonrpc.Conn) error {
	var batch []*jsonrpc.Message
	for {
		var end error
		batch, end = jsonrpc.RecvAll(conn, batch[:0])
		for _, m := range batch {
			u.receive(a, m)
		}
		clear(batch)
		bad, ok := errors.AsType[*jsonrpc.InvalidError](end)
		if end != nil && !ok {
			return end
		}
		if ok {
			u.log.Debug("unusable message from upstream", "err", bad)
			if bad.Reply { // settle what would wait for ever
				u.answered(a, jsonrpc.NewError(bad.ID, jsonrpc.InvalidResponse(u.up.Name, "")))
			}
		}
	}
}

// readyLocked lets the queue flow once the upstream has answered initialize;
// first are the messages that it has to know before any request.
func (u *upstreamConn) readyLocked(a *attempt, first []*jsonrpc.Message) {
	for i, m := range first {
		u.queue = slices.Insert(u.queue, i, queued{m: m})
	}
	a.ready = true
	close(a.started)
	u.s.wg.Go(func() { u.writeLoop(a) })
}

// mintLocked enters a new request into the table.
func (u *upstreamConn) mintLocked() *request {
	u.minted++
	r := &request{conn: u, n: u.minted, id: jsonrpc.IntID(u.minted)}
	u.pending[r.n] = r
	return r
}

// ask sends a request of the session's own and waits for the answer, which may
// be a connection-closed error. It starts the upstream if need be. When ctx ends
// first the request is cancelled at the upstream and the error is ctx's.
func (u *upstreamConn) ask(ctx context.Context, method string, params json.RawMessage) (*jsonrpc.Message, error) {
	return u.askFor(ctx, nil, method, params)
}

// askFor is ask for who is told of the notifications that belong to the request.
func (u *upstreamConn) askFor(ctx context.Context, told func(*jsonrpc.Message), method string, params json.RawMessage) (*jsonrpc.Message, error) {
	answers := make(chan *jsonrpc.Message, 1)
	u.s.mu.Lock()
	r := u.mintLocked()
	r.told = told
	r.done = func(answer *jsonrpc.Message) { answers <- answer }
	u.sendLocked(r, jsonrpc.NewRequest(r.id, method, ownToken(method, params, r.id)))
	u.s.mu.Unlock()
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
	}
	u.s.mu.Lock()
	_, open := u.pending[r.n]
	r.removeLocked()
	u.s.mu.Unlock()
	if open && r.sent {
		u.tell(mcp.Cancellation(r.id, "no longer needed"))
	}
	return nil, context.Cause(ctx)
}

// sendLocked queues the message of a request, which is refused at once if there
// is no room or the upstream connection is hung up.
func (u *upstreamConn) sendLocked(r *request, m *jsonrpc.Message) {
	a := u.openLocked()
	switch {
	case a.ended:
		u.refuseLocked(r, a.err)
	case !u.queueLocked(m, r):
		u.refuseLocked(r, jsonrpc.Overloaded(u.up.Name))
	}
}

// refuseLocked settles a request that cannot be sent, in a goroutine of its own
// because the caller holds the lock.
func (u *upstreamConn) refuseLocked(r *request, err *jsonrpc.Error) {
	r.removeLocked()
	u.s.wg.Go(func() { r.settle(jsonrpc.NewError(r.id, err)) })
}

// end settles all that the stream of a had in flight, once for each.
func (u *upstreamConn) end(a *attempt, err error) {
	end, pending, requests := u.takeAll(a, jsonrpc.EndOf(err, jsonrpc.CauseLinkLost))
	u.log.Debug("stream ended", "cause", end.Cause, "event", end.Event, "err", err, "in_flight", len(pending))
	for _, r := range pending {
		at := jsonrpc.NotSent
		if r.sent && end.Delivered {
			at = jsonrpc.InFlight
		}
		r.settle(jsonrpc.NewError(r.id, u.lost(end, at)))
	}
	for _, sr := range requests {
		u.s.withdraw(sr)
	}
}

// toldAs returns what clients hear of the end of a, which its stream says is end. The
// event is this side's if it chose the end before the host did.
func (a *attempt) toldAs(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	if end.Cause == jsonrpc.CauseOtherEra { // whatever it speaks, nobody can use it
		end.Cause = jsonrpc.CauseStartFailed
	}
	if a.own != nil {
		own := *a.own
		own.Delivered, own.Event = end.Delivered, cmp.Or(own.Event, end.Event)
		end = &own
	}
	end.Event = cmp.Or(end.Event, jsonrpc.NewEvent()) // an older host does not say
	return end
}

// takeAll marks the end of a and takes all that belonged to it, before any of it
// is settled. It returns what is to be told of the end.
func (u *upstreamConn) takeAll(a *attempt, end *jsonrpc.ClosedError) (*jsonrpc.ClosedError, map[int64]*request, []*serverRequest) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	end = a.toldAs(end)
	a.ended = true
	close(a.done)
	if !a.ready {
		a.err = u.lost(end, jsonrpc.NotSent)
		close(a.started)
	}
	pending := u.pending
	u.pending = make(map[int64]*request)
	u.queue, u.bytes, u.held, u.heldBytes = nil, 0, nil, 0
	u.lists.changed(catalog.Tools, catalog.Prompts, catalog.Resources) // the next process may offer something else
	requests := u.s.serverRequests.takeUpstreamLocked(u)
	if u.s.phase >= closing {
		requests = nil // the client is not asked to bother any more
	}
	clear(u.asked)
	u.wake.Broadcast()
	return end, pending, requests
}

// hangUpLocked closes the stream for good, after what the client has still said:
// its last notification may be meant seriously. An upstream that does not read
// has lastWords for that. The host then cancels what this session had in flight.
// If the session goes on, the cause is what its requests there are told when the
// stream has ended.
func (u *upstreamConn) hangUpLocked(cause string) {
	u.closed, u.gone = true, &jsonrpc.ClosedError{Cause: cause}
	if cause != "" {
		u.gone.Event = jsonrpc.NewEvent()
	}
	u.cancel()
	u.queue = slices.DeleteFunc(u.queue, func(q queued) bool { return q.r != nil })
	a := u.attempt
	if a == nil || a.ended {
		return
	}
	if a.own == nil && cause != "" {
		a.own = u.gone
	}
	if a.conn == nil {
		return // who dials gives up
	}
	u.wake.Broadcast()
	if a.ready {
		time.AfterFunc(lastWords, func() { a.conn.Close() })
		return
	}
	u.s.wg.Go(func() { a.conn.Close() })
}

// lastWords bounds the last writes to an upstream.
const lastWords = 250 * time.Millisecond

// firstIs returns the level of what is worth a warning only once for each start
// of the upstream. said tells whether it was given.
func firstIs(said *atomic.Bool) slog.Level {
	if said.Swap(true) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
