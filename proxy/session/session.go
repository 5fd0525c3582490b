package session

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
)

// flushTimeout bounds the last writes to a client that is being closed, so that a client
// that does not read cannot delay the end.
const flushTimeout = time.Second

// errDrained is the cause of a session that ended by a drain.
var errDrained = errors.New("drained")

// A session is one client and its upstream connections.
type session struct {
	// Static after construction.
	router *Router
	log    *slog.Logger
	key    string // identifies this client to the hosts
	conn   jsonrpc.Conn
	client *peer.Peer // on conn; its Calls are server requests
	ended  chan struct{}
	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	began time.Time
	clientIdentity

	// Each has its own lock.
	upstreams     upstreamSets
	handshake     handshake
	lists         lists.Session        // what upstreams list, and pending notifications about that
	subscriptions listen.Subscriptions // in the modern era
	roots         rootsChanges         // pending notifications about the client's roots

	// Which upstream has which tasks and resources. Each has its own lock.
	tasks        owners.Tasks[*upstreamConn]   // that upstreams run
	clientTasks  owners.Tasks[*upstreamConn]   // that the client runs, for upstreams
	readers      owners.Readers[*upstreamConn] // of resources, in the modern era
	resourceSubs listen.Resources              // in the legacy era

	dropped  atomic.Int64 // late and unknown messages
	kept     atomic.Int64 // bytes of requests that the session keeps; see maxKept
	overRate atomic.Int64 // notifications that exceeded the rate of their sender

	// mu guards phase, and makes one step of its changes and those of the upstream sets. It is not
	// held while waiting for a Peer.
	mu    sync.Mutex
	phase phase // never decreases
}

// A clientIdentity says who sends the messages of a session.
type clientIdentity struct {
	who         *identity.Identity                // the default sender; static
	name        string                            // of who, for logs; static
	account     string                            // of who, for metrics; static
	transport   string                            // of the Conn, if it says so; static
	ofPrincipal bool                              // it serves all clients of a principal, which are modern; static
	lastSender  atomic.Pointer[identity.Identity] // of the last request; nil before
	hello       atomic.Pointer[clientName]        // the client's name in initialize; nil before
	last        atomic.Pointer[clientName]        // the client's name in a modern request, if hooks are set; nil before
}

// A phase is the progress of a session.
type phase int

const (
	open       phase = iota
	draining         // refuses new requests; ends when none is open
	halfClosed       // draining, and the client can no longer answer server requests
	closing          // everything has been settled
)

const (
	clientMessages = 256     // messages queued for a client before upstreams wait
	clientBytes    = 4 << 20 // likewise
	clientSpare    = 8       // times as much room for the session's own messages

	// maxKept bounds the bytes of requests that a session keeps: subscriptions to resources,
	// subscriptions, and requests for which several upstreams may be asked.
	maxKept       = 1 << 20
	maxKeptMeta   = 4 << 10  // of _meta of requests that are repeated at restarted upstreams
	maxInitialize = 64 << 10 // of the params of initialize, which are sent to each upstream
	maxToken      = 1 << 10  // of a progress token, which is kept until the answer
)

// newSession returns a session without upstreams. inFlight bounds its open requests.
func newSession(p *Router, who *identity.Identity, c jsonrpc.Conn, key string, inFlight int) *session {
	s := &session{router: p, key: key, clientIdentity: clientIdentity{who: who, name: who.String(), account: who.Account()}, conn: c, began: time.Now(), ended: make(chan struct{})}
	if c, ok := c.(interface{ Transport() string }); ok {
		s.transport = c.Transport()
	}
	s.subscriptions.Most, s.subscriptions.EarlyBytes, s.subscriptions.StartWithin = max(inFlight/4, 1), p.queueBytes(), p.maxStart()
	s.log = p.logger().With("session", s.key[:8]) // hosts shorten it in the same way
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.client = peer.New(peer.Options{
		Requests: inFlight, Room: jsonrpc.Room{Messages: clientMessages, Bytes: clientBytes, Told: waits(c)}, OneWay: -1,
		Ready: s.ready, Array: s.batch, Begin: s.begin, Request: s.request, Refuse: s.refuse, Cancelled: s.cancelled,
		Notified: func(m *jsonrpc.Message, _ *peer.Call) { s.notified(m) },
		Progress: s.clientProgress, Invalid: s.invalid, HalfClosed: s.halfClose,
		Dropped: func(_ string, m *jsonrpc.Message) { s.drop("answer to an unknown server request", m) },
	})
	s.lists.Begin(lists.Options{
		Memory: &p.memory, Catalog: &p.Catalog, CatalogAge: p.CatalogAge, ListTimeout: p.listTimeout(), MaxBytes: p.queueBytes(),
		Context: s.ctx, Goroutines: &s.wg, Grant: s.grant, Tell: s.tell,
	})
	s.upstreams.s = s
	s.resourceSubs.Kept = &s.kept
	s.upstreams.hold(&configured{complete: true, settled: true})
	return s
}

// waits returns the function of c that counts the bytes waiting for the client; nil for none.
func waits(c jsonrpc.Conn) func(bytes int) {
	if counts, ok := c.(interface{ Waits(bytes int) }); ok {
		return counts.Waits
	}
	return nil
}

// reserve counts bytes of requests that the session keeps, and returns false if there are too many.
func (s *session) reserve(bytes int) bool {
	if s.kept.Add(int64(bytes)) <= maxKept {
		return true
	}
	s.kept.Add(-int64(bytes))
	return false
}

// LogClientLeft is the log message for the end of a session.
const LogClientLeft = "client disconnected"

