package session

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// flushTimeout bounds the last writes to a client that is being closed, so that
// one who does not read cannot hold the end up.
const flushTimeout = time.Second

// errDrained is the cause of a session that ended because it was to.
var errDrained = errors.New("drained")

// A session is one client and its upstream connections.
type session struct {
	// Static after construction.
	p      *Router
	log    *slog.Logger
	key    string // names this client to the hosts
	client jsonrpc.Conn
	out    *outbox
	ended  chan struct{}
	ctx    context.Context // ends with the session; for what lives as long as it
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	began     time.Time
	stateless bool   // of a principal: all requests are of the modern era
	principal string // if it is stateless
	inFlight  int    // requests at a time

	// Each has a lock of its own.
	upstreams     upstreamSets
	views         views         // what is known of lists
	news          news          // what the client has seen of them
	tasks         tasks         // that upstreams run
	clientTasks   tasks         // that the client runs, for upstreams
	readers       readers       // of resources, in the modern era
	resourceSubs  resourceSubs  // in the legacy era
	subscriptions subscriptions // in the modern era

	mu             sync.Mutex           // guards the fields below and those of upstream connections
	phase          phase                // only moves forward
	calls          map[jsonrpc.ID]*call // the client's requests in flight
	unsettled      int                  // calls whose answer is not in the outbox yet
	settled        chan struct{}        // closed once, when closing and unsettled is 0
	idle           bool                 // settled is closed
	serverRequests serverRequests       // the upstreams' requests in flight
	hello          hello                // what initialize said
	lost           int                  // late and unknown messages dropped
}

// A phase is how far a session has come.
type phase int

const (
	open       phase = iota
	draining         // no new requests; ends when calls is empty
	halfClosed       // draining, and the client can answer no more server requests
	closing          // everything was settled
)

// newSession returns a session without upstreams.
func newSession(p *Router, c jsonrpc.Conn, key string) *session {
	s := &session{
		p: p, key: key, client: c, began: time.Now(), out: newOutbox(), ended: make(chan struct{}), inFlight: p.inFlight(),
		settled:        make(chan struct{}),
		calls:          make(map[jsonrpc.ID]*call),
		serverRequests: serverRequests{open: make(map[int64]*serverRequest)},
	}
	s.log = p.logger().With("session", s.key[:8]) // as hosts shorten it
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.news.ctx, s.news.wg, s.news.out = s.ctx, &s.wg, s.out
	s.upstreams.s = s
	s.upstreams.hold(&configured{complete: true, settled: true})
	return s
}

// serve runs the session to its end.
func (s *session) serve(ctx context.Context) error {
	s.log.Debug("client connected")
	s.tellBegan()
	defer close(s.ended)
	stop := context.AfterFunc(ctx, func() { s.cancel(jsonrpc.Closed(context.Cause(ctx))) })
	defer stop()

	written, over := make(chan struct{}), make(chan struct{})
	s.wg.Go(func() { defer close(written); s.writeLoop() })
	context.AfterFunc(s.ctx, func() { defer close(over); s.end(written) })
	s.readLoop()
	<-over
	s.wg.Wait()

	err := jsonrpc.Closed(context.Cause(s.ctx))
	s.tellEnded(err)
	s.log.Info("client disconnected", "cause", jsonrpc.CauseOf(err), "dur", time.Since(s.began))
	return err
}

// end settles everything, and closes the client when it has heard of it. The
// hosts tell the upstreams when the streams close.
func (s *session) end(written <-chan struct{}) {
	gone := isGone(context.Cause(s.ctx))
	if gone { // nobody listens: unblock who waits for room
		s.out.close()
		s.client.Close()
	}
	calls := s.takeAll()
	s.hangUp()
	deadline, stop := context.WithTimeout(context.Background(), flushTimeout)
	defer stop()
	defer context.AfterFunc(deadline, s.out.close)() // unblocks who waits for room
	for _, c := range calls {
		c.stop()
		s.deliver(c, s.lastAnswer(c), s.out.wait)
	}
	if !gone {
		waitFor(s.settled, deadline.Done())
		s.out.close()
		waitFor(written, deadline.Done())
		s.client.Close()
	}
}

// lastAnswer is what a call gets that the end of the session takes. A subscription is no
// less over than after a drain.
func (s *session) lastAnswer(c *call) *jsonrpc.Message {
	if c.acked.Load() { // what acknowledges it may be at work
		return c.over(s.upstreams.of(mcp.Modern))
	}
	return jsonrpc.NewError(c.id, c.endingError(c.phase()))
}

// takeAll takes the whole table of calls at once, after which nothing can enter
// it any more.
func (s *session) takeAll() map[jsonrpc.ID]*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = closing
	calls := s.calls
	s.calls = nil
	for _, c := range calls {
		if c.request != nil {
			c.request.removeLocked()
		}
	}
	s.checkIdleLocked()
	return calls
}

// hangUp hangs up all upstreams. Those of an earlier upstream set were when they went.
func (s *session) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.upstreams.conns() {
		u.hangUpLocked("")
	}
}

