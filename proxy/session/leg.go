package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A leg is one session's side of one upstream: at most one open stream, opened
// when first needed, and again after it ended.
type leg struct {
	// Static after construction.
	s      *session
	era    mcp.Era
	up     *Upstream
	log    *slog.Logger
	wake   sync.Cond       // on session.mu: queue or attempt changed
	ctx    context.Context // ends with the session, or when the leg is hung up
	cancel context.CancelFunc

	// Guarded by session.mu.
	attempt   *attempt             // the open stream, or the last one
	closed    bool                 // no new attempt and no new request: hung up for good
	gone      *jsonrpc.ClosedError // why; without a cause for the session's end
	reopening bool                 // a goroutine is about to open it, see reopen
	minted    int64                // last id; never reused, so that a late reply settles nothing else
	pending   map[int64]*request
	queue     []queued             // to writeLoop
	bytes     int                  // in queue
	asked     map[jsonrpc.ID]int64 // open questions: the upstream's id to ours
	held      []incoming           // until the client is ready for it
	heldBytes int                  // in held
	info      serverInfo           // what its last initialize said
	own       catalog              // what it offers; legacy era only, see catalogLocked
	version   [kinds]int           // of what it offers, from 1; counts changes
	tooLate   time.Time            // when it last did not list its tools in time, see learnTools
	shown     [kinds]digest        // what of it the client has seen
	announced [kinds]int           // session.announced when the client was told of it; 0: has listed since
	deaf      bool                 // since its last start a message was lost to a full queue
	missed    bool                 // since its last start it was left out of a list
	behind    map[kind]asker       // lists that the client saw without it, see missedList
	aside     map[string]bool      // methods that it is asked for and nobody waits, see asideLocked
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

func newLeg(v *lineup, up *Upstream) *leg {
	s := v.s
	l := &leg{
		s: s, era: v.era, up: up, log: s.log.With("upstream", up.Name),
		pending: make(map[int64]*request),
		asked:   make(map[jsonrpc.ID]int64),
	}
	l.wake.L = &s.mu
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	if l.era == mcp.Legacy {
		l.own = *l.newCatalog(digest{})
	}
	for k := range kinds {
		l.version[k], l.shown[k] = 1, emptyDigest
	}
	return l
}

// openLocked makes sure that there is a stream, or an attempt at one. After
// hangUp it returns an attempt that has ended.
func (l *leg) openLocked() *attempt {
	if l.closed {
		a := &attempt{started: make(chan struct{}), ended: true, err: l.lost(l.gone, jsonrpc.NotSent)}
		close(a.started)
		return a
	}
	if l.attempt == nil || l.attempt.ended {
		a := &attempt{started: make(chan struct{}), done: make(chan struct{})}
		l.attempt = a
		l.s.wg.Go(func() { l.run(a) })
	}
	return l.attempt
}

// start opens the stream if need be and waits until the upstream has answered
// initialize. The error is the one to give to whoever needs the upstream.
func (l *leg) start(ctx context.Context) *jsonrpc.Error {
	l.s.mu.Lock()
	a := l.openLocked()
	l.s.mu.Unlock()
	return l.await(ctx, a)
}

// await is start for an attempt that was begun before.
func (l *leg) await(ctx context.Context, a *attempt) *jsonrpc.Error {
	select {
	case <-a.started:
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		return a.err
	case <-ctx.Done():
		return l.slow()
	}
}

// lost is the connection-closed error of a request on this leg, or says that there
// was no room for a stream.
func (l *leg) lost(end *jsonrpc.ClosedError, at jsonrpc.Phase) *jsonrpc.Error {
	if end.Cause == jsonrpc.CauseOverloaded {
		return jsonrpc.Overloaded(l.up.Name)
	}
	return end.Wire(jsonrpc.CodeInternalError, l.up.Name, at)
}

// run owns the stream of one attempt and its Recv. An upstream that has turned
// out to speak the other era is tried once more, of which nobody hears.
func (l *leg) run(a *attempt) {
	err := l.stream(a)
	if l.again(a, err) {
		err = l.stream(a)
	}
	l.end(a, err)
}

// stream opens a stream for a and returns how it ended.
func (l *leg) stream(a *attempt) error {
	conn, err := l.s.p.Dialer.Dial(l.ctx, l.up.Name, l.s.key, l.era)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := l.adopt(a, conn); err != nil {
		return err
	}
	return l.receiveAll(a, conn)
}

// again reports whether the stream of a ended because its upstream speaks the
// other era, and if so makes a ready for another one: nothing but initialize was
// sent.
func (l *leg) again(a *attempt, end error) bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if a.ready || l.closed || jsonrpc.EndOf(end, "").Cause != jsonrpc.CauseOtherEra {
		return false
	}
	maps.DeleteFunc(l.pending, func(_ int64, r *request) bool { return r.sent })
	for _, q := range l.s.questions.takeLegLocked(l) {
		l.s.wg.Go(func() { l.s.withdraw(q) })
	}
	clear(l.asked)
	l.held, l.heldBytes = nil, 0
	a.conn = nil
	return true
}

