package session

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// forward sends the request to an upstream, with its own id and progress token. The edits apply to
// the request's params.
func (s *session) forward(r *request, u *upstreamConn, edits ...jsonrpc.Edit) {
	n := r.notes
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		s.fail(r, jsonrpc.InvalidParams(err.Error()))
		return
	}
	if bad := r.checkOwner(u); bad != nil {
		s.fail(r, bad)
		return
	}
	named, err := s.namedFor(u, n)
	if err != nil {
		s.fail(r, jsonrpc.InvalidParams(err.Error()))
		return
	}
	if len(r.others) > 0 && !s.keep(r, r.msg.Size()) {
		s.fail(r, jsonrpc.Overloaded(u.up.Name))
		return
	}
	if !r.Open() {
		return // cancelled meanwhile
	}
	a, cold := u.enterFor(n)
	c := u.newCall(a, r.Method)
	c.request, c.Done, c.Works, c.Passes = r, c.settle, true, true
	if n.Has(mcp.Token) {
		c.token = bytes.Clone(n.Raw(mcp.Token))
		edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Token), With: c.ID.Raw()})
	}
	if named != nil {
		edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Subscription), With: named.ID.Raw()})
	}
	r.mu.Lock()
	cold = cold && r.sent == nil // else the client was told
	r.sent = c
	c.timeout.start(c)
	r.mu.Unlock()
	edits = append(edits, s.ownRelated(u, n)...)
	if cold && c.token != nil && u.lists.IsLazy() {
		time.AfterFunc(startPatience, func() { c.tellStart(a) })
	}
	if r.began != 0 { // hooks are set
		c.listed = r.listedBy(u)
	}
	params, told := c.traced(r.trace, r.msg.Params, n)
	m := &jsonrpc.Message{Params: jsonrpc.Replace(params, append(edits, told...)...), Extra: r.msg.Extra, Forwarded: u.up.with(r.forwarded)}
	if len(r.others) == 0 {
		r.msg, r.notes = nil, nil
	}
	err = r.Forward(&c.Call, m)
	a.leave()
	if err != nil && err != peer.ErrCancelled {
		// In a goroutine, because it waits for room.
		s.wg.Go(func() { c.answered(jsonrpc.NewError(c.ID, u.unsent(err))) })
	}
}

// namedFor returns the call to an upstream that the client's message of an extension names, by the id that
// the client gave the request. It returns nil if the message names none, or by what no upstream takes for
// an id of ours, and an error if it names what is no open call there.
func (s *session) namedFor(u *upstreamConn, n *mcp.Notes) (*call, error) {
	if !n.Method.MaybeOfExtension() {
		return nil, nil
	}
	if err := n.Err(mcp.InMeta, mcp.Subscription); err != nil || !n.Has(mcp.Subscription) {
		return nil, err
	}
	c := s.callNamed(n)
	if c != nil && c.conn == u {
		return c, nil
	}
	id, _ := n.ID(mcp.Subscription)
	if number, ok := id.Answered(); ok && number <= u.minted.Load() || c != nil {
		return nil, mcp.ErrUnknownSubscription
	}
	return nil, nil
}

// callNamed returns the client's open call that a message of an extension names by the id of the
// request, or a notification by its progress token; nil for none.
func (s *session) callNamed(n *mcp.Notes) *call {
	if !n.Method.MaybeOfExtension() {
		return nil
	}
	if id, ok := n.ID(mcp.Subscription); ok {
		if r := s.client.Request(id); r != nil {
			return r.Value.(*request).call()
		}
		return nil
	}
	if !n.Has(mcp.Token) && !n.Has(mcp.ParamToken) {
		return nil
	}
	for _, r := range s.client.Requests(nil) {
		if c := r.Value.(*request).call(); c != nil && n.HasToken(c.token) {
			return c
		}
	}
	return nil
}

// settle answers c, which was taken out of its upstream connection's table.
func (c *call) settle(answer *jsonrpc.Message, lost *peer.Lost) {
	if lost != nil {
		c.answered(jsonrpc.NewError(c.ID, lost.Wire(c.conn.up.Name)))
		return
	}
	c.conn.noteAnswer(answer)
	c.answered(answer)
}

// answered answers the request of c, or asks the next upstream if this one does not have the
// resource or the method. If none has it, one that has failed or could not be asked may.
func (c *call) answered(answer *jsonrpc.Message) {
	r, s := c.request, c.request.upstreams.s
	if answer.Error != nil && (len(r.others) > 0 || r.fallback != nil) && r.isForOthers(answer.Error) {
		if len(r.others) > 0 {
			next := r.others[0]
			r.others = r.others[1:]
			s.forward(r, next)
			return
		}
		answer = &jsonrpc.Message{ID: c.ID, Error: r.fallback}
	}
	if r.extension {
		answer = c.ofExtension(answer)
	}
	if !s.take(r) {
		s.drop("late answer", answer)
		return
	}
	put := r.AnswerWhenRoom
	if c.Passed { // there was room, and whoever has sent the answer must not wait
		put = r.Answer
	}
	if r.era == mcp.Modern {
		s.deliver(r, r.checked(c.conn, answer), put)
		return
	}
	answer.ID, answer.Related = r.ID, jsonrpc.ID{} // it is nobody else's
	s.deliver(r, answer, put)
}

