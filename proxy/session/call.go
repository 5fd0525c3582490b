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

// A call is one request of the client, from its arrival until it is settled or
// cancelled.
type call struct {
	*peer.Request
	watched

	// Static after construction.
	bad         *jsonrpc.Error // why it cannot be routed; nil if it can
	era         mcp.Era
	upstreams   *upstreamSet  // the upstreams when it came
	view        *view         // what its client sees of them; nil if its claim is wrong
	grant       *policy.Grant // what its client may; nil without policies
	clientClaim               // modern era only

	// retry tells that the request holds what is for the upstream alone that has
	// asked for it; modern era only. Set before the call is forwarded.
	retry bool

	// msg is the request as it came. Owned by who works on the call; nil once
	// it was forwarded for good, so that its bytes are not kept until the answer.
	msg   *jsonrpc.Message
	notes *mcp.Notes // of msg

	// others are to be asked in turn if the upstream asked first does not have the
	// resource, see unaware. Owned by whoever settles request.
	others []*upstreamConn

	// kind is what the answer is, by its resultType; modern era only. Owned by
	// whoever settles request.
	kind string

	// Of a subscription: what tells the client what is honoured is on its way, and it has
	// left, so that others may follow.
	acking, acked atomic.Bool

	// Guarded by session.mu. Who takes the call sees what was set before.
	after  func(answer *jsonrpc.Message) // sees the answer before the client does
	sent   *request                      // to an upstream, once it is forwarded
	kept   int                           // bytes of the request that are kept and counted
	cancel context.CancelFunc            // ends the goroutine that works on the call, if one does
	use    *policy.Use                   // what is counted for its principal; nil for nothing
}

// A watched is what hooks want to know of a call.
type watched struct {
	began  time.Duration // when it came, by session.now; zero if nobody wants to know
	client string        // what a modern client calls itself, if somebody does
	trace  observe.Trace // nil: nobody follows it

	tool   string // that an upstream is called for, by its name there. Set before it is sent
	prompt string // likewise
}

// begin makes a call of a request that is about to be entered; all calls begin here.
func (s *session) begin(r *peer.Request) {
	c := &call{Request: r, msg: r.Message, notes: mcp.Read(r.Message)}
	if c.bad = s.classify(c); c.bad == nil {
		c.bad = c.overlong()
	}
	c.grant = s.grantOf(r.Message.From)
	c.upstreams = s.upstreams.of(c.era).seenBy(c.grant)
	r.Value = c
	s.tellCall(c)
}

// refuse returns what is said to a request that is not entered.
func (s *session) refuse(r *peer.Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
	c := r.Value.(*call)
	if why == peer.ErrDraining {
		answer = jsonrpc.NewError(c.ID, c.endingError(jsonrpc.NotSent))
	}
	s.tellAnswer(c, answer)
	return answer
}

// take takes a call out of the table and reports whether it was there: whoever
// takes it settles it. Once the session's ctx has ended only end takes: what was
// interrupted by that end would pass for an answer.
func (s *session) take(c *call) bool { return s.ctx.Err() == nil && c.Take() }

// settle answers c, unless somebody else has taken it. It waits for room, which slows the
// stream that the answer came from.
func (s *session) settle(c *call, answer *jsonrpc.Message) {
	if !s.take(c) {
		s.drop("late answer", answer)
		return
	}
	s.deliver(c, answer, c.AnswerWhenRoom)
}

// deliver ends what works on a call that was taken, and hands the answer to put; all calls
// end here.
func (s *session) deliver(c *call, answer *jsonrpc.Message, put func(*jsonrpc.Message)) {
	if after := s.stop(c); after != nil {
		after(answer)
	}
	s.release(c) // after that: what it keeps for good is counted by now
	s.tellAnswer(c, answer)
	put(answer)
}

