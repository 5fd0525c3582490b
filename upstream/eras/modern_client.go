package eras

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// maxStreamCalls bounds the open calls of one stream, on which all clients of a
	// principal may come. Those beyond are refused.
	maxStreamCalls = 8192

	// A stream of which more than this waits to be read is ended: the sessions
	// behind it are those of others, too.
	maxUnread      = 2 * maxStreamCalls
	maxUnreadBytes = 64 << 20
)

// A modernClient is one stream of modern clients.
type modernClient struct {
	// Static after construction.
	a    *account
	peer *peer.Peer
	end  context.CancelCauseFunc // ends the stream

	// Guarded by account.mu.
	listens map[*modernListen]struct{}
	ended   bool
}

// Modern serves one stream of modern clients, for an upstream that speaks legacy.
// It owns c. The sessions that it uses are the key's: they outlive the stream.
//
// When c ends, or ctx is done, the calls that came on it are cancelled. What is
// suspended waits for whoever comes back with its requestState, if the key is a
// principal's; that of one connection has nothing from the end of its last stream on, or
// if this side ended that, 30 s later. If the upstream turns
// out to speak modern, the stream ends with [mcp.ErrOtherEra]. Modern returns
// when everything that it started is gone; its error is an [jsonrpc.ErrClosed].
func (b *Bridge) Modern(ctx context.Context, upstream, key string, c jsonrpc.Conn) error {
	a := b.account(accountID{upstream, key})
	if a == nil {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped}
		jsonrpc.CloseWith(c, end)
		return end
	}
	defer a.release()
	own, end := context.WithCancelCause(context.Background())
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(whyDone(ctx)) })()
	s := &modernClient{a: a, end: end, listens: make(map[*modernListen]struct{})}
	s.peer = peer.New(peer.Options{
		Name: upstream, Requests: maxStreamCalls, Refuse: refused,
		Room: jsonrpc.Room{Messages: maxUnread, Bytes: maxUnreadBytes}, Full: s.tooSlow,
		Request: s.request,
	})
	a.mu.Lock()
	a.streams[s] = struct{}{}
	a.mu.Unlock()
	err := s.peer.Run(own, c)
	s.leave(err)
	return err
}

// refused is what is said to a request that is not entered: here one whose id is in use is
// answered under it.
func refused(r *peer.Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
	if why != jsonrpc.ErrInUse {
		return answer
	}
	return jsonrpc.NewError(r.ID, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the id is in use"})
}

// whyDone returns the end of a stream whose context is done.
func whyDone(ctx context.Context) error {
	cause := context.Cause(ctx)
	if end, ok := errors.AsType[*jsonrpc.ClosedError](cause); ok {
		return end
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true, Err: cause}
}

// tooSlow ends the stream of one who reads nothing for long.
func (s *modernClient) tooSlow(*jsonrpc.Message) {
	s.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseSlowStream, Delivered: true})
}

// leave lets go of everything that is the stream's, which has ended.
func (s *modernClient) leave(end error) {
	s.a.mu.Lock()
	s.leaveLocked()
	s.a.mu.Unlock()
	s.peer.End(end) // its requests are cancelled
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	s.a.leftLocked(end)
}

func (s *modernClient) leaveLocked() {
	s.ended = true
	delete(s.a.streams, s)
}

// request begins a call, or goes on with one.
func (s *modernClient) request(r *peer.Request) {
	said, err := ReadRequest(mcp.Read(r.Message))
	switch {
	case err != nil:
		r.Fail(jsonrpc.InvalidParams(err.Error()))
	case r.Method == mcp.MethodListen:
		s.listen(r, said)
	case r.Method != mcp.MethodDiscover && mcp.MethodOf(r.Method).Foreign():
		r.Fail(jsonrpc.MethodNotFound(r.Method))
	case said.State != nil || said.Answers():
		s.retry(r, said)
	default:
		s.call(r, said)
	}
}

// call begins a call.
func (s *modernClient) call(r *peer.Request, said Request) {
	c := newModernCall(r.Message)
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.enterLocked(c, r, said) {
		c.group.place(c)
	}
}

// enterLocked makes c the call of a request of s. It reports false if nobody waits for that
// any more.
func (s *modernClient) enterLocked(c *modernCall, r *peer.Request, said Request) bool {
	if s.ended || !r.OnCancel(func(m *jsonrpc.Message, _ jsonrpc.Span) { c.cancelled(r, m) }) {
		return false
	}
	r.Message = nil // what is needed of it is the call's
	r.Value, c.r, c.s, c.Request = c, r, s, said
	if c.group == nil { // a call that comes back stays in the session that it has
		c.group = s.a.groupLocked(said.Capabilities)
	}
	return true
}

// cancelled ends a call whose client has cancelled its request, with m, or has left. It is
// not answered. What is suspended was answered, and lives on. It takes the lock.
func (c *modernCall) cancelled(r *peer.Request, m *jsonrpc.Message) {
	var reason json.RawMessage
	if m != nil {
		reason, _ = jsonrpc.Member(m.Params, "reason")
	}
	a := c.group.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.r == r {
		c.cancel(reason)
	}
}
