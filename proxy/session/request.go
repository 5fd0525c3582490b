package session

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A request is a request of the client, from its arrival until it is settled or cancelled.
type request struct {
	*peer.Request
	observed

	// Static after construction.
	bad         *jsonrpc.Error // why it cannot be routed; nil if it can
	era         mcp.Era
	upstreams   *upstreamSet   // the upstreams when it came
	caps        catalog.Digest // of the client's capabilities, see lists.Client
	grant       *policy.Grant  // of the client; nil without policies
	clientClaim                // modern era only

	// retry means that only the upstream that asked for the request may get it; modern era only.
	// Set before the request is forwarded.
	retry bool

	// msg is the request as it came. The goroutine that works on the request owns it. It is nil
	// after the last forward, so that its bytes are not kept until the answer.
	msg   *jsonrpc.Message
	notes *mcp.Notes // of msg

	// others are the upstreams to ask in turn if the previous one does not have the resource, see
	// lacksResource. Owned by whoever settles the call.
	others []*upstreamConn

	// kind is the resultType of the answer; modern era only. Owned by whoever settles the call.
	kind string

	// told is true from the time when the acknowledgment of a subscription is being sent.
	told atomic.Bool

	mu     sync.Mutex                    // guards the fields below; whoever takes the request sees what was set before
	after  func(answer *jsonrpc.Message) // called with the answer before the client gets it
	sent   *call                         // the call to an upstream, once the request is forwarded
	kept   int                           // bytes of the request that count in session.kept
	cancel context.CancelFunc            // ends the goroutine that works on the request, if there is one
	use    *policy.Use                   // its count for the principal; nil for none
}

// observed has the values of a request for hooks.
type observed struct {
	began  time.Duration // arrival, by session.now; zero without hooks
	client string        // the name of a modern client, if hooks are set
	trace  observe.Trace // nil: no trace

	tool   string // the called tool, by the upstream's name. Set before it is sent
	prompt string // likewise
}

// begin creates the request of a peer.Request that is about to be entered. All requests begin here.
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

// take takes a request and reports whether it was open. Whoever takes it settles it. Once the
// session's ctx has ended, only end takes requests, because errors that this end caused are no
// answers.
func (s *session) take(r *request) bool { return s.ctx.Err() == nil && r.Take() }

// settle answers r, unless it was already taken. It waits for room, which slows the stream of the
// answer.
func (s *session) settle(r *request, answer *jsonrpc.Message) {
	if !s.take(r) {
		s.drop("late answer", answer)
		return
	}
	s.deliver(r, answer, r.AnswerWhenRoom)
}

// deliver ends the work on a taken request, and passes the answer to put. All requests end here.
func (s *session) deliver(r *request, answer *jsonrpc.Message, put func(*jsonrpc.Message)) {
	if after := r.stop(); after != nil {
		after(answer)
	}
	s.release(r) // afterwards, because after has counted what it keeps
	s.observeAnswer(r, answer)
	put(answer)
}

// stop ends the goroutine and the timer of a taken request, and returns the function to call with
// the answer.
func (r *request) stop() (after func(answer *jsonrpc.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.use.End()
	if r.cancel != nil {
		r.cancel()
	}
	if r.sent != nil {
		r.sent.timeout.stop()
	}
	return r.after
}

// count makes the request count for its principal until it is over.
func (r *request) count(use *policy.Use) {
	r.mu.Lock()
	r.use = use
	r.mu.Unlock()
	if !r.Open() { // whoever took it may have looked before
		use.End()
	}
}

// takeUse takes the count out of the request; the caller ends it.
func (r *request) takeUse() (use *policy.Use) {
	r.mu.Lock()
	defer r.mu.Unlock()
	use, r.use = r.use, nil
	return use
}

// works reports whether a goroutine works, or has worked, on the request.
func (r *request) works() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancel != nil
}

// call returns the call to an upstream, nil if the request was not forwarded.
func (r *request) call() *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// phase reports whether r, which was taken, may have run. A subscription runs from its beginning.
func (r *request) phase() jsonrpc.Phase {
	if call := r.Forwarded(); call != nil && call.Sent() || r.Method == mcp.MethodListen {
		return jsonrpc.InFlight
	}
	return jsonrpc.NotSent
}

