package remote

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A serverSession is a jsonrpc.Conn to a server of the legacy era over HTTP. If the server
// forgets the session, a new one replaces it. The package's doc lists the goroutines.
type serverSession struct {
	*life
	t   *transport
	log *slog.Logger

	first     sync.Once // starts what the first message needs
	handshake *handshake
	outbox    *outbox
	calls     httpCalls
	asked     serverRequests
	history   history
	endpoints endpoints
	early     atomic.Pointer[eventListener] // of the first session, if it began before initialized
}

func newServerSession(ctx context.Context, t *transport) *serverSession {
	s := &serverSession{
		life: newLife(ctx), t: t, log: t.failures.log,
		handshake: newHandshake(t.sse), calls: httpCalls{open: jsonrpc.Table[jsonrpc.ID, *httpCall]{Max: maxOpen}},
	}
	s.outbox = newOutbox(s.ctx, s.log, s.ended, s.post)
	s.endpoints.at = s.newEndpoint(t.url)
	t.join()
	return s
}

func (s *serverSession) newEndpoint(url string) *endpoint {
	at := &endpoint{url: url}
	at.ctx, at.cancel = context.WithCancel(s.work)
	return at
}

// failed ends the session because something that it needs has failed, unless the session
// is already ending.
func (s *serverSession) failed(f *failure) {
	if s.work.Err() == nil {
		s.fail(f.end())
	}
}

// Sessionless reports whether the server answered initialize without beginning a session:
// then it can send only answers. It is valid once initialize was answered.
func (s *serverSession) Sessionless() bool {
	at := s.endpoints.current()
	return at.id == "" && !at.sse
}

// Send implements jsonrpc.Conn. It may wait for room, but never for a response.
func (s *serverSession) Send(m *jsonrpc.Message) error {
	for e := range m.Each { // versions since 2025-06-18 have no arrays
		if err := s.send(e); err != nil {
			return err
		}
	}
	return nil
}

// SendNow implements [jsonrpc.Prompt] for requests, which are posted by goroutines of their own.
func (s *serverSession) SendNow(m jsonrpc.Queued) bool {
	if !m.IsRequest() || s.over() != nil {
		return false
	}
	if m.Leave() {
		_ = s.send(m.Message)
	}
	return true
}

func (s *serverSession) send(m *jsonrpc.Message) error {
	if err := s.over(); err != nil {
		return err
	}
	s.first.Do(s.begin)
	t := outgoing{m: m, gate: s.handshake.gateOf(m)}
	switch {
	case m.IsRequest():
		s.request(m, t.gate)
		return nil
	case m.Method == mcp.MethodCancelled:
		id, _ := mcp.Read(m).ID(mcp.Key)
		if call := s.calls.cancel(id); call != nil {
			s.outbox.cancel(m, t.gate, call)
		}
		return nil
	case m.Method == mcp.MethodInitialized:
		t.then = s.initialized
	}
	if !s.outbox.put(t) {
		return s.over()
	}
	return nil
}

// begin starts the goroutines that run as long as the session.
func (s *serverSession) begin() {
	if !s.spawn(s.outbox.run) {
		close(s.outbox.done)
		return
	}
	if s.t.sse {
		s.spawn(func() {
			if f := s.attach(s.work); f != nil {
				s.failed(f)
				return
			}
			s.handshake.open()
		})
	}
}

// post posts a notification or a response.
func (s *serverSession) post(ctx context.Context, m *jsonrpc.Message) *failure {
	at := s.endpoints.current()
	if m.IsResponse() && !s.asked.answer(m.ID, at) {
		s.log.Debug("response dropped: the server has forgotten the session of its request", "id", m.ID.String())
		return nil
	}
	if m.Method == mcp.MethodInitialized {
		s.early.Load().wait(s.ended)
	}
	return s.t.deliver(carrying(ctx, m), at, m, nil, newReach(nil))
}

// request begins a call.
func (s *serverSession) request(m *jsonrpc.Message, gate <-chan struct{}) {
	c := &httpCall{m: m, gate: gate, reach: newReach(&s.delivered), taken: make(chan struct{}), accepted: make(chan struct{})}
	if m.Method == mcp.MethodInitialize { // which has no effects
		c.reach.delivered = nil
	}
	c.ctx, c.cancel = context.WithCancelCause(carrying(s.work, m))
	if err := s.calls.add(c); err != nil {
		c.cancel(nil)
		s.refuse(s.t.name, m.ID, err)
		return
	}
	if m.Method == mcp.MethodInitialize {
		s.history.begin(m.Params)
	}
	if !s.spawnRequest(func() { s.run(c) }) {
		s.drop(c)
	}
}

// run brings a call to its end.
func (s *serverSession) run(c *httpCall) {
	defer s.drop(c)
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-c.ctx.Done():
			return
		}
	}
	release, ok := s.t.acquire(c.ctx, c.m.Method)
	if !ok {
		return
	}
	defer release()
	if !s.calls.start(c) {
		return
	}
	switch {
	case c.m.Method == mcp.MethodInitialize:
		s.initialize(c)
	case s.endpoints.current().sse:
		s.runSSE(c)
	default:
		s.runStreamable(c, release)
	}
}

// drop releases what a call holds.
func (s *serverSession) drop(c *httpCall) {
	s.calls.take(c)
	c.cancel(nil)
	c.reach.done()
}

// reply answers a call with the server's reply.
func (s *serverSession) reply(c *httpCall, m *jsonrpc.Message) {
	if !s.calls.take(c) {
		return
	}
	if m.Result != nil {
		s.history.keep(c.m)
	}
	s.put(m)
}

