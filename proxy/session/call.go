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
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A call is one request of the client, from its arrival until it is settled or
// cancelled.
type call struct {
	// Static after construction.
	id        jsonrpc.ID
	method    string
	batch     *batch // the array that the answer goes into; nil for none
	era       mcp.Era
	upstreams *upstreamSet // the upstreams when it came
	view      *view        // what its client sees of them; nil if its claim is wrong
	level     int          // of log messages that it asked for, from 1 for debug; 0 for none; modern era only
	tasks     bool         // may be answered with a task, by the extension; modern era only

	// extended tells that the client declares extensions that are not known here,
	// so that an answer may be of a kind that is not; modern era only.
	extended bool

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

	acked atomic.Bool // a subscription: the client was told what is honoured, and others may follow

	tool    string   // that an upstream is called for, by its name there
	watched *watched // nil if no hook wants to know of it

	// Guarded by session.mu, and set only while the call is in the table: who
	// takes it reads them freely.
	after   func(answer *jsonrpc.Message) // sees the answer before the client does
	request *request                      // the forwarded request, once there is one
	cancel  context.CancelFunc            // ends the goroutine that works on the call, if one does
}

// begin enters a request into the table of calls; all calls begin here. It returns false if it has
// answered the request itself: there is no room for it, or its id is taken.
func (s *session) begin(c *call) bool {
	c.upstreams = s.upstreams.of(c.era)
	s.tellCall(c)
	s.mu.Lock()
	_, taken := s.calls[c.id]
	full := len(s.calls) >= s.inFlight
	ending := s.phase >= draining
	s.unsettled++
	if !taken && !full && !ending {
		s.calls[c.id] = c
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	switch {
	case taken: // with the id, the error would settle the first call at the client
		s.deliver(c, jsonrpc.NewError(jsonrpc.ID{}, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the id is in use by a request in flight"}), s.send)
	case ending:
		s.deliver(c, jsonrpc.NewError(c.id, c.endingError(jsonrpc.NotSent)), s.send)
	default:
		s.deliver(c, jsonrpc.NewError(c.id, jsonrpc.Overloaded("")), s.send)
	}
	return false
}

// take takes a call out of the table and reports whether it was there: whoever
// takes it settles it. The forwarded request goes with it. Once the session's
// ctx has ended only takeAll takes: what was interrupted by that end would pass
// for an answer.
func (s *session) take(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.id] != c || s.ctx.Err() != nil { // settled before; the id may be in use again
		return false
	}
	delete(s.calls, c.id)
	if c.request != nil {
		c.request.removeLocked()
	}
	return true
}

// settle answers c, unless somebody else has taken it. An answer that waits for
// room in the outbox slows the stream that it came from.
func (s *session) settle(c *call, answer *jsonrpc.Message) {
	if !s.take(c) {
		s.drop("late answer", answer)
		return
	}
	c.stop()
	s.deliver(c, answer, s.out.wait)
}

// deliver hands the answer of a call that was taken to put; all calls end here. A nil answer is that
// of a cancelled call.
func (s *session) deliver(c *call, answer *jsonrpc.Message, put func(*jsonrpc.Message)) {
	if answer != nil && c.after != nil {
		c.after(answer)
	}
	s.tellAnswer(c, answer)
	if c.batch != nil {
		answer = s.collect(c.batch, answer)
	}
	if answer != nil {
		put(answer)
	}
	s.mu.Lock()
	s.unsettled--
	s.checkIdleLocked()
	s.mu.Unlock()
}

// stop ends the goroutine and the timer of a call that was taken.
func (c *call) stop() {
	if c.cancel != nil {
		c.cancel()
	}
	if c.request != nil && c.request.timer != nil {
		c.request.timer.Stop()
	}
}

// phase tells whether c, which was taken, may have run. A subscription runs from its
// beginning.
func (c *call) phase() jsonrpc.Phase {
	if c.request != nil && c.request.sent || c.method == mcp.MethodListen {
		return jsonrpc.InFlight
	}
	return jsonrpc.NotSent
}

// work runs fn for a call that takes more than one message to answer. Its ctx
// ends when the call is cancelled or the session ends; it settles the call.
func (s *session) work(c *call, fn func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	current := s.calls[c.id] == c
	if current {
		c.cancel = cancel
	}
	s.mu.Unlock()
	if !current {
		cancel()
		return
	}
	s.wg.Go(func() {
		defer cancel()
		fn(ctx)
	})
}

// whenAnswered makes fn see the answer of c before the client does.
func (s *session) whenAnswered(c *call, fn func(answer *jsonrpc.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.id] == c {
		c.after = fn
	}
}

// cancelled handles the client's notifications/cancelled: the call is answered
// by nobody from here on. Nothing happens for an id that is unknown, settled or
// none at all, nor for initialize, which must not be cancelled (2025-11-25
// basic/utilities/cancellation).
func (s *session) cancelled(m *jsonrpc.Message, n *mcp.Notes) {
	if err := n.Err(mcp.Key); err != nil {
		s.log.Debug("unusable cancellation", "err", err)
		return
	}
	id, ok := n.ID(mcp.Key)
	if !ok {
		return
	}
	s.mu.Lock()
	c := s.calls[id]
	s.mu.Unlock()
	if c == nil || c.method == mcp.MethodInitialize || !s.take(c) {
		return
	}
	c.stop()
	if r := c.request; r != nil && r.sent {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: n.At(mcp.Key), With: r.id.Raw()})
		r.conn.tell(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	}
	s.deliver(c, nil, s.send)
}

// A batch collects the answers to the requests of one array.
type batch struct {
	missing int // guarded by session.mu
	answers []*jsonrpc.Message
}

// collect adds the answer of one call, nil if it was cancelled, and returns the
// array once it is complete; an empty array is never sent.
func (s *session) collect(b *batch, answer *jsonrpc.Message) *jsonrpc.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer != nil {
		b.answers = append(b.answers, answer)
	}
	if b.missing--; b.missing > 0 || len(b.answers) == 0 {
		return nil
	}
	return &jsonrpc.Message{Batch: b.answers}
}