// work runs fn in a goroutine, for a request that needs more than one call. fn must settle the
// request. Its ctx ends when the request is cancelled or the session ends. If the request is
// already over, work returns false and does not run fn.
func (s *session) work(r *request, fn func(ctx context.Context)) bool {
	ctx, cancel := context.WithCancel(withTrace(s.ctx, r))
	r.mu.Lock()
	r.cancel = cancel
	r.mu.Unlock()
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

// whenAnswered sets the function to call with the answer to r before the client gets it.
func (s *session) whenAnswered(r *request, fn func(answer *jsonrpc.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.after = fn
}

// cancelled ends a request that the client cancels, by m, or that the end of the client has taken;
// then m is nil, and the streams to the upstreams end, too.
func (s *session) cancelled(pr *peer.Request, m *jsonrpc.Message, at jsonrpc.Span) {
	r := pr.Value.(*request)
	use := r.takeUse()
	r.stop()
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

// forward sends the request to an upstream, with its own id and progress token. The edits apply to
// the request's params.
func (s *session) forward(r *request, u *upstreamConn, edits ...jsonrpc.Edit) {
	n := r.notes
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		s.fail(r, jsonrpc.InvalidParams(err.Error()))
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
	a, cold := u.enterFor(n)
	c := u.newCall(a, r.Method)
	c.request, c.Done, c.Works = r, c.settle, true
	r.mu.Lock()
	cold = cold && r.sent == nil // else the client was told
	r.sent = c
	c.timeout.start(c)
	r.mu.Unlock()
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, u.ownTask)...)
	if n.Has(mcp.Token) {
		c.token = bytes.Clone(n.Raw(mcp.Token))
		edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Token), With: c.ID.Raw()})
		if cold && u.lists.IsLazy() {
			time.AfterFunc(startPatience, func() { c.tellStart(a) })
		}
	}
	if r.began != 0 { // hooks are set
		c.listed = r.listedBy(u)
	}
	params, told := c.traced(r.trace, r.msg.Params, n)
	m := &jsonrpc.Message{Params: jsonrpc.Replace(params, append(edits, told...)...), Extra: r.msg.Extra}
	if len(r.others) == 0 {
		r.msg, r.notes = nil, nil
	}
	err := r.Forward(c.Call, m)
	a.leave()
	if err != nil && err != peer.ErrCancelled {
		// In a goroutine, because it waits for room.
		s.wg.Go(func() { c.answered(jsonrpc.NewError(c.ID, u.unsent(err))) })
	}
}

// keep counts bytes of a request that are kept until its answer. It returns false if there is no
// room for them.
func (s *session) keep(r *request, bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	more := bytes - r.kept
	if more <= 0 || !r.Open() { // release has been called, or will not free more
		return true
	}
	ok := s.reserve(more)
	if ok {
		r.kept = bytes
	}
	return ok
}

// release undoes keep.
func (s *session) release(r *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.kept.Add(-int64(r.kept))
	r.kept = 0
}

// ownToken replaces the client's progress token in a call of the session's own. No client waits for
// its progress, but the token could be mistaken for one of the session's.
func ownToken(method string, params json.RawMessage, id jsonrpc.ID) json.RawMessage {
	n := mcp.ReadParams(method, params)
	if n.Err(mcp.InMeta, mcp.Token) != nil || !n.Has(mcp.Token) {
		return params
	}
	return jsonrpc.Replace(params, jsonrpc.Edit{Span: n.At(mcp.Token), With: id.Raw()})
}

// settleNow is settle without waiting for room.
func (s *session) settleNow(r *request, answer *jsonrpc.Message) {
	if s.take(r) {
		s.deliver(r, answer, r.Answer)
	}
}

// fail settles r with an error of the proxy, without waiting.
func (s *session) fail(r *request, err *jsonrpc.Error) {
	s.settleNow(r, jsonrpc.NewError(r.ID, err))
}

// A call is a request that this side sent on an upstream connection.
type call struct {
	*peer.Call
	conn           *upstreamConn
	request        *request               // that it serves; nil for the session's own
	onNotification func(*jsonrpc.Message) // handles notifications that belong to it; nil: dropped

	token []byte // the client's progress token, as it came; nil for none

	timeout timeout // with a lock of its own

	began  time.Duration     // when it was sent, by session.now, if hooks are set
	over   atomic.Int64      // likewise: when it was answered; zero before
	ended  observe.Outcome   // likewise: the outcome that a result states. Set before over
	listed *atomic.Value     // likewise: the tool or prompt of the call. Set before it is sent
	trace  observe.CallTrace // set before it is sent; nil: no trace
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

// settle answers c, which was taken out of its upstream connection's table.
func (c *call) settle(answer *jsonrpc.Message, lost *peer.Lost) {
	if lost != nil {
		c.answered(jsonrpc.NewError(c.ID, lost.Wire(jsonrpc.CodeInternalError, c.conn.up.Name)))
		return
	}
	c.conn.noteAnswer(answer)
	c.answered(answer)
}

// answered answers the request of c, or asks the next upstream if this one does not have the
// resource.
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
