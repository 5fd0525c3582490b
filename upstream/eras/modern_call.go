package eras

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

type callState int

const (
	waiting   callState = iota // for a session, or for its session to be ready
	forwarded                  // to the server, and a client waits for its answer
	suspended                  // as forwarded, but the client was told to come back with input
	cancelled                  // given up: the server may still be at it
)

// A modernCall is one request to a legacy server, and what a modern client knows of it:
// one request after the other, if the server asks something. Its methods are called with
// account.mu held, but for those that say otherwise.
type modernCall struct {
	// Static after construction.
	method string
	params json.RawMessage // as the client sent them first; nil once they are sent, if they are large
	extra  []byte          // of the request; nil once it is sent
	group  *group

	Request               // the newest of the client's
	r       *peer.Request // which that is; nil while nobody waits
	s       *modernClient // of that

	state      callState
	serverInfo json.RawMessage // of its session
	restarts   byte            // times that it was refused until URLs are visited
	session    *legacySession  // nil while it has none
	*peer.Call                 // in the session, once it is forwarded

	requests   []*serverRequest // not answered, in order
	asked      int              // requests ever
	collect    *timers.Timer    // until the requests of a moment are there
	suspension *suspension      // nil if it never was
	stored     *storedAnswer    // of the state that the newest request came with
	result     *jsonrpc.Message // the answer, if it came while suspended
	digest     *[32]byte        // of the request: see digestOf; nil until it is needed

	progress struct {
		last json.RawMessage  // params, sent last
		kept *jsonrpc.Message // held back while suspended
	}
}

// newModernCall returns the call of a request. What is large is not kept until the server
// answers; so its digest, which may be needed then, is taken now.
func newModernCall(m *jsonrpc.Message) *modernCall {
	c := &modernCall{method: m.Method, params: m.Params, extra: m.Extra}
	if len(m.Params) > maxCanonical {
		digest := digestOf(c.method, c.params)
		c.digest = &digest
	}
	return c
}

// works reports whether the server works on something for the call, and may ask about that.
func (c *modernCall) works() bool { return mcp.MethodOf(c.method).Works }

// digestNow returns the digest of the request. It needs no lock.
func (c *modernCall) digestNow() [32]byte {
	if c.digest != nil {
		return *c.digest
	}
	return digestOf(c.method, c.params)
}

// keep keeps the answer to a call until its client comes back for it.
func (c *modernCall) keep(m *jsonrpc.Message) {
	a := c.group.a
	if a.kept+m.Size() > maxKept {
		m = jsonrpc.Failure(jsonrpc.InvalidResponse(a.id.upstream, "no room for the answer"))
	}
	c.result = m
	a.kept += m.Size()
}

// takeKept returns the answer that was kept, nil for none, and keeps it no longer.
func (c *modernCall) takeKept() *jsonrpc.Message {
	m := c.result
	if m != nil {
		c.group.a.kept -= m.Size()
	}
	c.result = nil
	return m
}

// finish answers the client with the server's answer to a call, which has left its
// session. It takes the lock, but reads the answer without it.
func (c *modernCall) finish(m *jsonrpc.Message) {
	answer, urls := c.modernAnswer(m)
	var digest [32]byte
	if urls != nil {
		digest = c.digestNow()
	}
	a := c.group.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if urls != nil {
		answer = c.restart(urls, digest)
	}
	c.settle(answer)
}

// modernAnswer returns what a client is to hear of a server's answer, without the id;
// or the requests for input that the server's refusal amounts to. It needs no lock.
func (c *modernCall) modernAnswer(m *jsonrpc.Message) (answer *jsonrpc.Message, urls []byte) {
	switch {
	case m.Error != nil:
		answer, urls = c.modernError(m.Error)
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
		if result, left = WithoutTaskTools(result); len(left) > 0 {
			c.group.a.life.logger().Debug("tools left out: they run only as tasks", "upstream", c.group.a.id.upstream, "tools", left)
		}
	}
	return &jsonrpc.Message{Result: Completed(c.method, result, c.serverInfo), Extra: m.Extra}, nil
}

// modernError is modernAnswer for an error. It needs no lock.
func (c *modernCall) modernError(text json.RawMessage) (answer *jsonrpc.Message, urls []byte) {
	e, ok := ReadError(text)
	switch {
	case ok && e.Code == mcp.CodeURLElicitation && mcp.MethodOf(c.method).Asks:
		return c.urlsOf(e)
	case ok && !mcp.MethodOf(c.method).Bridged() && isBadRequest(text):
		return jsonrpc.Failure(jsonrpc.MethodNotFound(c.method)), nil
	}
	return &jsonrpc.Message{Error: ToModernError(text)}, nil
}

// isBadRequest reports whether a server answered a POST with status 400. Servers of the
// Go SDK say so that they do not know a method.
func isBadRequest(text json.RawMessage) bool {
	data := jsonrpc.ReadErrorData(text)
	return data.Reason == jsonrpc.ReasonClosed && jsonrpc.HTTPStatus(data.Cause) == http.StatusBadRequest
}

// settle answers the request of a call, unless nobody waits for that any more,
// and forgets the call.
func (c *modernCall) settle(answer *jsonrpc.Message) {
	c.answer(answer)
	c.forget()
}