// forward sends the call to an upstream, with an id and a progress token of its
// own. The edits are to the call's params.
func (s *session) forward(c *call, u *upstreamConn, edits ...jsonrpc.Edit) {
	n := c.notes
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.id] != c {
		return // cancelled meanwhile
	}
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, u.ownTask)...)
	r := u.mintLocked()
	r.call, c.request = c, r
	if n.Has(mcp.Token) {
		r.token = bytes.Clone(n.Raw(mcp.Token))
		edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Token), With: r.id.Raw()})
	}
	m := &jsonrpc.Message{ID: r.id, Method: c.method, Params: jsonrpc.Replace(c.msg.Params, edits...), Extra: c.msg.Extra}
	if len(c.others) == 0 {
		c.msg, c.notes = nil, nil
	}
	r.startTimerLocked()
	u.sendLocked(r, m)
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

// settleNow is settle for readLoop, which must not wait for room.
func (s *session) settleNow(c *call, answer *jsonrpc.Message) {
	if s.take(c) {
		s.deliver(c, answer, s.send)
	}
}

// fail settles c with an error of the proxy's own, without waiting.
func (s *session) fail(c *call, err *jsonrpc.Error) {
	if s.take(c) {
		c.stop()
		s.deliver(c, jsonrpc.NewError(c.id, err), s.send)
	}
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
	conn *upstreamConn
	id   jsonrpc.ID // minted; its integer is the progress token, too
	n    int64
	call *call                  // whose it is; nil for the session's own
	told func(*jsonrpc.Message) // of notifications that belong to it; nil for nobody
	done func(answer *jsonrpc.Message)

	token []byte // the client's progress token, as it came; nil for none

	// Guarded by session.mu.
	sent   bool // its write has begun
	marked bool // see markAll
	timer  *time.Timer
	asks   int // open server requests that it may be the reason of, see askersLocked

	watched *watched // nil if it was not sent, or no hook wants to know of it
}

// removeLocked takes r out of its upstream connection's table.
func (r *request) removeLocked() {
	if r.conn.pending[r.n] == r {
		delete(r.conn.pending, r.n)
		r.tellEnd(nil)
	}
}

// settle gives r, which was taken out of its upstream connection's table, its answer. An
// upstream that does not know a resource may not be the last to be asked.
func (r *request) settle(answer *jsonrpc.Message) {
	r.tellEnd(answer)
	c := r.call
	if c == nil {
		r.done(answer)
		return
	}
	s := r.conn.s
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
	s.settle(c, &jsonrpc.Message{ID: c.id, Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
}