// isForOthers reports whether another upstream may get a request that one has answered with an error.
func (r *request) isForOthers(text json.RawMessage) bool {
	if r.seeks {
		return r.unknownTo(text)
	}
	switch code := codeOf(text); {
	case lacksResource(text):
	case code != jsonrpc.CodeInternalError && code != jsonrpc.CodeInvalidRequest, jsonrpc.ReadErrorData(text).Reason != "":
		return false
	case r.fallback == nil || jsonrpc.IsClosed(r.fallback):
		// Servers whose handler throws for an unknown URI say this, as they do for what is wrong with one that they have.
		r.fallback = text
	}
	return true
}

// lacksResource reports whether an error means that the upstream does not have a resource, or never
// got the request, so that another one may have it. Servers without a code for it send 0.
func lacksResource(text json.RawMessage) bool {
	switch codeOf(text) {
	case jsonrpc.CodeResourceNotFound, jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound, 0:
		return true
	}
	data := jsonrpc.ReadErrorData(text)
	return data.Reason == jsonrpc.ReasonClosed && data.Phase == jsonrpc.NotSent
}

// codeOf returns the code of an error: 0 also if there is none, -1 if there are several.
func codeOf(text json.RawMessage) int {
	raw, err := jsonrpc.Member(text, "code")
	if err != nil {
		return -1
	}
	code, _ := strconv.Atoi(string(raw))
	return code
}

// whoAnswers asks upstreams in turn and returns the first one that returns a result. If there is
// none, it answers r with the first error that is not "unknown", else with that of links whose
// upstreams could not be asked, else with the last error.
func (s *session) whoAnswers(ctx context.Context, r *request, conns []*upstreamConn, method string, params json.RawMessage) *upstreamConn {
	var refusal *jsonrpc.Message
	vague := false
	for _, u := range conns {
		answer := s.askWithin(ctx, u, method, params)
		switch {
		case ctx.Err() != nil:
			return nil // r was taken
		case answer.Error == nil:
			return u
		}
		if refusal == nil || vague {
			refusal, vague = r.checked(u, answer), lacksResource(answer.Error)
		}
	}
	if unasked := r.upstreams.unreachedText(r.grant); vague && unasked != nil {
		refusal = &jsonrpc.Message{ID: r.ID, Error: unasked}
	}
	s.settle(r, refusal)
	return nil
}

// askWithin is ask with the list timeout, after which the answer is an error.
func (s *session) askWithin(ctx context.Context, u *upstreamConn, method string, params json.RawMessage) *jsonrpc.Message {
	ctx, cancel := context.WithTimeout(ctx, s.router.listTimeout())
	defer cancel()
	answer, err := u.ask(ctx, method, params)
	if err != nil {
		return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.TimedOut(u.up.Name))
	}
	return answer
}

// start starts the timeout of a call to an upstream with one.
func (t *timeout) start(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := c.conn.up.RequestTimeout; d > 0 {
		t.timer = time.AfterFunc(d, func() { c.request.upstreams.s.expire(c) })
	}
}

// expire settles the request of a call whose upstream took too long, and cancels the call there. A
// timeout is not a close: the upstream stays.
func (s *session) expire(c *call) {
	r := c.request
	if r.call() != c || c.timeout.isSuspended() || !s.take(r) {
		return
	}
	c.giveUp(r.takeUse(), mcp.Cancellation(c.ID, "timeout"))
	s.deliver(r, jsonrpc.NewError(r.ID, jsonrpc.TimedOut(c.conn.up.Name)), r.AnswerWhenRoom)
}

// startPatience is how long the start of an upstream may take before a client that waits for it is
// told.
const startPatience = time.Second

// tellStart tells a client that asked for progress that its call waits for the start of the
// upstream, unless the call is over. The progress is -1, because it must increase with each
// notification, and that of the server may begin with 0. No version of the protocol has a minimum.
func (c *call) tellStart(a *attempt) {
	u := c.conn
	starting := c.request.upstreams.s.router.Starting // in the modern era, which has no initialize, the session does not know
	known := starting != nil && starting(u.up.Name)
	if !u.isCold(a, known) {
		return
	}
	c.timeout.mu.Lock()
	defer c.timeout.mu.Unlock() // so that progress of the server comes later
	if !c.timeout.extended {
		c.request.Tell(jsonrpc.NewNotification(mcp.MethodProgress, jsonrpc.Set(nil,
			jsonrpc.Value{Key: "progressToken", Text: c.token}, jsonrpc.Value{Key: "progress", Text: []byte("-1")},
			jsonrpc.Value{Key: "message", Text: jsonrpc.Quote("starting " + u.up.Name)})))
	}
}
