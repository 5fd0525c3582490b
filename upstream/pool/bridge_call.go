package pool

import (
	"encoding/json"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

type callState int

const (
	waiting   callState = iota // for a lane, or for its lane to be ready
	forwarded                  // to the server, and a client waits for its answer
	parked                     // as forwarded, but the client was told to come back with input
	ghost                      // given up: the server may still be at it
)

// A call is one request to a legacy server, and what a modern client knows of it:
// one request after the other, if the server asks something. Guarded by tenant.mu,
// but for what is static.
type bridged struct {
	// Static after construction.
	method string
	params json.RawMessage // as the client sent them first; nil once they are sent, if they are large
	extra  []byte          // of the request; nil once it is sent
	group  *group

	translate.Request               // the newest of the client's
	r                 *peer.Request // which that is; nil while nobody waits
	s                 *client       // of that

	state      callState
	serverInfo json.RawMessage // of its session
	restarts   byte            // times that it was refused until URLs are visited
	lane       *lane           // nil while it has none
	*peer.Call                 // in the lane, once it is forwarded

	questions []*inquiry       // not answered, in order
	asked     int              // questions ever
	collect   *timers.Timer    // until the questions of a moment are there
	park      *park            // nil if it never was
	receipt   *receipt         // of the state that the newest request came with
	result    *jsonrpc.Message // the answer, if it came while parked
	digest    *[32]byte        // of the request: see digestOf; nil until it is needed

	progress struct {
		last json.RawMessage  // params, sent last
		kept *jsonrpc.Message // held back while parked
	}
}

// newCall returns the call of a request. What is large is not kept until the server
// answers; so its digest, which may be needed then, is taken now.
func newBridged(m *jsonrpc.Message) *bridged {
	c := &bridged{method: m.Method, params: m.Params, extra: m.Extra}
	if len(m.Params) > maxCanonical {
		digest := digestOf(c.method, c.params)
		c.digest = &digest
	}
	return c
}

// digestNow returns the digest of the request. It needs no lock.
func (c *bridged) digestNow() [32]byte {
	if c.digest != nil {
		return *c.digest
	}
	return digestOf(c.method, c.params)
}

// keepLocked keeps the answer to a call until its client comes back for it.
func (c *bridged) keepLocked(m *jsonrpc.Message) {
	t := c.group.t
	if t.kept+m.Size() > maxKept {
		m = jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.InvalidResponse(t.id.upstream, "no room for the answer"))
	}
	c.result = m
	t.kept += m.Size()
}

// keptLocked returns the answer that was kept, nil for none, and keeps it no longer.
func (c *bridged) keptLocked() *jsonrpc.Message {
	m := c.result
	if m != nil {
		c.group.t.kept -= m.Size()
	}
	c.result = nil
	return m
}

// finish answers the client with the server's answer to a call, which has left its
// lane. It reads the answer without the lock.
func (c *bridged) finish(m *jsonrpc.Message) {
	answer, urls := c.modernAnswer(m)
	var digest [32]byte
	if urls != nil {
		digest = c.digestNow()
	}
	t := c.group.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if urls != nil {
		answer = c.restartLocked(urls, digest)
	}
	c.settleLocked(answer)
}

// modernAnswer returns what a client is to hear of a server's answer, without the id;
// or the requests for input that the server's refusal amounts to.
func (c *bridged) modernAnswer(m *jsonrpc.Message) (answer *jsonrpc.Message, urls []byte) {
	switch {
	case m.Error != nil:
		answer, urls = c.modernError(m.Error)
		if answer != nil {
			answer.Extra = m.Extra
		}
		return answer, urls
	case len(m.Result) == 0 || m.Result[0] != '{':
		return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.InvalidResponse(c.group.t.id.upstream, "result is not an object")), nil
	}
	result := m.Result
	if c.method == mcp.MethodToolsList {
		var left []string
		if result, left = translate.WithoutTaskTools(result); len(left) > 0 {
			c.group.t.b.logger().Debug("tools left out: they run as tasks only", "upstream", c.group.t.id.upstream, "tools", left)
		}
	}
	return &jsonrpc.Message{Result: translate.Completed(c.method, result, c.serverInfo), Extra: m.Extra}, nil
}

