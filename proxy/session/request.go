package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A request is one of the client, from its arrival until it is settled or
// cancelled.
type request struct {
	*peer.Request
	observed

	// Static after construction.
	bad         *jsonrpc.Error // why it cannot be routed; nil if it can
	era         mcp.Era
	upstreams   *upstreamSet  // the upstreams when it came
	view        *view         // what its client sees of them; nil if its claim is wrong
	grant       *policy.Grant // what its client may; nil without policies
	clientClaim               // modern era only

	// retry tells that the request holds what is for the upstream alone that has
	// asked for it; modern era only. Set before the request is forwarded.
	retry bool

	// msg is the request as it came. Owned by who works on the request; nil once
	// it was forwarded for good, so that its bytes are not kept until the answer.
	msg   *jsonrpc.Message
	notes *mcp.Notes // of msg

	// others are to be asked in turn if the upstream asked first does not have the
	// resource, see lacksResource. Owned by whoever settles the call.
	others []*upstreamConn

	// kind is what the answer is, by its resultType; modern era only. Owned by
	// whoever settles the call.
	kind string

	// Of a subscription: what tells the client what is honoured is on its way, and it has
	// left, so that others may follow.
	acking, acked atomic.Bool

	// Guarded by session.mu. Who takes the request sees what was set before.
	after  func(answer *jsonrpc.Message) // sees the answer before the client does
	sent   *call                         // to an upstream, once it is forwarded
	kept   int                           // bytes of the request that are kept and counted
	cancel context.CancelFunc            // ends the goroutine that works on the request, if one does
	use    *policy.Use                   // what is counted for its principal; nil for nothing
}

// observed is what hooks get of a request.
type observed struct {
	began  time.Duration // when it came, by session.now; zero without hooks
	client string        // what a modern client calls itself, if somebody does
	trace  observe.Trace // nil: no trace

	tool   string // that an upstream is called for, by its name there. Set before it is sent
	prompt string // likewise
}

// begin makes the request of a peer.Request that is about to be entered; all requests begin
// here.
func (s *session) begin(pr *peer.Request) {
	r := &request{Request: pr, msg: pr.Message, notes: mcp.Read(pr.Message)}
	if r.bad = s.classify(r); r.bad == nil {
		r.bad = r.overlong()
	}
	r.grant = s.grantOf(pr.Message.From)
	r.upstreams = s.upstreams.of(r.era).visibleTo(r.grant)
	pr.Value = r
	s.observeRequest(r)
}

// refuse returns the answer to a request that is not entered.
func (s *session) refuse(pr *peer.Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
	r := pr.Value.(*request)
	if why == peer.ErrDraining {
		answer = jsonrpc.NewError(r.ID, r.endingError(jsonrpc.NotSent))
	}
	s.observeAnswer(r, answer)
	return answer
}

// take takes a request out of the table and reports whether it was there: whoever
// takes it settles it. Once the session's ctx has ended only end takes: what was
// interrupted by that end would pass for an answer.
func (s *session) take(r *request) bool { return s.ctx.Err() == nil && r.Take() }

// settle answers r, unless another goroutine has taken it. It waits for room, which slows the
// stream that the answer came from.
func (s *session) settle(r *request, answer *jsonrpc.Message) {
	if !s.take(r) {
		s.drop("late answer", answer)
		return
	}
	s.deliver(r, answer, r.AnswerWhenRoom)
}

// deliver ends what works on a request that was taken, and hands the answer to put; all requests
// end here.
func (s *session) deliver(r *request, answer *jsonrpc.Message, put func(*jsonrpc.Message)) {
	if after := s.stop(r); after != nil {
		after(answer)
	}
	s.release(r) // after that: what it keeps for good is counted by now
	s.observeAnswer(r, answer)
	put(answer)
}

// stop ends the goroutine and the timer of a request that was taken, and returns the function
// that sees the answer first.
func (s *session) stop(r *request) (after func(answer *jsonrpc.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.use.End()
	if r.cancel != nil {
		r.cancel()
	}
	if r.sent != nil && r.sent.timer != nil {
		r.sent.timer.Stop()
	}
	return r.after
}

// phase tells whether r, which was taken, may have run. A subscription runs from its
// beginning.
func (r *request) phase() jsonrpc.Phase {
	if call := r.Forwarded(); call != nil && call.Sent() || r.Method == mcp.MethodListen {
		return jsonrpc.InFlight
	}
	return jsonrpc.NotSent
}

// work runs fn for a request that takes more than one message to answer. Its ctx
// ends when the request is cancelled or the session ends; it settles the request. If the
// request is already over, fn does not run and work reports false.
func (s *session) work(r *request, fn func(ctx context.Context)) bool {
	ctx, cancel := context.WithCancel(withTrace(s.ctx, r))
	s.mu.Lock()
	r.cancel = cancel
	s.mu.Unlock()
	if !r.Open() {
		cancel()
		return false
	}
	s.wg.Go(func() {
		defer cancel()
		fn(ctx)
	})
	return true
}

// whenAnswered makes fn see the answer of r before the client does.
func (s *session) whenAnswered(r *request, fn func(answer *jsonrpc.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.after = fn
}

// cancelled ends a request that the client cancels, with m, or that the end of the client has
// taken, with nil: then the streams to the upstreams end, too.
func (s *session) cancelled(pr *peer.Request, m *jsonrpc.Message, at jsonrpc.Span) {
	r := pr.Value.(*request)
	use := s.takeUse(r)
	s.stop(r)
	s.release(r)
	call := pr.Forwarded()
	switch {
	case m == nil:
		s.observeAnswer(r, s.lastAnswer(r))
		s.abandon(r, use)
	case call == nil:
		s.observeAnswer(r, nil)
		s.abandon(r, use)
	default:
		s.observeAnswer(r, nil)
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: call.ID.Raw()})
		callOf(call).giveUp(use, &jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	}
}

// forward sends the request to an upstream, with an id and a progress token of its
// own. The edits are to the request's params.
func (s *session) forward(r *request, u *upstreamConn, edits ...jsonrpc.Edit) {
	n := r.notes
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		s.fail(r, invalidParams(err.Error()))
		return
	}
	if err := r.checkOwner(u); err != nil {
		s.fail(r, err)
		return
	}
	if len(r.others) > 0 && !s.keep(r, r.msg.Size()) {
		s.fail(r, jsonrpc.Overloaded(u.up.Name))
		return
	}
	if !r.Open() {
		return // cancelled meanwhile
	}
	s.mu.Lock()
	c := u.newCall(u.openLocked(), r.Method)
	c.request, c.Done, c.Works = r, c.settle, true
	r.sent = c
	c.startTimerLocked()
	s.mu.Unlock()
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, u.ownTask)...)
	if n.Has(mcp.Token) {
		c.token = bytes.Clone(n.Raw(mcp.Token))
		edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Token), With: c.ID.Raw()})
	}
	if r.began != 0 { // somebody wants to know of it
		c.listed = r.listedBy(u)
	}
	params, told := c.traced(r.trace, r.msg.Params, n)
	m := &jsonrpc.Message{Params: jsonrpc.Replace(params, append(edits, told...)...), Extra: r.msg.Extra}
	if len(r.others) == 0 {
		r.msg, r.notes = nil, nil
	}
	if err := r.Forward(c.Call, m); err != nil && err != peer.ErrCancelled {
		s.wg.Go(func() { c.answered(jsonrpc.NewError(c.ID, u.unsent(err))) }) // which waits for room
	}
}