// serve runs the session until it ends.
func (s *session) serve(ctx context.Context) error {
	s.log.Debug("client connected")
	s.observeBegan()
	defer close(s.ended)
	stop := context.AfterFunc(ctx, func() { s.cancel(jsonrpc.Closed(context.Cause(ctx))) })
	defer stop()

	running, force := context.WithCancel(context.Background())
	over := make(chan struct{})
	context.AfterFunc(s.ctx, func() { defer close(over); s.end(force) })
	err := s.client.Run(running, s.tapped(s.conn))
	if !errors.Is(err, errDrained) {
		err = &goneError{err}
	}
	s.cancel(err) // unless it has ended already
	<-over
	s.client.End(err)
	s.wg.Wait()
	force()

	err = jsonrpc.Closed(context.Cause(s.ctx))
	s.observeEnded(err)
	log := s.log
	if s.who.Kind == identity.Anonymous && s.router.AnonymousLog != nil {
		log = s.router.AnonymousLog.With("session", s.id())
	}
	log.Info(LogClientLeft, "cause", jsonrpc.CauseOf(err), "dur", time.Since(s.began))
	return err
}

// end settles everything, and closes the client after its answers are written. The hosts notify the
// upstreams when the streams close. force ends whatever takes too long.
func (s *session) end(force func()) {
	cause := context.Cause(s.ctx)
	if isGone(cause) { // nobody reads: unblock writers that wait for room
		s.client.End(cause)
	}
	time.AfterFunc(flushTimeout, force)
	s.mu.Lock()
	s.phase = closing
	s.mu.Unlock()
	s.client.Drain(errDrained, flushTimeout) // first, so that later requests are refused
	calls := s.client.TakeRequests(nil)
	s.roots.flush(s)
	s.hangUp()
	for _, pr := range calls {
		r := pr.Value.(*request)
		s.abandon(r, r.takeUse())
		s.deliver(r, s.lastAnswer(r), r.Answer)
	}
}

// lastAnswer returns the answer to a request that the end of the session takes. A subscription gets
// its result, as after a drain.
func (s *session) lastAnswer(r *request) *jsonrpc.Message {
	if r.told.Load() { // the client may have read the acknowledgment
		return r.over(s.upstreams.of(mcp.Modern))
	}
	return jsonrpc.NewError(r.ID, r.endingError(r.phase()))
}

// hangUp hangs up all upstreams. Those of earlier upstream sets already are.
func (s *session) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.upstreams.conns() {
		u.hangUp(jsonrpc.Cause{})
	}
}

// endingError returns the connection-closed error for a client whose own connection ends. The
// modern era reserves its usual code.
func (r *request) endingError(at jsonrpc.Phase) *jsonrpc.Error {
	code := jsonrpc.CodeConnectionClosed
	if r.era == mcp.Modern {
		code = jsonrpc.CodeInternalError
	}
	return jsonrpc.ConnectionClosed(code, "", jsonrpc.Cause{}, at)
}

// A goneError is the end of the client's connection by the client.
type goneError struct{ err error }

func (e *goneError) Error() string { return e.err.Error() }
func (e *goneError) Unwrap() error { return e.err }

func isGone(err error) bool {
	_, ok := errors.AsType[*goneError](err)
	return ok
}

// patience is how long a client may send requests without reading answers.
const patience = time.Second

// ready waits for spare room before a message of the client is handled, because a client may
// briefly ask faster than it reads. A client that does not read at all is ended.
func (s *session) ready() {
	if s.client.Roomy(clientSpare) {
		return
	}
	timer := time.AfterFunc(patience, func() { s.cancel(jsonrpc.Closed(errors.New("the client does not read"))) })
	defer timer.Stop()
	s.client.Wait(clientSpare)
}

// tell sends the client a message of an upstream when there is room, which slows the upstream's
// stream.
func (s *session) tell(m *jsonrpc.Message) {
	s.client.SendWhenRoom(m)
}

// invalid answers an unusable message. The answer has its id unless that could be the id of an open
// request.
func (s *session) invalid(bad *jsonrpc.InvalidError) {
	id := bad.ID
	if bad.Reply || bad.Code == jsonrpc.CodeParseError || s.client.Request(id) != nil {
		id = jsonrpc.ID{}
	}
	s.log.Debug("unusable message from client", "err", bad)
	s.client.Send(jsonrpc.NewError(id, bad.Wire()))
}

// halfClose begins the drain after the client's last message. Server requests fail at once, because
// no answer can come.
func (s *session) halfClose() {
	s.mu.Lock()
	if s.phase < halfClosed {
		s.phase = halfClosed
	}
	s.subscriptions.End()
	s.mu.Unlock()
	for _, c := range s.client.TakeCalls(nil) {
		c.Value.(*serverRequest).resumeTimers()
		c.For.Refuse(errClientGone)
	}
	s.client.Drain(errDrained, math.MaxInt64)
	s.wg.Go(s.drainTimeout)
}

// drainTimeout ends a half-closed session whose requests take too long.
func (s *session) drainTimeout() {
	timer := time.NewTimer(s.router.drain())
	defer timer.Stop()
	select {
	case <-timer.C:
		s.cancel(errDrained)
	case <-s.ctx.Done():
	}
}

// startDrain refuses new requests and ends the session when all open ones are settled.
// Subscriptions are settled at once.
func (s *session) startDrain() {
	s.mu.Lock()
	if s.phase == open {
		s.phase = draining
		s.subscriptions.End()
	}
	s.mu.Unlock()
	s.client.Drain(errDrained, math.MaxInt64)
}

// drop counts a message without a receiver.
func (s *session) drop(what string, m *jsonrpc.Message) {
	n := s.dropped.Add(1)
	s.log.Debug("message dropped", "reason", what, "method", m.Method, "id", m.ID.String(), "dropped", n)
}