// answer answers the request of a call.
func (c *modernCall) answer(answer *jsonrpc.Message) {
	if c.r == nil {
		return
	}
	r := c.r
	c.r = nil
	if !r.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra}) {
		return // it is cancelled at this moment
	}
	if c.stored != nil {
		c.group.a.answers.answered(c.stored, answer)
		c.stored = nil
	}
}

// forget lets go of what is kept for a call that is over.
func (c *modernCall) forget() {
	c.collect.Stop()
	c.takeKept()
	if c.suspension != nil {
		c.suspension.forget()
	}
}

// cancel ends a call that its client does not want any more. The reason may be
// nil.
func (c *modernCall) cancel(reason json.RawMessage) {
	c.r = nil
	c.drop(reason, peer.ErrClientGone)
}

// drop ends a call that nobody wants the answer of. The server hears one thing:
// why as the answer to what it has asked for the call, else that the call is cancelled,
// and the reason.
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

// dismiss takes a call out that the session has not sent.
func (l *legacySession) dismiss(c *modernCall) {
	for i, other := range l.waiting {
		if other == c {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			break
		}
	}
	c.leaveSession()
}

// fade leaves a call to itself. It is cancelled if it has not ended in time, and the
// session goes on.
func (l *legacySession) fade(c *modernCall) {
	c.state = cancelled
	c.collect = l.a.after(peer.FadeFor, func() {
		if c.session != nil && l.state != sessionEnded {
			l.cancel(c, nil)
		}
	})
}

// cancel tells the server that a call is cancelled, if it was sent. It may not hear
// that at once, so that the call stays in the session for a while: what is asked meanwhile may
// be about it.
func (l *legacySession) cancel(c *modernCall, reason json.RawMessage) {
	if c.Recall() {
		c.leaveSession()
		return
	}
	c.state = cancelled
	if !c.Take() {
		return // it is answered at this moment
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
	collectFor      = 25 * time.Millisecond  // what a server asks together is asked together
	startCollectFor = 250 * time.Millisecond // a call that ends within this time was not what a request of the start is about
	maxSuspended    = 256                    // of one key on one upstream; beyond, see minSuspended, or the server is refused
	maxRounds       = 8                      // of one call; beyond, the server is refused
)

// A suspension is where a call waits whose client was told to come back with input. The
// requestState of each round names it: 128 random bits, that only clients of its key
// can use. Its methods are called with account.mu held.
type suspension struct {
	a      *account
	state  string      // the newest
	call   *modernCall // nil if the call begins anew when its client comes back
	round  byte        // that the newest state is of
	digest [32]byte
	since  time.Time     // that state was given
	expiry time.Time     // of it
	timer  *timers.Timer // until then
}

// newSuspensionLocked returns a suspension; nil if there are too many.
func (a *account) newSuspensionLocked(c *modernCall, digest [32]byte) *suspension {
	if len(a.suspensions) >= maxSuspended && !a.giveUpOldestLocked(func(*suspension) bool { return true }) {
		return nil
	}
	p := &suspension{a: a, state: rand.Text(), call: c, digest: digest}
	a.suspensions[p.state] = p
	a.hold()
	return p
}

// isAtServer reports whether the server is at the call.
func (p *suspension) isAtServer() bool { return p.call != nil && p.call.session != nil }

// newState begins a round and returns its requestState.
func (p *suspension) newState() string {
	delete(p.a.suspensions, p.state)
	p.state = rand.Text()
	p.a.suspensions[p.state] = p
	p.round++
	p.since = time.Now()
	p.expiry = p.since.Add(p.a.life.suspendFor)
	p.timer.Stop()
	p.timer = p.a.after(p.a.life.suspendFor, p.expire)
	return p.state
}

// forget ends a suspension, if that was not done before.
func (p *suspension) forget() {
	if p.a.suspensions[p.state] != p {
		return
	}
	p.timer.Stop()
	delete(p.a.suspensions, p.state)
	p.a.release()
}

// expire ends a call whose client does not come back.
func (p *suspension) expire() {
	switch {
	case p.a.suspensions[p.state] != p, time.Now().Before(p.expiry): // another round has begun
		return
	case p.call != nil && p.call.state != suspended:
		return
	}
	p.end(errNoInput)
}

// end ends a suspension and the call in it, which nobody comes back to. The server
// hears why as the answer to what it asked.
func (p *suspension) end(why *jsonrpc.Error) {
	p.forget()
	if c := p.call; c != nil {
		c.drop(nil, why)
	}
}

// giveUp ends the call of a suspension before its time.
func (p *suspension) giveUp() {
	p.a.life.logger().Debug("suspended call ended early: others need its session", "upstream", p.a.id.upstream)
	p.end(errNoInput)
}

// gather waits for what else is asked before the client hears of it.
func (c *modernCall) gather(d time.Duration) {
	if c.state == forwarded && c.collect == nil {
		c.collect = c.group.a.life.timers.After(d, c.suspend)
	}
}

// suspend answers the client with what the server has asked. It takes the lock.
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
		return // they were taken back
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
		requests = append(requests, jsonrpc.Value{Key: q.key, Text: InputRequest(q.Method, q.Message.Params)})
	}
	c.state = suspended
	c.answer(&jsonrpc.Message{Result: InputRequired(jsonrpc.Set(nil, requests...), c.suspension.newState(), c.serverInfo)})
	c.group.makeRoom()
}