// keep counts so many bytes of a request, which are kept until it is answered. It reports
// false if there is no room for them.
func (s *session) keep(r *request, bytes int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	more := bytes - r.kept
	if more <= 0 || !r.Open() { // release has been called, and takes nothing off any more
		return true
	}
	ok := s.kept.add(more)
	if ok {
		r.kept = bytes
	}
	return ok
}

// release takes off what keep has counted.
func (s *session) release(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.free(r.kept)
	r.kept = 0
}

// ownToken replaces the client's progress token with a minted id in a call of the
// session's own: no client waits for its progress, but the token could be mistaken
// for one of ours.
func ownToken(method string, params json.RawMessage, id jsonrpc.ID) json.RawMessage {
	n := mcp.ReadParams(method, params)
	if n.Err(mcp.InMeta, mcp.Token) != nil || !n.Has(mcp.Token) {
		return params
	}
	return jsonrpc.Replace(params, jsonrpc.Edit{Span: n.At(mcp.Token), With: id.Raw()})
}

// settleNow is settle for callers that must not wait for room.
func (s *session) settleNow(r *request, answer *jsonrpc.Message) {
	if s.take(r) {
		s.deliver(r, answer, r.Answer)
	}
}

// fail settles r with an error of the proxy's own, without waiting.
func (s *session) fail(r *request, err *jsonrpc.Error) {
	s.settleNow(r, jsonrpc.NewError(r.ID, err))
}

func invalidParams(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: " + reason}
}

func methodNotFound(method string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + method}
}

func errMissing(key string) error { return fmt.Errorf("%q is missing or not a string", key) }

// A call is a request that this side sent on an upstream connection and that is not answered.
type call struct {
	*peer.Call
	conn           *upstreamConn
	request        *request               // whose it is; nil for the session's own
	onNotification func(*jsonrpc.Message) // of notifications that belong to it; nil for nobody

	token []byte // the client's progress token, as it came; nil for none

	// Guarded by session.mu.
	timer         *time.Timer
	openQuestions int // open server requests that it may be the reason of, see causes

	began  time.Duration     // when it was sent, by session.now, if a hook wants to know of it
	over   atomic.Int64      // likewise: when it was answered; zero before
	ended  observe.Outcome   // likewise: how a result says that it has. Set before over
	listed *atomic.Value     // likewise: the tool or prompt that it is for. Set before it is sent
	trace  observe.CallTrace // set before it is sent; nil: nobody follows it
}

func (u *upstreamConn) newCall(a *attempt, method string) *call {
	c := &call{Call: a.peer.NewCall(method), conn: u}
	c.Value = c
	return c
}

// callOf returns the call of a peer.Call on an upstream connection; nil for none.
func callOf(pc *peer.Call) *call {
	if pc == nil {
		return nil
	}
	c, _ := pc.Value.(*call)
	return c
}

// settle gives c, which was taken out of its upstream connection's table, its answer.
func (c *call) settle(answer *jsonrpc.Message, lost *peer.Lost) {
	if lost != nil {
		c.answered(jsonrpc.NewError(c.ID, lost.Wire(jsonrpc.CodeInternalError, c.conn.up.Name)))
		return
	}
	c.conn.noteAnswer(answer)
	c.answered(answer)
}

// answered answers the request of c. An upstream that does not know a resource may not be the
// last to be asked.
func (c *call) answered(answer *jsonrpc.Message) {
	r, s := c.request, c.conn.s
	if len(r.others) > 0 && answer.Error != nil && lacksResource(answer.Error) {
		next := r.others[0]
		r.others = r.others[1:]
		s.forward(r, next)
		return
	}
	if r.era == mcp.Modern {
		s.settle(r, r.checked(c.conn, answer))
		return
	}
	s.settle(r, &jsonrpc.Message{ID: r.ID, Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
}