// modernError is modernAnswer for an error.
func (c *bridged) modernError(text json.RawMessage) (answer *jsonrpc.Message, urls []byte) {
	e, ok := translate.ReadError(text)
	switch {
	case ok && e.Code == mcp.CodeURLElicitation && mcp.MethodOf(c.method).Asks:
		return c.urlsOf(e)
	case ok && !mcp.MethodOf(c.method).Bridged() && isBadRequest(text):
		return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.MethodNotFound(c.method)), nil
	}
	return &jsonrpc.Message{Error: translate.ToModernError(text)}, nil
}

// isBadRequest reports whether a server answered a POST with status 400. Servers of the
// Go SDK say so that they do not know a method.
func isBadRequest(text json.RawMessage) bool {
	data := jsonrpc.ReadErrorData(text)
	return data.Reason == jsonrpc.ReasonClosed && jsonrpc.HTTPStatus(data.Cause) == http.StatusBadRequest
}

// settleLocked answers the request of a call, unless nobody waits for that any more,
// and forgets the call.
func (c *bridged) settleLocked(answer *jsonrpc.Message) {
	c.answerLocked(answer)
	c.forgetLocked()
}

// answerLocked answers the request of a call.
func (c *bridged) answerLocked(answer *jsonrpc.Message) {
	if c.r == nil {
		return
	}
	r := c.r
	c.r = nil
	if !r.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra}) {
		return // it is cancelled at this moment
	}
	if c.receipt != nil {
		c.group.t.receipts.answered(c.receipt, answer)
		c.receipt = nil
	}
}

// forgetLocked lets go of what is kept for a call that is over.
func (c *bridged) forgetLocked() {
	c.collect.Stop()
	c.keptLocked()
	if c.park != nil {
		c.park.forgetLocked()
	}
}

// cancelLocked ends a call that its client does not want any more. The reason may be
// nil.
func (c *bridged) cancelLocked(reason json.RawMessage) {
	c.r = nil
	c.dropLocked(reason, errGone)
}

// dropLocked ends a call that nobody wants the answer of. The server hears one thing:
// why as the answer to what it has asked for the call, else that the call is cancelled,
// and the reason.
func (c *bridged) dropLocked(reason json.RawMessage, why *jsonrpc.Error) {
	c.forgetLocked()
	switch {
	case c.lane == nil:
		c.group.leaveLocked(c)
	case c.state == waiting:
		c.lane.dismissLocked(c)
	case len(c.questions) > 0:
		c.refuseLocked(why)
		c.lane.fadeLocked(c)
	default:
		c.lane.cancelLocked(c, reason)
	}
}

// dismissLocked takes a call out that the lane has not sent.
func (l *lane) dismissLocked(c *bridged) {
	for i, other := range l.waiting {
		if other == c {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			break
		}
	}
	c.leaveLaneLocked()
}

// fadeLocked leaves a call to itself. It is cancelled if it has not ended in time, and the
// lane goes on.
func (l *lane) fadeLocked(c *bridged) {
	c.state = ghost
	c.collect = l.t.after(fadeFor, func() {
		if c.lane != nil && l.state != laneEnded {
			l.cancelLocked(c, nil)
		}
	})
}

// cancelLocked tells the server that a call is cancelled, if it was sent. It may not hear
// that at once, so that the call stays in the lane for a while: what is asked meanwhile may
// be about it.
func (l *lane) cancelLocked(c *bridged, reason json.RawMessage) {
	if c.Recall() {
		c.leaveLaneLocked()
		return
	}
	c.state = ghost
	if !c.Take() {
		return // it is answered at this moment
	}
	values := []jsonrpc.Value{{Key: "requestId", Text: c.ID.Raw()}, {Key: "reason", Text: reason}}
	l.server.Send(jsonrpc.NewNotification(mcp.MethodCancelled, jsonrpc.Set(nil, values...)))
	if !c.Works {
		c.leaveLaneLocked()
		return
	}
	c.collect = l.t.after(lingering, func() {
		if c.lane != nil {
			c.leaveLaneLocked()
		}
	})
}
