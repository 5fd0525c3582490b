package eras

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

type callState int

const (
	waiting   callState = iota // for a session, or until its session is ready
	forwarded                  // to the server; a client waits for the answer
	suspended                  // forwarded; the client was told to come back with input
	cancelled                  // abandoned; the server may still work on it
)

// A modernCall is one request to a legacy server, and the one or more requests of a modern client for it: one
// after the other if the server asks something. Its methods are called with account.mu held, unless they say
// otherwise.
type modernCall struct {
	// Static after construction.
	method  string
	params  json.RawMessage    // of the first request; nil once sent if large
	extra   []byte             // of the request; nil once it is sent
	headers *jsonrpc.Forwarded // that came with it; nil for none
	group   *group

	modernRequest               // the client's newest request
	r             *peer.Request // the newest request; nil while no client waits
	s             *modernClient // the stream of r

	state      callState
	serverInfo json.RawMessage // of its session
	restarts   byte            // number of refusals until URLs were visited
	session    *legacySession  // nil while it has none
	*peer.Call                 // in the session, once it is forwarded

	requests   []*peer.Request  // of the server, not answered, in order; Value is the key in inputRequests
	asked      int              // number of requests of the server
	collect    *timers.Timer    // runs while further requests are awaited
	suspension *suspension      // nil if it was never suspended
	stored     *storedAnswer    // for the requestState of the newest request
	result     *jsonrpc.Message // the answer, if it came while suspended
	digest     *[32]byte        // see digestOf; nil until needed

	progress struct {
		last json.RawMessage  // params, sent last
		kept *jsonrpc.Message // received while suspended
	}
}

// newModernCall returns the call of a request. The digest of large params is taken now, since they are not kept
// until the answer.
func newModernCall(m *jsonrpc.Message) *modernCall {
	c := &modernCall{method: m.Method, params: m.Params, extra: m.Extra, headers: m.Forwarded}
	if len(m.Params) > maxCanonical {
		digest := digestOf(c.method, c.params)
		c.digest = &digest
	}
	return c
}

// works reports whether the server works on the call, and may ask about it.
func (c *modernCall) works() bool { return mcp.MethodOf(c.method).Works }

func (c *modernCall) progressToken() json.RawMessage { return c.Token }

// digestNow returns the digest of the request. It needs no lock.
func (c *modernCall) digestNow() [32]byte {
	if c.digest != nil {
		return *c.digest
	}
	return digestOf(c.method, c.params)
}

// keep stores the answer to a call until its client returns.
func (c *modernCall) keep(m *jsonrpc.Message) {
	a := c.group.a
	if a.kept+m.Size() > maxKept {
		m = jsonrpc.Failure(jsonrpc.InvalidResponse(a.id.upstream, "no room for the answer"))
	}
	c.result = m
	a.kept += m.Size()
}

// takeKept removes the stored answer and returns it; nil if there is none.
func (c *modernCall) takeKept() *jsonrpc.Message {
	m := c.result
	if m != nil {
		c.group.a.kept -= m.Size()
	}
	c.result = nil
	return m
}

// finish answers the client with the server's answer to a call that has left its session. It takes the lock, but
// rewrites the answer without it.
func (c *modernCall) finish(m *jsonrpc.Message) {
	a := c.group.a
	a.mu.Lock()
	client := c.clientID()
	a.mu.Unlock()
	answer, urls := c.modernAnswer(m, client)
	var digest [32]byte
	if urls != nil {
		digest = c.digestNow()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if urls != nil {
		answer = c.restart(urls, digest)
	}
	c.settle(answer)
}

// modernAnswer returns the answer for the client without an id, or the requests for input that a refusal by the
// server amounts to. client is the client's id. It needs no lock.
func (c *modernCall) modernAnswer(m *jsonrpc.Message, client jsonrpc.ID) (answer *jsonrpc.Message, urls []byte) {
	switch {
	case m.Error != nil:
		answer, urls = c.modernError(mcp.AnsweredAs(m.Error, c.ID, client))
		if answer != nil {
			answer.Extra = m.Extra
		}
		return answer, urls
	case len(m.Result) == 0 || m.Result[0] != '{':
		return jsonrpc.Failure(jsonrpc.InvalidResponse(c.group.a.id.upstream, "result is not an object")), nil
	}
	result := m.Result
	if c.method == mcp.MethodToolsList {
		var left []string
		if result, left = withoutTaskTools(result); len(left) > 0 {
			c.group.a.life.log.Debug("tools left out: they run only as tasks", "upstream", c.group.a.id.upstream, "tools", left)
		}
	}
	converted, ok := withOwnKind(completed(c.method, result, c.serverInfo), result, c.method, c.Capabilities)
	if !ok {
		return jsonrpc.Failure(jsonrpc.InvalidResponse(c.group.a.id.upstream, unknownResultType)), nil
	}
	return &jsonrpc.Message{Result: withSubscription(converted, result, c.ID, client), Extra: m.Extra}, nil
}

// modernError is modernAnswer for an error. It needs no lock.
func (c *modernCall) modernError(text json.RawMessage) (answer *jsonrpc.Message, urls []byte) {
	e, ok := readError(text)
	switch {
	case ok && e.Code == mcp.CodeURLElicitation && mcp.MethodOf(c.method).Asks:
		return c.urlsOf(e)
	case ok && !mcp.MethodOf(c.method).Bridged() && isBadRequest(text):
		return jsonrpc.Failure(jsonrpc.MethodNotFound(c.method)), nil
	}
	return &jsonrpc.Message{Error: toModernError(c.method, text)}, nil
}

// isBadRequest reports whether a server answered a POST with status 400, as servers of the Go SDK do for unknown
// methods.
func isBadRequest(text json.RawMessage) bool {
	data := jsonrpc.ReadErrorData(text)
	return data.Reason == jsonrpc.ReasonClosed && data.Cause == jsonrpc.HTTPCause(http.StatusBadRequest)
}

// settle answers the request of a call, if a client still waits, and forgets the call.
func (c *modernCall) settle(answer *jsonrpc.Message) {
	c.answer(answer)
	c.forget()
}

// answer answers the request of a call.
func (c *modernCall) answer(answer *jsonrpc.Message) {
	if c.r == nil {
		return
	}
	if !c.r.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra}) {
		return // it is being cancelled, and cancelled finds it
	}
	c.r = nil
	if c.stored != nil {
		c.group.a.answers.answered(c.stored, answer)
		c.stored = nil
	}
}

