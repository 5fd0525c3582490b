package translate

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A legacyCall is a request of the client that is not settled. It is sent to the
// upstream, or waits for the client's answers, or for a while, or for a listen.
type legacyCall struct {
	// Static once it is sent.
	id      jsonrpc.ID // the client's
	method  string
	version string          // that the client speaks
	params  json.RawMessage // as the client wrote them, for a retry; nil if there is none
	extra   []byte

	// Guarded by legacy.mu.
	token  json.RawMessage // the client's progress token, as it came; nil for none
	n      int64           // on the modern stream; zero while it is not sent there
	rounds int             // retries
	empty  int             // results in a row that asked for nothing
	last   float64         // progress that the client was told of, if told
	told   bool
	round  *round // what the client is asked; nil for nothing
	pause  *timer
}

var (
	noResult          = json.RawMessage(`{}`)
	errNotInitialized = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: not initialized"}
)

// request handles a request of the client.
func (l *legacy) request(m *jsonrpc.Message) {
	switch m.Method {
	case mcp.MethodInitialize:
		l.initialize(m)
	case mcp.MethodPing: // is about this hop alone
		l.toClient.put(jsonrpc.NewResult(m.ID, noResult))
	case mcp.MethodSetLevel:
		l.setLevel(m)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		l.subscription(m)
	default:
		if mcp.MethodOf(m.Method).Foreign() {
			l.toClient.put(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}))
			return
		}
		l.forward(m)
	}
}

