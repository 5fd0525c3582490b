package remote

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxNotes bounds the notifications that are posted at once. Then Send waits, for
// talkTimeout at most.
const maxNotes = 16

// A modern is a jsonrpc.Conn to a server of the modern era over HTTP. Its calls are
// independent of each other.
//
// Goroutines, which Close waits for: one run for each call, one for each notification
// being posted, one while the server is asked again for its era, and one for each error
// that Send answers with, until Recv takes it.
type modern struct {
	*life
	t     *transport
	log   *slog.Logger
	at    *endpoint
	tools *tools
	notes chan struct{} // an element for each notification being posted

	mu    sync.Mutex // guards calls
	calls jsonrpc.Table[jsonrpc.ID, *modernCall]
}

// A modernCall is an unanswered call. Its own goroutine takes it out of modern.calls and
// answers it. A cancelled call was taken out already, and is not answered.
type modernCall struct {
	m      *jsonrpc.Message
	ctx    context.Context
	cancel context.CancelCauseFunc

	doubtful bool // its answer is not one of the modern era; owned by run
}

func newModern(ctx context.Context, t *transport, known *tools) *modern {
	t.join()
	return &modern{
		life: newLife(ctx), t: t, log: t.failures.log, at: &endpoint{url: t.url, modern: true},
		tools: known, notes: make(chan struct{}, maxNotes),
		calls: jsonrpc.Table[jsonrpc.ID, *modernCall]{Max: maxOpen},
	}
}