// adopt makes conn the stream of a. One of the legacy era begins with initialize,
// which is the first message and waits for no queue; one of the modern era is
// ready.
func (l *leg) adopt(a *attempt, conn jsonrpc.Conn) error {
	l.s.mu.Lock()
	if l.closed {
		l.s.mu.Unlock()
		return jsonrpc.ErrClosed
	}
	a.conn = conn
	if l.era == mcp.Modern {
		l.deaf, l.missed = false, false
		l.readyLocked(a, nil)
		l.wakeSharesLocked(0)
		l.s.mu.Unlock()
		return nil
	}
	r := l.mintLocked()
	r.sent = true
	r.done = func(answer *jsonrpc.Message) { l.initialized(a, answer) }
	params := ownToken(l.s.hello.params, r.id)
	l.s.mu.Unlock()
	_ = conn.Send(jsonrpc.NewRequest(r.id, "initialize", params)) // if it fails, Recv says why
	return nil
}

func (l *leg) receiveAll(a *attempt, conn jsonrpc.Conn) error {
	var batch []*jsonrpc.Message
	for {
		var end error
		batch, end = jsonrpc.RecvAll(conn, batch[:0])
		for _, m := range batch {
			l.receive(a, m)
		}
		clear(batch)
		bad, ok := errors.AsType[*jsonrpc.InvalidError](end)
		if end != nil && !ok {
			return end
		}
		if ok {
			l.log.Debug("unusable message from upstream", "err", bad)
			if bad.Reply { // settle what would wait for ever
				l.answered(a, jsonrpc.NewError(bad.ID, jsonrpc.InvalidResponse(l.up.Name, "")))
			}
		}
	}
}

// readyLocked lets the queue flow once the upstream has answered initialize;
// first are the messages that it has to know before any request.
func (l *leg) readyLocked(a *attempt, first []*jsonrpc.Message) {
	for i, m := range first {
		l.queue = slices.Insert(l.queue, i, queued{m: m})
	}
	a.ready = true
	close(a.started)
	l.s.wg.Go(func() { l.writeLoop(a) })
}

// mintLocked enters a new request into the table.
func (l *leg) mintLocked() *request {
	l.minted++
	r := &request{leg: l, n: l.minted, id: jsonrpc.IntID(l.minted)}
	l.pending[r.n] = r
	return r
}

// ask sends a request of the session's own and waits for the answer, which may
// be a connection-closed error. It starts the upstream if need be. When ctx ends
// first the request is cancelled at the upstream and the error is ctx's.
func (l *leg) ask(ctx context.Context, method string, params json.RawMessage) (*jsonrpc.Message, error) {
	return l.askFor(ctx, nil, method, params)
}

// askFor is ask for a share, to which notifications about the request go.
func (l *leg) askFor(ctx context.Context, sh *share, method string, params json.RawMessage) (*jsonrpc.Message, error) {
	answers := make(chan *jsonrpc.Message, 1)
	l.s.mu.Lock()
	r := l.mintLocked()
	r.share = sh
	r.done = func(answer *jsonrpc.Message) { answers <- answer }
	l.sendLocked(r, jsonrpc.NewRequest(r.id, method, ownToken(params, r.id)))
	l.s.mu.Unlock()
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
	}
	l.s.mu.Lock()
	_, open := l.pending[r.n]
	r.removeLocked()
	l.s.mu.Unlock()
	if open && r.sent {
		l.tell(cancellation(r.id, "no longer needed"))
	}
	return nil, context.Cause(ctx)
}

