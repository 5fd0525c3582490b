package remote

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxNotes bounds the notifications on their way to a server of the modern era.
// Then Send waits, for talkTimeout at most.
const maxNotes = 16

// DialModern begins a stream of the modern era (2026-07-28): what is sent on it are
// requests whose _meta says all about them, and cancellations. On http and https it
// does no I/O, and each request is a POST of its own: the stream ends with Close or
// ctx only, whatever becomes of a request. On ws and wss it connects, and carries
// the stream as it is. Cancelling ctx ends it at once; Close must be called in
// either case.
func (s *Server) DialModern(ctx context.Context) (jsonrpc.Conn, error) {
	socket, err := s.isSocket()
	if err != nil {
		return nil, err
	}
	if socket {
		return s.dialModernWebSocket(ctx)
	}
	s.once.Do(s.prepare)
	return newModern(ctx, s), nil
}

// A modern is a jsonrpc.Conn to a Server of the modern era. There is nothing that
// its requests have in common.
//
// Goroutines, which Close waits for: one run for each call, one for each
// notification on its way, and for a moment one for each answer that Send makes
// itself.
type modern struct {
	// Static after construction.
	*inbox
	server *Server
	log    *slog.Logger
	peer   *peer
	ctx    context.Context // done: all is given up
	cancel context.CancelFunc
	work   context.Context // child of ctx, of calls. Done: they are given up
	giveUp context.CancelFunc
	unhook func() bool   // from the ctx of DialModern
	notes  chan struct{} // an element for each notification on its way

	closeOnce sync.Once

	// delivered: a request may have reached the server.
	delivered atomic.Bool

	wg sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	leaving bool       // no goroutine may be started any more
	calls   map[jsonrpc.ID]*modernCall
}

