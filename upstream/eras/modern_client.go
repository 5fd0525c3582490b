package eras

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// maxStreamCalls bounds the open calls of one stream, which all clients of a principal
	// may share. Further ones are refused.
	maxStreamCalls = 8192

	// A stream with more unread messages is ended, since its sessions may serve others.
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

// serve runs one stream of modern clients to its end. It owns c.
func (a *account) serve(ctx context.Context, c jsonrpc.Conn) error {
	own, end := context.WithCancelCause(context.Background())
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(whyDone(ctx)) })()
	s := &modernClient{a: a, end: end, listens: make(map[*modernListen]struct{})}
	s.peer = peer.New(peer.Options{
		Name: a.id.upstream, Requests: maxStreamCalls, Refuse: refused,
		Room: jsonrpc.Room{Messages: maxUnread, Bytes: maxUnreadBytes}, Full: s.tooSlow,
		Request: s.request, Notified: s.notified,
	})
	a.mu.Lock()
	a.streams[s] = struct{}{}
	a.mu.Unlock()
	err := s.peer.Run(own, c)
	if why := context.Cause(own); why != nil { // the client may have closed it then
		err = why
	}
	s.leave(err)
	return err
}

// refused returns the answer to a request that the Peer refuses. A request whose id is in use is answered under
// that id.
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

// tooSlow ends the stream of a client that does not read.
func (s *modernClient) tooSlow(*jsonrpc.Message) {
	s.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseSlowStream, Delivered: true})
}

// leave releases what a stream has that has ended.
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

// request begins a call, or resumes one.
func (s *modernClient) request(r *peer.Request) {
	said, err := readModernRequest(mcp.Read(r.Message))
	switch {
	case err != nil:
		r.Fail(jsonrpc.InvalidParams(err.Error()))
	case r.Method == mcp.MethodListen:
		s.listen(r, said)
	case r.Method != mcp.MethodDiscover && mcp.MethodOf(r.Method).Foreign():
		r.Fail(jsonrpc.MethodNotFound(r.Method))
	case said.State != nil || said.answers():
		s.retry(r, said)
	default:
		s.call(r, said)
	}
}

// notified passes a notification of an unknown method to the server: in the session of the call that it names, or
// in the one that the client's next request would use. The proxy sends the known ones itself.
func (s *modernClient) notified(m *jsonrpc.Message, _ *peer.Call) {
	notes := mcp.Read(m)
	said, err := readModernRequest(notes)
	if notes.Method.Name != "" || err != nil || notes.Err(mcp.Subscription) != nil {
		return
	}
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	c, named := callNamed[*modernCall](s.peer, notes)
	switch {
	case s.ended, named && (c == nil || c.session == nil || c.Call == nil): // it names a request that is over, or not sent
	case named:
		params := notes.Own(c.ID, c.Token)
		c.session.notice(&jsonrpc.Message{Method: m.Method, Params: mcp.SetMeta(params, hopReserved...), Extra: m.Extra})
	default:
		if l := s.a.sessionLocked(said, notes.Has(mcp.Capabilities)); l != nil {
			l.notice(&jsonrpc.Message{Method: m.Method, Params: stripHop(m.Params), Extra: m.Extra})
		}
	}
}

// sessionLocked returns a session for a notification: the one used last if it declares no capabilities, as
// notifications need not. It opens one if there is none; nil if there is no room.
func (a *account) sessionLocked(said modernRequest, declares bool) (last *legacySession) {
	for _, l := range a.sessions {
		if l != nil && !declares && (last == nil || l.used.After(last.used)) {
			last = l
		}
	}
	if last != nil {
		return last
	}
	g := a.groupLocked(said.Capabilities)
	last = g.sessionFor(said.ClientInfo, false)
	g.forget()
	return last
}

// call begins a call: in the session of another call if it names that.
func (s *modernClient) call(r *peer.Request, said modernRequest) {
	notes, c := mcp.Read(r.Message), newModernCall(r.Message)
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	var other *modernCall
	names, err := named(notes, func() *peer.Call {
		if other, _ = callNamed[*modernCall](s.peer, notes); other == nil || other.session == nil || other.Call == nil {
			other = nil
			return nil
		}
		return other.Call
	})
	if err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	said.name(names)
	if other != nil {
		c.group = other.group
	}
	switch {
	case !s.enterLocked(c, r, said):
	case other != nil:
		other.session.take(c)
	default:
		c.group.place(c)
	}
}

// enterLocked makes r the newest request of c. It reports false if the request was cancelled.
func (s *modernClient) enterLocked(c *modernCall, r *peer.Request, said modernRequest) bool {
	if s.ended || !r.OnCancel(func(m *jsonrpc.Message, _ jsonrpc.Span) { c.cancelled(r, m) }) {
		return false
	}
	r.Message = nil // the call has what it needs
	r.Value, c.r, c.s, c.modernRequest = c, r, s, said
	if c.group == nil { // a resumed call, and one that names another, have their session
		c.group = s.a.groupLocked(said.Capabilities)
	}
	return true
}

// clientID returns the id of the request that the client waits for; zero for none.
func (c *modernCall) clientID() (id jsonrpc.ID) {
	if c.r != nil {
		id = c.r.ID
	}
	return id
}

// cancelled ends a call whose client has cancelled its request with m, or has left (nil). It is not answered. A
// suspended call was answered, and continues. It takes the lock.
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