// forget releases what is kept for a call that has ended.
func (c *modernCall) forget() {
	c.collect.Stop()
	c.takeKept()
	if c.suspension != nil {
		c.suspension.forget()
	}
}

// cancel ends a call that its client has cancelled, with a reason that may be nil.
func (c *modernCall) cancel(reason json.RawMessage) {
	c.r = nil
	c.drop(reason, peer.ErrClientGone)
}

// drop ends an abandoned call. The server gets one stimulus: why, as the answer to its open requests, or a
// cancellation with the reason.
func (c *modernCall) drop(reason json.RawMessage, why *jsonrpc.Error) {
	c.forget()
	switch {
	case c.session == nil:
		c.group.leave(c)
	case c.state == waiting:
		c.session.dismiss(c)
	case len(c.requests) > 0:
		c.refuse(why)
		c.session.fade(c)
	default:
		c.session.cancel(c, reason)
	}
}

// dismiss removes a call that was not sent.
func (l *legacySession) dismiss(c *modernCall) {
	l.waiting = slices.DeleteFunc(l.waiting, func(other *modernCall) bool { return other == c })
	c.leaveSession()
}

// fade gives a call time to end by itself, and then cancels it.
func (l *legacySession) fade(c *modernCall) {
	c.state = cancelled
	c.collect = l.a.after(peer.FadeFor, func() {
		if c.session != nil && l.state != sessionEnded {
			l.cancel(c, nil)
		}
	})
}

// cancel cancels a call at the server, if it was sent. The call stays in the session for a while, since requests
// of the server may still belong to it.
func (l *legacySession) cancel(c *modernCall, reason json.RawMessage) {
	if c.Recall() {
		c.leaveSession()
		return
	}
	c.state = cancelled
	if !c.Take() {
		return // it is being answered
	}
	values := []jsonrpc.Value{{Key: "requestId", Text: c.ID.Raw()}, {Key: "reason", Text: reason}}
	l.server.Send(jsonrpc.NewNotification(mcp.MethodCancelled, jsonrpc.Set(nil, values...)))
	if !c.Works {
		c.leaveSession()
		return
	}
	c.collect = l.a.after(peer.Lingering, func() {
		if c.session != nil {
			c.leaveSession()
		}
	})
}

const (
	collectFor      = 25 * time.Millisecond  // requests of a server within this time are sent to the client together
	startCollectFor = 250 * time.Millisecond // longer, since a request at the start of a server may not belong to the call
	maxRounds       = 8                      // of one call; further requests of the server are refused
)

// gather waits for further requests of the server before the client is asked.
func (c *modernCall) gather(d time.Duration) {
	if c.state == forwarded && c.collect == nil {
		c.collect = c.group.a.life.timers.After(d, c.suspend)
	}
}

// suspend answers the client with the requests of the server. It takes the lock.
func (c *modernCall) suspend() {
	digest := c.digestNow()
	a := c.group.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.state != forwarded || c.r == nil {
		return
	}
	c.collect = nil
	if len(c.requests) == 0 {
		return // the server has cancelled them
	}
	if c.suspension == nil {
		c.suspension = a.newSuspensionLocked(c, digest)
	}
	if c.suspension == nil || c.suspension.round >= maxRounds {
		c.refuse(errTooManyAsks)
		return
	}
	requests := make([]jsonrpc.Value, 0, len(c.requests))
	for _, q := range c.requests {
		requests = append(requests, jsonrpc.Value{Key: q.Value.(string), Text: asInputRequest(q.Method, q.Message.Params)})
	}
	c.state = suspended
	c.answer(&jsonrpc.Message{Result: inputRequired(jsonrpc.Set(nil, requests...), c.suspension.newState(), c.serverInfo)})
	c.group.makeRoom()
}
