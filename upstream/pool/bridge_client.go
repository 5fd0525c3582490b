package pool

import (
	"context"
	"errors"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

const (
	// maxStreamCalls bounds the open calls of one stream, which may be the trunk of
	// many clients. Those beyond are refused.
	maxStreamCalls = 8192

	// A stream of which more than this waits to be read is ended: the sessions
	// behind it are those of others, too.
	maxUnread      = 2 * maxStreamCalls
	maxUnreadBytes = 64 << 20
)

// A modernStream is one stream of modern clients.
type modernStream struct {
	// Static after construction.
	t      *tenant
	c      jsonrpc.Conn
	out    *sendQueue
	cancel context.CancelCauseFunc

	endOnce sync.Once
	err     error // the end; written by end

	// Guarded by tenant.mu.
	calls   map[jsonrpc.ID]*bridged // not answered, by the client's id
	listens map[jsonrpc.ID]*modernListen
	ended   bool
}

// Modern serves one stream of modern clients, for an upstream that speaks legacy.
// It owns client. The sessions that it uses are the key's: they outlive the stream.
//
// When client ends, or ctx is done, the calls that came on it are cancelled. What is
// parked waits for whoever comes back with its requestState, if the key is a
// principal's; that of one connection has nothing from the end of its last stream on, or
// if the bridge ended that, 30 s later. If the upstream turns
// out to speak modern, the stream ends with [jsonrpc.CauseOtherEra]. Modern returns
// when everything that it started is gone; its error is an [jsonrpc.ErrClosed].
func (b *Bridge) Modern(ctx context.Context, upstream, key string, client jsonrpc.Conn) error {
	t := b.tenant(tenantID{upstream, key})
	if t == nil {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped}
		jsonrpc.CloseWith(client, end)
		return end
	}
	defer t.release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &modernStream{t: t, c: client, out: newSendQueue(client), cancel: cancel,
		calls: make(map[jsonrpc.ID]*bridged), listens: make(map[jsonrpc.ID]*modernListen)}
	t.mu.Lock()
	t.streams[s] = struct{}{}
	t.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(s.out.run)
	hooked := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() { defer close(hooked); s.end(whyDone(ctx)) })
	s.end(s.read())
	wg.Wait()
	if !unhook() {
		<-hooked
	}
	return s.err
}

// whyDone returns the end of a stream whose context is done.
func whyDone(ctx context.Context) error {
	cause := context.Cause(ctx)
	if end, ok := errors.AsType[*jsonrpc.ClosedError](cause); ok {
		return end
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true, Err: cause}
}

// read handles what comes from the client until its stream ends. It owns Recv.
func (s *modernStream) read() error {
	var batch []*jsonrpc.Message
	for {
		var err error
		batch, err = jsonrpc.RecvAll(s.c, batch[:0])
		for _, m := range batch {
			switch {
			case m.IsRequest():
				s.request(m)
			case m.Method == mcp.MethodCancelled:
				s.cancelled(m)
			}
		}
		clear(batch)
		if _, unusable := errors.AsType[*jsonrpc.InvalidError](err); err != nil && !unusable {
			return jsonrpc.Closed(err)
		}
	}
}

// end is the one place through which every end passes; the first one counts.
func (s *modernStream) end(err error) {
	s.endOnce.Do(func() {
		s.err = err
		s.leave(err)
		s.out.end()
		jsonrpc.CloseWith(s.c, err)
	})
}

// leave lets go of everything that is the stream's, which has ended.
func (s *modernStream) leave(end error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.leaveLocked()
	s.t.leftLocked(end)
}

func (s *modernStream) leaveLocked() {
	s.ended = true
	delete(s.t.streams, s)
	for _, c := range s.calls {
		c.cancelLocked(nil)
	}
	for _, l := range s.listens {
		l.endLocked()
	}
}

// sendLocked queues a message for the client. One who reads nothing for long loses
// the stream.
func (s *modernStream) sendLocked(messages ...*jsonrpc.Message) {
	s.out.put(messages...)
	if s.out.holds(maxUnread, maxUnreadBytes) {
		s.cancel(&jsonrpc.ClosedError{Cause: jsonrpc.CauseSlowStream, Delivered: true})
	}
}

// fail answers a request with an error.
func (s *modernStream) fail(id jsonrpc.ID, err *jsonrpc.Error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.sendLocked(jsonrpc.NewError(id, err))
}

// request begins a call, or goes on with one.
func (s *modernStream) request(m *jsonrpc.Message) {
	r, err := translate.ReadRequest(m.Params)
	switch {
	case err != nil:
		s.fail(m.ID, jsonrpc.InvalidParams(err.Error()))
	case m.Method == mcp.MethodListen:
		s.listen(m, r)
	case m.Method != mcp.MethodDiscover && mcp.MethodOf(m.Method).Foreign():
		s.fail(m.ID, jsonrpc.MethodNotFound(m.Method))
	case r.State != nil || r.Answers():
		s.retry(m, r)
	default:
		s.call(m, r)
	}
}

// call begins a call.
func (s *modernStream) call(m *jsonrpc.Message, r translate.Request) {
	c := newBridged(m)
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.enterLocked(c, m.ID, r) {
		c.group.placeLocked(c)
	}
}

// enterLocked makes c the call of a request of s. It reports false if that cannot be.
func (s *modernStream) enterLocked(c *bridged, id jsonrpc.ID, r translate.Request) bool {
	_, twice := s.calls[id]
	switch {
	case s.ended:
		return false
	case twice:
		s.sendLocked(jsonrpc.NewError(id, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the id is in use"}))
		return false
	case len(s.calls) >= maxStreamCalls:
		s.sendLocked(jsonrpc.NewError(id, jsonrpc.Overloaded(s.t.id.upstream)))
		return false
	}
	c.s, c.id, c.Request = s, id, r
	if c.group == nil { // a call that comes back stays in the lane that it has
		c.group = s.t.groupLocked(r.Capabilities)
	}
	s.calls[id] = c
	return true
}

// cancelled ends what the client has cancelled. It is not answered. What is parked
// was answered, and lives on.
func (s *modernStream) cancelled(m *jsonrpc.Message) {
	text, err := jsonrpc.Member(m.Params, "requestId")
	if err != nil {
		return
	}
	id, _ := jsonrpc.ParseID(text)
	reason, _ := jsonrpc.Member(m.Params, "reason")
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if c := s.calls[id]; c != nil {
		c.cancelLocked(reason)
	}
	if l := s.listens[id]; l != nil {
		l.endLocked()
	}
}