// A modernCall is a request that has no answer yet. Whoever takes it out of
// modern.calls answers it: its own goroutine, or nobody if it was cancelled.
type modernCall struct {
	m      *jsonrpc.Message
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newModern(ctx context.Context, server *Server) *modern {
	s := &modern{
		inbox: newInbox(), server: server, log: server.tally.log, notes: make(chan struct{}, maxNotes),
		peer: &peer{url: server.URL, modern: true}, calls: make(map[jsonrpc.ID]*modernCall),
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.work, s.giveUp = context.WithCancel(s.ctx)
	s.unhook = context.AfterFunc(ctx, func() {
		s.end(&jsonrpc.ClosedError{Cause: causeStopped, Delivered: s.delivered.Load(), Err: context.Cause(ctx)})
	})
	server.tally.join()
	return s
}

// Send implements jsonrpc.Conn. It waits for room at most, never for a response.
func (s *modern) Send(m *jsonrpc.Message) error {
	select {
	case <-s.ended:
		return jsonrpc.Closed(s.err)
	default:
	}
	switch {
	case m.Batch != nil, m.IsResponse(): // the era has no such messages
		s.log.Debug("message dropped that the modern era does not have", "id", m.ID.String())
		return nil
	case m.IsRequest():
		s.request(m)
		return nil
	case m.Method == mcp.MethodCancelled:
		s.cancelled(m)
		return nil
	}
	return s.notify(m)
}

// request begins a call.
func (s *modern) request(m *jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return
	}
	if refusal := s.server.refusal(m.ID, s.calls[m.ID] != nil, len(s.calls)); refusal != nil {
		s.wg.Go(func() { s.put(received{m: refusal}) }) // for which Send must not wait
		return
	}
	parent := s.work
	if m.Method == mcp.MethodTasksCancel { // which Close does not give up at once
		parent = s.ctx
	}
	c := &modernCall{m: m}
	c.ctx, c.cancel = context.WithCancelCause(parent)
	s.calls[m.ID] = c
	s.wg.Go(func() { s.run(c) })
}

// cancelled gives up the call that m cancels: closing its response is how the
// server hears of that (2026-07-28 basic/patterns/cancellation).
func (s *modern) cancelled(m *jsonrpc.Message) {
	id, _ := jsonrpc.ParseID(member(m.Params, "requestId"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[id]; c != nil {
		delete(s.calls, id)
		c.cancel(errCancelled)
	}
}

// notify posts a notification, which the core protocol has none of. Nobody hears
// what becomes of it.
func (s *modern) notify(m *jsonrpc.Message) error {
	select {
	case s.notes <- struct{}{}:
	case <-s.ended:
		return jsonrpc.Closed(s.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		<-s.notes
		return jsonrpc.ErrClosed
	}
	s.wg.Go(func() {
		defer func() { <-s.notes }()
		ctx, cancel := context.WithTimeout(s.ctx, talkTimeout)
		defer cancel()
		header, _ := s.server.mirrored(m) // what is wrong with it the server may say
		if f := s.server.deliver(ctx, s.peer, m, header); f != nil {
			s.log.Debug("message was not accepted by the upstream", "method", m.Method, "err", f.cause)
		}
	})
	return nil
}

// run brings a call to its end.
func (s *modern) run(c *modernCall) {
	defer c.cancel(nil)
	release, ok := s.server.acquire(c.ctx, c.m.Method)
	if !ok {
		s.take(c)
		return
	}
	defer release()
	x, reply, f := s.ask(c)
	defer x.linger(c.cancel)
	release()
	if s.take(c) {
		s.answer(c, reply, f)
	}
}

// take takes a call out. With true the caller is the one to answer it.
func (s *modern) take(c *modernCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.m.ID] != c {
		return false
	}
	delete(s.calls, c.m.ID)
	return true
}

// answer brings the end of a call to Recv.
func (s *modern) answer(c *modernCall, reply *jsonrpc.Message, f *failure) {
	if f != nil {
		s.note(c, f)
		reply = f.answer(s.server.Name, c.m.ID)
	}
	s.put(received{m: &jsonrpc.Message{
		ID: c.m.ID, Result: reply.Result, Error: reply.Error, Extra: reply.Extra, Related: c.m.ID,
	}})
}

// note has the log hear of a failure. That a listen breaks off is usual, and
// whoever listens does so again.
func (s *modern) note(c *modernCall, f *failure) {
	switch {
	case s.ctx.Err() != nil || s.work.Err() != nil:
	case f.denied():
		s.server.tally.denied(f)
	case c.m.Method == mcp.MethodListen && f.broke():
		s.server.tally.mention(c.m, f)
	case c.m.Method == mcp.MethodListen && f.phase == jsonrpc.NotSent:
		s.server.tally.lose(f)
	default:
		s.server.tally.count(f)
	}
}

// Close implements jsonrpc.Conn. Recv and Send return at once, and requests are
// given up, which cancels them. What was sent before still goes out, for half of
// the grace: notifications and tasks/cancel. Close returns when nothing is left.
func (s *modern) Close() error {
	s.closeOnce.Do(s.leave)
	return nil
}

func (s *modern) leave() {
	s.unhook()
	s.end(jsonrpc.ErrClosed)
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	s.giveUp()
	force := time.AfterFunc(s.server.stopGrace()/2, s.cancel)
	defer force.Stop()
	s.wg.Wait()
	s.cancel()
	s.server.leave()
}

// pass implements receiver, for a call that is still wanted.
func (s *modern) pass(m *jsonrpc.Message, _ *peer) bool {
	s.mu.Lock()
	c := s.calls[m.Related]
	s.mu.Unlock()
	switch {
	case c == nil:
		return false
	case m.IsRequest(), m.Method == mcp.MethodCancelled:
		s.log.Debug("message dropped that the modern era does not have from servers", "method", m.Method)
		return true
	case c.m.Method == mcp.MethodListen:
		if m = subscribed(m); m == nil {
			s.log.Debug("message of another subscription dropped")
			return true
		}
	}
	return s.offer(received{m: m}, c.ctx.Done())
}

// subscribed returns a message of the listen that it is related to with the id of
// that, which a server may write differently or have forgotten; nil if it names
// another subscription.
func subscribed(m *jsonrpc.Message) *jsonrpc.Message {
	meta, err := jsonrpc.Member(m.Params, "_meta")
	if err != nil {
		return nil
	}
	text, err := jsonrpc.Member(meta, mcp.KeySubscription)
	if err != nil {
		return nil
	}
	id, ok := jsonrpc.ParseID(text)
	switch {
	case ok && id == m.Related:
		return m
	case text != nil && !(ok && same(id, m.Related)):
		return nil
	}
	own := *m
	own.Params = mcp.SetMeta(m.Params, jsonrpc.Value{Key: mcp.KeySubscription, Text: m.Related.Raw()})
	return &own
}