// failCall answers a call with an error, unless the call was cancelled or the session ends.
func (s *serverSession) failCall(c *httpCall, f *failure) {
	if errors.Is(context.Cause(c.ctx), errCancelled) || s.work.Err() != nil || !s.calls.take(c) {
		return
	}
	if f.denied() {
		s.t.failures.denied(f)
	} else {
		s.t.failures.count(f)
	}
	m := f.answer(s.t.name, c.m.ID)
	m.Related = c.m.ID
	s.put(m)
}

// initialize posts the first call, and ends the session if there is no answer. A server
// that does not know initialize may be one of 2024-11-05: a GET finds out.
func (s *serverSession) initialize(c *httpCall) {
	if s.t.sse {
		s.runSSE(c)
		return
	}
	at := s.newEndpoint(s.t.url)
	x := &exchange{t: s.t, at: at, id: c.m.ID, related: c.m.ID, reach: newReach(nil), pass: s.passer(at)}
	reply, f := greet(c.ctx, x, c.m)
	if f == nil && x.vague {
		reply, f = nil, s.t.refusedBy(x.resp)
	}
	if f != nil && mayBeSSE(f.status) {
		x.close()
		if s.attach(c.ctx) == nil {
			s.t.old.Store(true)
			s.handshake.open()
			s.runSSE(c)
			return
		}
	}
	defer x.linger(c.cancel)
	s.endpoints.move(at) // in any case: the server may have begun a session, of which Close takes leave
	if f != nil {
		s.failed(f)
		return
	}
	greeted := make(chan struct{})
	if reply.Result != nil {
		s.early.Store(s.hear(at, greeted))
	}
	s.handshake.open()
	s.reply(c, reply)
	close(greeted)
}

// runStreamable posts a call and answers it. If the server has forgotten the session, it
// did not run the call, which is then posted once more in a new session.
func (s *serverSession) runStreamable(c *httpCall, release func()) {
	at := s.endpoints.current()
	x, reply, f := s.exchange(c, at)
	if f != nil && f.lost {
		x.close()
		if at, f = s.renew(c.ctx, at); f == nil && s.calls.wanted(c) {
			x, reply, f = s.exchange(c, at)
		}
	}
	defer x.linger(c.cancel)
	if f != nil && f.said != nil {
		reply, f = f.said, nil
	}
	switch {
	case f != nil:
		s.failCall(c, f)
	case reply != nil:
		s.reply(c, reply)
	}
	release() // lingering needs none
}

// exchange posts a call and reads until its reply.
func (s *serverSession) exchange(c *httpCall, at *endpoint) (*exchange, *jsonrpc.Message, *failure) {
	s.calls.posted(c, at)
	x := &exchange{t: s.t, at: at, id: c.m.ID, related: c.m.ID, reach: c.reach, pass: s.passer(at)}
	x.began = func(http.Header) *failure {
		s.calls.answered(c)
		return nil
	}
	reply, f := x.run(c.ctx, c.m)
	return x, reply, f
}

// passer returns the function that brings an endpoint's messages other than replies to Recv.
func (s *serverSession) passer(at *endpoint) func(*jsonrpc.Message) bool {
	return func(m *jsonrpc.Message) bool {
		s.asked.note(m, at)
		return s.put(m)
	}
}

// outside returns the function that takes messages outside a call's own response, as all
// messages are on HTTP+SSE. It returns false when the session has ended.
func (s *serverSession) outside(at *endpoint) func(text string, tooLong error) bool {
	pass := s.passer(at)
	return func(text string, tooLong error) bool {
		if tooLong != nil {
			bad := &jsonrpc.InvalidError{Code: jsonrpc.CodeInvalidRequest, Reason: s.t.limits.Oversize()}
			return pass(&jsonrpc.Message{Unusable: bad})
		}
		for e := range s.t.decode([]byte(text)).Each {
			passed := true
			bad, id := e.Unusable, e.ID
			if bad != nil {
				id = bad.ID
			}
			switch c := s.calls.find(id); {
			case bad != nil && bad.Reply && c != nil:
				s.failCall(c, invalid(bad.Reason))
			case !e.IsResponse():
				passed = pass(e)
			case c != nil:
				s.reply(c, e)
			default:
				s.log.Debug("late response dropped", "id", e.ID.String())
			}
			if !passed {
				return false
			}
		}
		return true
	}
}

// Close implements jsonrpc.Conn. Recv and Send return at once. Notifications, responses
// and tasks/cancel that were sent before still go out, for at most half of the grace. The
// DELETE follows when the server has answered all calls, or answerTime later: servers of
// the Python SDK accept a message before they handle it, so that a DELETE could overtake
// it. The stream of the GET is closed while they are awaited, and those of the calls behind
// that. Close returns when nothing is left of the session, after the grace at the latest.
func (s *serverSession) Close() error {
	s.closing.Do(s.close)
	return nil
}

func (s *serverSession) close() {
	s.leave()
	force := time.AfterFunc(s.t.stopGrace, s.cancel)
	half := time.AfterFunc(s.t.stopGrace/2, s.outbox.stop)
	defer force.Stop()
	defer half.Stop()

	unfinished := s.calls.leave()
	s.first.Do(s.begin)
	s.outbox.leave()
	<-s.outbox.done
	s.endpoints.current().cancel() // the GET: the server gets time to notice that its stream has ended
	hungUp := time.Now()
	awaitAnswers(unfinished, s.outbox.hurry.Done())
	s.giveUp()
	s.wg.Wait()
	s.takeLeave(s.endpoints.current(), hungUp)
	s.left()
	s.t.leave()
}