// retry handles a request with a requestState. Even if something is wrong with it, the call never runs a second
// time: its first part may have had an effect.
func (s *modernClient) retry(r *peer.Request, said modernRequest) {
	if err := checkResponses(said.Input); err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	state, _ := jsonrpc.Unquote(said.State)
	use := stateUse{state, digestOf(r.Method, r.Message.Params), sha256.Sum256(canonicalIfShort(said.Input))}
	if c, result := s.comeBack(r, said, use); c != nil {
		c.finish(result)
	}
}

// checkResponses returns an error unless inputResponses is an object of results.
func checkResponses(responses json.RawMessage) error {
	if responses == nil {
		return nil
	}
	var wrong error
	err := jsonrpc.Each(responses, func(_ string, value json.RawMessage) {
		if value[0] != '{' {
			wrong = errors.New(`a value in "inputResponses" is not an object`)
		}
	})
	if err != nil {
		return errors.New(`"inputResponses" is not an object`)
	}
	return wrong
}

// comeBack resumes the call that a state names. If the call has been answered meanwhile, it returns the call and
// the answer for the client.
func (s *modernClient) comeBack(r *peer.Request, said modernRequest, u stateUse) (*modernCall, *jsonrpc.Message) {
	a := s.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if rc := a.answers.find(u); rc != nil {
		r.Respond(rc.replay(u))
		return nil, nil
	}
	p := a.suspensions[u.state]
	switch {
	case p == nil || !time.Now().Before(p.expiry):
		r.Fail(refusedState(stateExpired))
		return nil, nil
	case p.digest != u.digest:
		r.Fail(refusedState(stateInvalid))
		return nil, nil
	case p.call != nil && p.call.state != suspended:
		r.Fail(refusedState(stateUsed))
		return nil, nil
	case p.call == nil:
		s.restartLocked(r, said, p, u)
		return nil, nil
	}
	c := p.call
	if !s.enterLocked(c, r, said) {
		return nil, nil
	}
	c.stored = a.answers.add(u)
	c.state = forwarded
	if result := c.takeKept(); result != nil {
		return c, result
	}
	c.goOn()
	return nil, nil
}

// goOn passes the client's input to the server. Missing input is asked for again.
func (c *modernCall) goOn() {
	defer c.letGo()
	l := c.session
	l.raiseLevel(c)
	open, responses := slices.Clone(c.requests), c.responses()
	for i, q := range open {
		if responses[i] != nil {
			c.done(q)
			q.Respond(&jsonrpc.Message{Result: stripReserved(responses[i])})
		}
	}
	if kept := c.progress.kept; kept != nil {
		c.progress.kept = nil
		c.tellProgress(kept)
	}
	if len(c.requests) > 0 {
		c.gather(collectFor)
	}
}

// responses returns the client's response to each open request, nil for none. Ambiguous input counts as none.
func (c *modernCall) responses() []json.RawMessage {
	keys, at, responses := make([]string, len(c.requests)), make([]jsonrpc.Span, len(c.requests)), make([]json.RawMessage, len(c.requests))
	for i, q := range c.requests {
		keys[i] = q.Value.(string)
	}
	if jsonrpc.Find(c.Input, jsonrpc.Span{}, at, keys...) == nil {
		for i := range at {
			responses[i] = at[i].Of(c.Input)
		}
	}
	return responses
}

// urlsOf returns the requests for input for a refusal that names URLs to visit first (2025-11-25
// client/elicitation, "URL Elicitation Required"), or the error for a client that does not support them.
func (c *modernCall) urlsOf(e wireError) (*jsonrpc.Message, []byte) {
	list, err := jsonrpc.Member(e.Data, "elicitations")
	elicitations, errList := jsonrpc.Elements(list)
	if err != nil || errList != nil || len(elicitations) == 0 || len(elicitations) > maxCallRequests {
		return &jsonrpc.Message{Error: toModernError(c.method, e.Text)}, nil
	}
	if !abilitiesOf(c.Capabilities).URL {
		return jsonrpc.Failure(mcp.MissingCapability([]byte(`{"elicitation":{"url":{}}}`))), nil
	}
	requests := make([]jsonrpc.Value, 0, len(elicitations))
	for i, params := range elicitations {
		params = jsonrpc.Set(params, jsonrpc.Value{Key: "mode", Text: []byte(`"url"`)})
		requests = append(requests, jsonrpc.Value{Key: keyOf(i + 1), Text: asInputRequest(mcp.MethodElicit, params)})
	}
	return nil, jsonrpc.Set(nil, requests...)
}

// restart returns the answer to a call that was refused until its client has visited URLs. Nothing has run, so the
// call starts again when the client returns.
func (c *modernCall) restart(requests json.RawMessage, digest [32]byte) *jsonrpc.Message {
	if c.restarts >= maxRounds {
		return jsonrpc.Failure(errTooManyAsks)
	}
	p := c.group.a.newSuspensionLocked(nil, digest)
	if p == nil {
		return jsonrpc.Failure(jsonrpc.Overloaded(c.group.a.id.upstream))
	}
	p.round = c.restarts
	return &jsonrpc.Message{Result: inputRequired(requests, p.newState(), c.serverInfo)}
}

// restartLocked starts a call again, once.
func (s *modernClient) restartLocked(r *peer.Request, said modernRequest, p *suspension, u stateUse) {
	c := newModernCall(r.Message)
	if c.restarts = p.round; !s.enterLocked(c, r, said) {
		return
	}
	c.stored = s.a.answers.add(u)
	p.forget()
	c.group.place(c)
}