// stop ends the goroutine and the timer of a call that was taken, and returns who sees the
// answer first.
func (s *session) stop(c *call) (after func(answer *jsonrpc.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.use.End()
	if c.cancel != nil {
		c.cancel()
	}
	if c.sent != nil && c.sent.timer != nil {
		c.sent.timer.Stop()
	}
	return c.after
}

// phase tells whether c, which was taken, may have run. A subscription runs from its
// beginning.
func (c *call) phase() jsonrpc.Phase {
	if call := c.Forwarded(); call != nil && call.Sent() || c.Method == mcp.MethodListen {
		return jsonrpc.InFlight
	}
	return jsonrpc.NotSent
}

// work runs fn for a call that takes more than one message to answer. Its ctx
// ends when the call is cancelled or the session ends; it settles the call. If nobody waits
// for the call any more it does not run, and work reports false.
func (s *session) work(c *call, fn func(ctx context.Context)) bool {
	ctx, cancel := context.WithCancel(following(s.ctx, c))
	s.mu.Lock()
	c.cancel = cancel
	s.mu.Unlock()
	if !c.Open() {
		cancel()
		return false
	}
	s.wg.Go(func() {
		defer cancel()
		fn(ctx)
	})
	return true
}

// whenAnswered makes fn see the answer of c before the client does.
func (s *session) whenAnswered(c *call, fn func(answer *jsonrpc.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.after = fn
}

// cancelled ends a call that the client cancels, with m, or that the end of the client has
// taken, with nil: then the streams to the upstreams end, too.
func (s *session) cancelled(r *peer.Request, m *jsonrpc.Message, at jsonrpc.Span) {
	c := r.Value.(*call)
	use := s.takeUse(c)
	s.stop(c)
	s.release(c)
	call := r.Forwarded()
	switch {
	case m == nil:
		s.tellAnswer(c, s.lastAnswer(c))
		s.abandon(c, use)
	case call == nil:
		s.tellAnswer(c, nil)
		s.abandon(c, use)
	default:
		s.tellAnswer(c, nil)
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: call.ID.Raw()})
		requestOf(call).giveUp(use, &jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	}
}

// forward sends the call to an upstream, with an id and a progress token of its
// own. The edits are to the call's params.
func (s *session) forward(c *call, u *upstreamConn, edits ...jsonrpc.Edit) {
	n := c.notes
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	if err := c.foreign(u); err != nil {
		s.fail(c, err)
		return
	}
	if len(c.others) > 0 && !s.keep(c, c.msg.Size()) {
		s.fail(c, jsonrpc.Overloaded(u.up.Name))
		return
	}
	if !c.Open() {
		return // cancelled meanwhile
	}
	s.mu.Lock()
	r := u.newRequest(u.openLocked(), c.Method)
	r.call, r.Done, r.Works = c, r.settle, true
	c.sent = r
	r.startTimerLocked()
	s.mu.Unlock()
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, u.ownTask)...)
	if n.Has(mcp.Token) {
		r.token = bytes.Clone(n.Raw(mcp.Token))
		edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Token), With: r.ID.Raw()})
	}
	if c.began != 0 { // somebody wants to know of it
		r.listed = c.listedBy(u)
	}
	params, told := r.traced(c.trace, c.msg.Params, n)
	m := &jsonrpc.Message{Params: jsonrpc.Replace(params, append(edits, told...)...), Extra: c.msg.Extra}
	if len(c.others) == 0 {
		c.msg, c.notes = nil, nil
	}
	if err := c.Forward(r.Call, m); err != nil && err != peer.ErrCancelled {
		s.wg.Go(func() { r.answered(jsonrpc.NewError(r.ID, u.unsent(err))) }) // which waits for room
	}
}

// keep counts so many bytes of a request, which are kept until it is answered. It reports
// false if there is no room for them.
func (s *session) keep(c *call, bytes int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	more := bytes - c.kept
	if more <= 0 || !c.Open() { // release has been called, and takes nothing off any more
		return true
	}
	ok := s.kept.add(more)
	if ok {
		c.kept = bytes
	}
	return ok
}

// release takes off what keep has counted.
func (s *session) release(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.free(c.kept)
	c.kept = 0
}

// ownToken puts a minted id in the place of the client's progress token in a
// request of the session's own: nobody waits for progress on it, but the token
// could be taken for one of ours.
func ownToken(method string, params json.RawMessage, id jsonrpc.ID) json.RawMessage {
	n := mcp.ReadParams(method, params)
	if n.Err(mcp.InMeta, mcp.Token) != nil || !n.Has(mcp.Token) {
		return params
	}
	return jsonrpc.Replace(params, jsonrpc.Edit{Span: n.At(mcp.Token), With: id.Raw()})
}

// settleNow is settle for who must not wait for room.
func (s *session) settleNow(c *call, answer *jsonrpc.Message) {
	if s.take(c) {
		s.deliver(c, answer, c.Answer)
	}
}

// fail settles c with an error of the proxy's own, without waiting.
func (s *session) fail(c *call, err *jsonrpc.Error) {
	s.settleNow(c, jsonrpc.NewError(c.ID, err))
}

func invalidParams(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: " + reason}
}

func methodNotFound(method string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + method}
}

func errMissing(key string) error { return fmt.Errorf("%q is missing or not a string", key) }

// A request is one that this side sent on an upstream connection and that is not answered.
type request struct {
	*peer.Call
	conn *upstreamConn
	call *call                  // whose it is; nil for the session's own
	told func(*jsonrpc.Message) // of notifications that belong to it; nil for nobody

	token []byte // the client's progress token, as it came; nil for none

	// Guarded by session.mu.
	timer *time.Timer
	asks  int // open server requests that it may be the reason of, see askers

	began  time.Duration        // when it was sent, by session.now, if a hook wants to know of it
	over   atomic.Int64         // likewise: when it was answered; zero before
	ended  observe.Outcome      // likewise: how a result says that it has. Set before over
	listed *observe.Listed      // likewise: the tool or prompt that it is for. Set before it is sent
	trace  observe.RequestTrace // set before it is sent; nil: nobody follows it
}

func (u *upstreamConn) newRequest(a *attempt, method string) *request {
	r := &request{Call: a.peer.NewCall(method), conn: u}
	r.Value = r
	return r
}

// requestOf returns the request that a call on an upstream connection is; nil for none.
func requestOf(c *peer.Call) *request {
	if c == nil {
		return nil
	}
	r, _ := c.Value.(*request)
	return r
}

// settle gives r, which was taken out of its upstream connection's table, its answer.
func (r *request) settle(answer *jsonrpc.Message, lost *peer.Lost) {
	if lost != nil {
		r.answered(jsonrpc.NewError(r.ID, lost.Wire(jsonrpc.CodeInternalError, r.conn.up.Name)))
		return
	}
	r.conn.hears(answer)
	r.answered(answer)
}

// answered answers the call of r. An upstream that does not know a resource may not be the
// last to be asked.
func (r *request) answered(answer *jsonrpc.Message) {
	c, s := r.call, r.conn.s
	if len(c.others) > 0 && answer.Error != nil && unaware(answer.Error) {
		next := c.others[0]
		c.others = c.others[1:]
		s.forward(c, next)
		return
	}
	if c.era == mcp.Modern {
		s.settle(c, c.checked(r.conn, answer))
		return
	}
	s.settle(c, &jsonrpc.Message{ID: c.ID, Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
}