// Send implements jsonrpc.Conn. It may wait for room, but never for a response.
func (s *modern) Send(m *jsonrpc.Message) error {
	if err := s.over(); err != nil {
		return err
	}
	switch {
	case m.Batch != nil, m.IsResponse(): // the era has no such messages
		s.log.Debug("message dropped: the modern era does not have it", "id", m.ID.String())
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

// SendNow implements [jsonrpc.Prompt] for requests, which are posted by goroutines of their own.
func (s *modern) SendNow(m jsonrpc.Queued) bool {
	if !m.IsRequest() || s.over() != nil {
		return false
	}
	if m.Leave() {
		s.request(m.Message)
	}
	return true
}

// request begins a call.
func (s *modern) request(m *jsonrpc.Message) {
	parent := s.work
	if m.Method == mcp.MethodTasksCancel { // Close gives it half of the grace
		parent = s.ctx
	}
	own := *m // the caller may still read m
	own.Notes = mcp.Read(m)
	c := &modernCall{m: &own}
	c.ctx, c.cancel = context.WithCancelCause(carrying(parent, m))
	s.mu.Lock()
	err := s.calls.Add(m.ID, c)
	s.mu.Unlock()
	switch {
	case err != nil:
		c.cancel(nil)
		s.refuse(s.t.name, m.ID, err)
	case !s.spawnRequest(func() { s.run(c) }):
		c.cancel(nil)
		s.take(c)
	}
}

// cancelled gives up the call that m cancels. That closes its response, which tells the
// server (2026-07-28 basic/patterns/cancellation).
func (s *modern) cancelled(m *jsonrpc.Message) {
	id, _ := mcp.Read(m).ID(mcp.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.calls.TakeKey(id); ok {
		c.cancel(errCancelled)
	}
}

// notify posts a notification. A failure is only logged: the core protocol has no
// notifications of clients but cancellations.
func (s *modern) notify(m *jsonrpc.Message) error {
	select {
	case s.notes <- struct{}{}:
	case <-s.ended:
		return s.over()
	}
	post := func() {
		defer func() { <-s.notes }()
		ctx, cancel := context.WithTimeout(s.ctx, talkTimeout)
		defer cancel()
		header, _ := requestHeader(m, s.tools.mirrors) // the server may refuse invalid ones
		if f := s.t.deliver(carrying(ctx, m), s.at, m, header, newReach(nil)); f != nil {
			s.log.Debug("message was not accepted by the upstream", "method", m.Method, "err", f.text())
		}
	}
	if !s.spawn(post) {
		<-s.notes
		return jsonrpc.ErrClosed
	}
	return nil
}

// run brings a call to its end.
func (s *modern) run(c *modernCall) {
	defer c.cancel(nil)
	release, ok := s.t.acquire(c.ctx, c.m.Method)
	if !ok {
		s.take(c)
		return
	}
	defer release()
	x, reply, f := s.ask(c)
	defer x.linger(c.cancel)
	release() // lingering needs none
	if s.take(c) {
		s.answer(c, reply, f)
	}
	if c.doubtful { // after the answer, which the end of the stream would overtake
		s.doubt()
	}
}

// take takes a call out. If it returns true, the caller must answer the call.
func (s *modern) take(c *modernCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls.Take(c.m.ID, c)
}

// ask posts a call, once more if that can help, and returns its answer. The caller closes
// the exchange.
func (s *modern) ask(c *modernCall) (*exchange, *jsonrpc.Message, *failure) {
	m := c.m
	round := s.tools.learnFor(c.ctx, m)
	x, reply, f := s.post(c, m)
	if f == nil && x.resp == nil { // post refused it
		return x, reply, nil
	}
	switch {
	case isDoubtful(x.status(), reply):
		c.doubtful = true
	case f == nil && s.t.mute.Load() > 0: // it answers after all
		s.t.mute.Store(0)
	}
	if again := s.again(c, m, round, reply, f); again != nil {
		x.close()
		broke := f != nil // so the first may have run
		if x, reply, f = s.post(c, again); f != nil && broke {
			f.phase = jsonrpc.InFlight
		}
	}
	if f == nil && m.Method == mcp.MethodToolsList && reply.Result != nil {
		list := *reply
		list.Result = s.tools.learn(reply.Result, s.log)
		reply = &list
	}
	return x, reply, f
}

// post posts m for a call and reads until its reply.
func (s *modern) post(c *modernCall, m *jsonrpc.Message) (*exchange, *jsonrpc.Message, *failure) {
	header, bad := requestHeader(m, s.tools.mirrors)
	x := &exchange{
		t: s.t, at: s.at, header: header, id: m.ID, related: c.m.ID, reach: newReach(&s.delivered),
		pass: func(m *jsonrpc.Message) bool { return s.pass(c, m) },
	}
	if bad != nil {
		return x, jsonrpc.NewError(m.ID, bad), nil
	}
	reply, f := x.run(c.ctx, m)
	return x, reply, f
}

// doubt asks the server again for its era, and ends the stream if that has changed: then
// the server was replaced, and the host must know. A refusal without an answer may be of
// something in front of the server that is being restarted, so only the second one counts.
func (s *modern) doubt() {
	if !s.t.doubt() {
		return
	}
	s.spawn(func() {
		modern, err := s.t.probe(s.work)
		_, other := errors.AsType[*mcp.VersionError](err)
		if !modern && (err == nil || other) && s.t.mute.Load() != 1 {
			s.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Delivered: true, Err: mcp.ErrOtherEra})
		}
	})
}

// again returns the message to post after the first answer to m, nil if that answer is
// final. A call that has effects is posted again only if the server says that it did not
// run. round is the round of the tools when m was posted.
func (s *modern) again(c *modernCall, m *jsonrpc.Message, round int, reply *jsonrpc.Message, f *failure) *jsonrpc.Message {
	if c.ctx.Err() != nil {
		return nil
	}
	if f != nil {
		if !f.broke() || !mcp.MethodOf(m.Method).Safe {
			return nil
		}
		again := *m
		again.ID = ownID("again:" + m.ID.String()) // the first may still be running
		return &again
	}
	if errorCode(reply.Error) != mcp.CodeHeaderMismatch || m.Method != mcp.MethodToolsCall {
		return nil
	}
	s.tools.refresh(c.ctx, m, round)
	return m
}

// answer brings the end of a call to Recv.
func (s *modern) answer(c *modernCall, reply *jsonrpc.Message, f *failure) {
	if f != nil {
		s.note(c, f)
		reply = f.answer(s.t.name, c.m.ID)
	}
	s.put(&jsonrpc.Message{ID: c.m.ID, Result: reply.Result, Error: reply.Error, Extra: reply.Extra, Related: c.m.ID})
}

// note logs a failure. Subscriptions break off often, and their clients renew them.
func (s *modern) note(c *modernCall, f *failure) {
	switch {
	case s.work.Err() != nil:
	case f.denied():
		s.t.failures.denied(f)
	case c.m.Method == mcp.MethodListen && f.broke():
		s.t.failures.mention(c.m, f)
	case c.m.Method == mcp.MethodListen && f.phase == jsonrpc.NotSent:
		s.t.failures.lose(f)
	default:
		s.t.failures.count(f)
	}
}

// pass brings a message before the answer to a call to Recv. It returns false when the call
// was given up.
func (s *modern) pass(c *modernCall, m *jsonrpc.Message) bool {
	switch {
	case m.Unusable != nil:
	case m.IsRequest(), m.Method == mcp.MethodCancelled:
		s.log.Debug("message dropped: modern servers do not send it", "method", m.Method)
		return c.ctx.Err() == nil
	case c.m.Method == mcp.MethodListen:
		if m = subscribed(m); m == nil {
			s.log.Debug("message of another subscription dropped")
			return c.ctx.Err() == nil
		}
	}
	return s.offer(m, c.ctx.Done())
}

// subscribed returns a message of a subscription with the subscription's id, which some
// servers omit or write in another form. It returns nil if the message names another
// subscription.
func subscribed(m *jsonrpc.Message) *jsonrpc.Message {
	n := mcp.Read(m)
	if n.Err(mcp.InMeta, mcp.Subscription) != nil {
		return nil
	}
	id, ok := n.ID(mcp.Subscription)
	switch {
	case ok && id == m.Related:
		return m
	case n.Has(mcp.Subscription) && !(ok && same(id, m.Related)):
		return nil
	}
	own := *m
	own.Params = mcp.SetMeta(m.Params, jsonrpc.Value{Key: mcp.KeySubscription, Text: m.Related.Raw()})
	return &own
}

// Close implements jsonrpc.Conn. Recv and Send return at once, and calls are given up,
// which cancels them. Notifications and tasks/cancel that were sent before still go out,
// for at most half of the grace. Close returns when nothing is left.
func (s *modern) Close() error {
	s.closing.Do(func() {
		s.leave()
		s.giveUp()
		force := time.AfterFunc(s.t.stopGrace/2, s.cancel)
		defer force.Stop()
		s.wg.Wait()
		s.left()
		s.t.leave()
	})
	return nil
}