// sendLocked queues the message of a request, which is refused at once if there
// is no room or the leg is hung up.
func (l *leg) sendLocked(r *request, m *jsonrpc.Message) {
	a := l.openLocked()
	switch {
	case a.ended:
		l.refuseLocked(r, a.err)
	case !l.queueLocked(m, r):
		l.refuseLocked(r, jsonrpc.Overloaded(l.up.Name))
	}
}

// refuseLocked settles a request that cannot be sent, in a goroutine of its own
// because the caller holds the lock.
func (l *leg) refuseLocked(r *request, err *jsonrpc.Error) {
	r.removeLocked()
	l.s.wg.Go(func() { r.settle(jsonrpc.NewError(r.id, err)) })
}

// end settles all that the stream of a had in flight, once for each.
func (l *leg) end(a *attempt, err error) {
	end, pending, questions := l.takeAll(a, jsonrpc.EndOf(err, "link lost"))
	l.log.Debug("stream ended", "cause", end.Cause, "event", end.Event, "err", err, "in_flight", len(pending))
	for _, r := range pending {
		at := jsonrpc.NotSent
		if r.sent && end.Delivered {
			at = jsonrpc.InFlight
		}
		r.settle(jsonrpc.NewError(r.id, l.lost(end, at)))
	}
	for _, q := range questions {
		l.s.withdraw(q)
	}
}

// toldAs returns what clients hear of the end of a, which its stream says is end. The
// event is this side's if it chose the end before the host did.
func (a *attempt) toldAs(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	if end.Cause == jsonrpc.CauseOtherEra { // whatever it speaks, nobody can use it
		end.Cause = "start failed"
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
func (l *leg) takeAll(a *attempt, end *jsonrpc.ClosedError) (*jsonrpc.ClosedError, map[int64]*request, []*question) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	end = a.toldAs(end)
	a.ended = true
	close(a.done)
	if !a.ready {
		a.err = l.lost(end, jsonrpc.NotSent)
		close(a.started)
	}
	pending := l.pending
	l.pending = make(map[int64]*request)
	l.queue, l.bytes, l.held, l.heldBytes = nil, 0, nil, 0
	for k := range kinds {
		l.version[k]++ // the next process may offer something else
	}
	questions := l.s.questions.takeLegLocked(l)
	if l.s.phase >= closing {
		questions = nil // the client is not asked to bother any more
	}
	clear(l.asked)
	l.wake.Broadcast()
	return end, pending, questions
}

// hangUpLocked closes the stream for good, after what the client has still said:
// its last notification may be meant seriously. An upstream that does not read
// has lastWords for that. The host then cancels what this session had in flight.
// If the session goes on, the cause is what its requests there are told when the
// stream has ended.
func (l *leg) hangUpLocked(cause string) {
	l.closed, l.gone = true, &jsonrpc.ClosedError{Cause: cause}
	if cause != "" {
		l.gone.Event = jsonrpc.NewEvent()
	}
	l.cancel()
	l.queue = slices.DeleteFunc(l.queue, func(q queued) bool { return q.r != nil })
	a := l.attempt
	if a == nil || a.ended {
		return
	}
	if a.own == nil && cause != "" {
		a.own = l.gone
	}
	if a.conn == nil {
		return // who dials gives up
	}
	l.wake.Broadcast()
	if a.ready {
		time.AfterFunc(lastWords, func() { a.conn.Close() })
		return
	}
	l.s.wg.Go(func() { a.conn.Close() })
}

// lastWords bounds the last writes to an upstream.
const lastWords = 250 * time.Millisecond

// firstIs returns the level of what is worth a warning only once for each start
// of the upstream. said tells whether it was given; it is a field of l.
func (l *leg) firstIs(said *bool) slog.Level {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if *said {
		return slog.LevelDebug
	}
	*said = true
	return slog.LevelWarn
}