// beginLocked enters a request into the table. It returns nil if it has refused it.
func (l *legacy) beginLocked(m *jsonrpc.Message) *legacyCall {
	switch {
	case l.ended:
		return nil
	case l.calls[m.ID] != nil: // with the id, the error would settle the first call
		l.toClient.put(jsonrpc.NewError(jsonrpc.ID{}, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the id is in use by a request in flight"}))
		return nil
	case len(l.calls) >= maxLegacyCalls:
		l.refuseLocked(m, jsonrpc.Overloaded(l.upstream))
		return nil
	}
	c := &legacyCall{id: m.ID, method: m.Method, extra: m.Extra}
	l.calls[m.ID] = c
	return c
}

// refuseLocked answers a request that was not entered.
func (l *legacy) refuseLocked(m *jsonrpc.Message, err *jsonrpc.Error) {
	l.toClient.put(jsonrpc.NewError(m.ID, err))
}

// forward passes a request on.
func (l *legacy) forward(m *jsonrpc.Message) {
	params := withoutForeign(m.Method, m.Params)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hello == nil {
		l.refuseLocked(m, errNotInitialized)
		return
	}
	c := l.beginLocked(m)
	if c == nil {
		return
	}
	c.version = l.hello.version
	if mcp.MethodOf(m.Method).Asks {
		c.params = params
	}
	l.sendLocked(c, params)
}

// withoutForeign returns params of a legacy client without what means something else in
// the other era. No tasks were declared, and so the rest counts (2025-11-25
// basic/utilities/tasks); and input that nobody asked for is none.
func withoutForeign(method string, params json.RawMessage) json.RawMessage {
	if !mcp.MethodOf(method).Asks {
		return params
	}
	for _, foreign := range foreignKeys {
		if MayHave(params, foreign.Key) {
			params = without(params, foreign)
		}
	}
	return params
}

// without returns an object without a member; the same text if it is not there.
func without(object json.RawMessage, member jsonrpc.Value) json.RawMessage {
	if value, err := jsonrpc.Member(object, member.Key); err == nil && value == nil {
		return object
	}
	return jsonrpc.Set(object, jsonrpc.Value{Key: member.Key})
}

// sendLocked sends a call, or its retry, under an id of its own.
func (l *legacy) sendLocked(c *legacyCall, params json.RawMessage) {
	n := l.mintLocked(modernRequest{call: c, again: c.rounds > 0})
	text, token, err := stamped(params, l.stamp, n)
	if err != nil {
		delete(l.open, n)
		l.failLocked(c, jsonrpc.InvalidParams(err.Error()))
		return
	}
	c.n, c.token = n, token
	l.toModern.put(&jsonrpc.Message{ID: jsonrpc.IntID(n), Method: c.method, Params: text, Extra: c.extra})
}

// answered handles a response of the upstream. One that answers nothing open is
// late, and dropped.
func (l *legacy) answered(m *jsonrpc.Message) {
	r := l.take(m.ID)
	if r.call != nil {
		l.callAnswered(r, m)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
	case r.then != nil:
		r.then(m)
	case r.listen != nil:
		r.listen.endedLocked(m)
	}
}

// take takes the request out that a response answers, the zero one if there is none.
func (l *legacy) take(id jsonrpc.ID) modernRequest {
	n, _ := id.Answered() // nothing is open under zero
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.open[n]
	delete(l.open, n)
	if r.call != nil {
		r.call.n = 0
	}
	return r
}

// callAnswered handles the answer to a call. A large result is rewritten without the
// lock.
func (l *legacy) callAnswered(r modernRequest, m *jsonrpc.Message) {
	c := r.call
	if m.Error != nil {
		failure := toLegacyError(c.method, m.Error)
		if r.again {
			failure = notTheFirst(failure)
		}
		l.settle(c, &jsonrpc.Message{Error: failure, Extra: m.Extra})
		return
	}
	result, err := readModernResult(m.Result)
	switch {
	case err == nil && result.kind == resultComplete:
		l.settle(c, &jsonrpc.Message{Result: result.toLegacy(c.method, c.version), Extra: m.Extra})
	case err == nil && result.kind == resultInputRequired && mcp.MethodOf(c.method).Asks:
		l.inputRequired(c, m.Result)
	default: // "task", to a client that declared none, say
		l.settle(c, &jsonrpc.Message{Error: jsonrpc.InvalidResponse(l.upstream, "unknown resultType").Raw()})
	}
}

func (l *legacy) settle(c *legacyCall, answer *jsonrpc.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked(c, answer)
}

// settleLocked answers a call, with the result or error that answer holds.
func (l *legacy) settleLocked(c *legacyCall, answer *jsonrpc.Message) {
	if l.calls[c.id] != c || l.ended {
		return
	}
	delete(l.calls, c.id)
	answer.ID = c.id
	l.toClient.put(answer)
}

func (l *legacy) failLocked(c *legacyCall, err *jsonrpc.Error) {
	l.settleLocked(c, &jsonrpc.Message{Error: err.Raw()})
}

// unusable settles the call whose answer cannot be read.
func (l *legacy) unusable(bad *jsonrpc.InvalidError) {
	l.log.Debug("unusable message from upstream", "err", bad)
	if bad.Reply {
		l.answered(jsonrpc.NewError(bad.ID, jsonrpc.InvalidResponse(l.upstream, "")))
	}
}

// cancelledByClient takes back a call. What the client says about another id, or
// about initialize, is ignored (2025-11-25 basic/utilities/cancellation).
func (l *legacy) cancelledByClient(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "requestId") != nil {
		return
	}
	id, ok := jsonrpc.ParseID(at[0].Of(m.Params))
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[id]
	if !ok || c == nil || c.method == mcp.MethodInitialize || l.ended {
		return
	}
	n := c.n
	l.dropLocked(c, "the request was cancelled")
	l.resources.abandonedLocked(c)
	if n != 0 {
		delete(l.open, n)
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: strconv.AppendInt(nil, n, 10)})
		l.toModern.put(&jsonrpc.Message{Method: m.Method, Params: StripReserved(params), Extra: m.Extra})
	}
}

// dropLocked forgets a call, and withdraws what the client is asked for it.
func (l *legacy) dropLocked(c *legacyCall, reason string) {
	delete(l.calls, c.id)
	c.pause.stop()
	l.withdrawLocked(c, reason)
}