func waitFor(event, timeout <-chan struct{}) {
	select {
	case <-event:
	case <-timeout:
	}
}

// endingError is the one error when the client's own connection is ending. The
// modern era reserves its code.
func (c *call) endingError(at jsonrpc.Phase) *jsonrpc.Error {
	code := jsonrpc.CodeConnectionClosed
	if c.era == mcp.Modern {
		code = jsonrpc.CodeInternalError
	}
	return jsonrpc.ConnectionClosed(code, "", "", at)
}

// A goneError is the end of the client's connection on its side.
type goneError struct{ err error }

func (e *goneError) Error() string { return e.err.Error() }
func (e *goneError) Unwrap() error { return e.err }

func isGone(err error) bool {
	_, ok := errors.AsType[*goneError](err)
	return ok
}

// readLoop owns Recv of the client. It must not wait for anything else. It returns
// when the session's end has begun.
func (s *session) readLoop() {
	for {
		m, err := s.client.Recv()
		if bad, ok := errors.AsType[*jsonrpc.InvalidError](err); ok {
			s.refuse(bad)
			continue
		}
		if err == io.EOF { // the bare one: the end of a connection may wrap it
			if s.halfClose() {
				continue // the next Recv tells when the client is gone altogether
			}
			<-s.ctx.Done()
			return
		}
		if err != nil {
			s.cancel(&goneError{jsonrpc.Closed(err)})
			return
		}
		s.receive(m)
	}
}

// writeLoop owns Send of the client. That all is written of a session that was
// to end is what ends it.
func (s *session) writeLoop() {
	var batch []*jsonrpc.Message
	for {
		if batch = s.out.take(batch); batch == nil {
			s.cancel(errDrained)
			return
		}
		if err := jsonrpc.SendAll(s.client, batch); err != nil {
			s.out.close()
			s.cancel(&goneError{jsonrpc.Closed(err)})
			return
		}
	}
}

// patience is how long a client may make the session talk and not listen.
const patience = time.Second

// send queues what the session itself has to say. Even spare room may be short
// for a moment, if the client asks faster than writeLoop runs; a client that
// does not listen at all is ended.
func (s *session) send(m *jsonrpc.Message) {
	if s.out.now(m) {
		return
	}
	timer := time.AfterFunc(patience, func() { s.cancel(jsonrpc.Closed(errors.New("the client does not read"))) })
	defer timer.Stop()
	s.out.waitSpare(m)
}

// refuse tells the client about one unusable message. The id is given back only
// when it cannot be mistaken for that of a request in flight. An upstream whose
// server request could not be answered so hears of it.
func (s *session) refuse(bad *jsonrpc.InvalidError) {
	id := bad.ID
	if bad.Reply && !id.IsZero() {
		s.answered(jsonrpc.NewError(id, bad.Wire()))
	}
	s.mu.Lock()
	_, busy := s.calls[id]
	s.mu.Unlock()
	if busy || bad.Reply || bad.Code == jsonrpc.CodeParseError {
		id = jsonrpc.ID{}
	}
	s.log.Debug("unusable message from client", "err", bad)
	s.send(jsonrpc.NewError(id, bad.Wire()))
}

// halfClose begins the drain after the client's last message; false if it had
// begun before. Server requests get their error at once: no answer can come any more.
func (s *session) halfClose() bool {
	s.mu.Lock()
	if s.phase >= halfClosed {
		s.mu.Unlock()
		return false
	}
	s.phase = halfClosed
	s.subscriptions.end()
	refused := s.serverRequests.takeAllLocked()
	for _, sr := range refused {
		markAll(sr.askers)
	}
	s.checkIdleLocked()
	s.mu.Unlock()
	for _, sr := range refused {
		s.refuseServerRequest(sr.conn, sr.id)
	}
	s.wg.Go(s.drainTimeout)
	return true
}

// drainTimeout ends a half-closed session whose requests take too long.
func (s *session) drainTimeout() {
	timer := time.NewTimer(s.p.drain())
	defer timer.Stop()
	select {
	case <-timer.C:
		s.cancel(errDrained)
	case <-s.ctx.Done():
	}
}

// startDrain refuses new requests from now on and ends the session when those in
// flight are settled. Subscriptions are at once.
func (s *session) startDrain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == open {
		s.phase = draining
		s.subscriptions.end()
	}
	s.checkIdleLocked()
}

// checkIdleLocked ends a draining session when its last call is settled.
func (s *session) checkIdleLocked() {
	switch {
	case s.unsettled > 0 || s.phase == open:
	case s.phase < closing:
		s.out.close() // writeLoop ends the session when the last answer is written
	case !s.idle:
		s.idle = true
		close(s.settled)
	}
}

// drop counts a message that nobody waits for.
func (s *session) drop(what string, m *jsonrpc.Message) {
	s.mu.Lock()
	s.lost++
	n := s.lost
	s.mu.Unlock()
	s.log.Debug("message dropped", "reason", what, "method", m.Method, "id", m.ID.String(), "dropped", n)
}
