package eras

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// A legacyCall is a request of the client. It is sent to the upstream, or waits for the
// client's answers, or for a while, or for a listen.
type legacyCall struct {
	*peer.Request

	// Static once it is sent.
	version string          // that the client speaks
	params  json.RawMessage // as the client wrote them, for a retry; nil if there is none
	extra   []byte

	// Guarded by legacy.mu.
	token  json.RawMessage // the client's progress token, as it came; nil for none
	sent   *peer.Call      // on the modern stream; nil if there was none. It may be over
	rounds int             // retries
	empty  int             // results in a row that asked for nothing
	last   float64         // progress that the client was told of, if told
	told   bool
	round  *round // what the client is asked; nil for nothing
	pause  *timers.Timer
}

var errNotInitialized = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: not initialized"}

// beginLocked makes a request a call. It returns nil if nobody waits for it, or if it has
// refused it.
func (l *legacy) beginLocked(r *peer.Request) *legacyCall {
	c := &legacyCall{Request: r, extra: r.Message.Extra}
	r.Message = nil
	if _, open := l.client.Open(); open > maxLegacyCalls {
		r.Fail(jsonrpc.Overloaded(l.upstream))
	}
	if !r.OnCancel(func(m *jsonrpc.Message, at jsonrpc.Span) { l.cancelled(c, m, at) }) {
		return nil
	}
	return c
}

// forward passes a request on.
func (l *legacy) forward(r *peer.Request) {
	params := withoutForeign(r.Method, r.Message.Params)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hello == nil {
		r.Fail(errNotInitialized)
		return
	}
	c := l.beginLocked(r)
	if c == nil {
		return
	}
	c.version = l.hello.version
	if mcp.MethodOf(r.Method).Asks {
		c.params = params
	}
	l.sendLocked(c, params)
}

// sendLocked sends a call, or its retry, under an id of its own.
func (l *legacy) sendLocked(c *legacyCall, params json.RawMessage) {
	again := c.rounds > 0
	sent := l.modern.NewCall(c.Method)
	text, token, err := stamped(params, l.stamp, sent.ID)
	if err != nil {
		c.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	c.sent, c.token = sent, token
	sent.For = c.Request
	sent.Progress = func(m *jsonrpc.Message, at jsonrpc.Span) { l.progress(c, m, at) }
	sent.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil { // else the client's stream ends, too, and its proxy settles what was open
			l.answered(c, again, answer)
		}
	}
	_ = sent.Send(&jsonrpc.Message{Params: text, Extra: c.extra})
}

// answered handles the answer to a call. A large result is rewritten without the lock.
func (l *legacy) answered(c *legacyCall, again bool, m *jsonrpc.Message) {
	if m.Error != nil {
		failure := toLegacyError(c.Method, m.Error)
		if again {
			failure = notTheFirst(failure)
		}
		l.settle(c, &jsonrpc.Message{Error: failure, Extra: m.Extra})
		return
	}
	result, err := readModernResult(m.Result)
	switch {
	case err == nil && result.kind == resultComplete:
		l.settle(c, &jsonrpc.Message{Result: result.toLegacy(c.Method, c.version), Extra: m.Extra})
	case err == nil && result.kind == resultInputRequired && mcp.MethodOf(c.Method).Asks:
		l.inputRequired(c, m.Result)
	default: // "task", to a client that declared none, say
		l.settle(c, &jsonrpc.Message{Error: jsonrpc.InvalidResponse(l.upstream, "unknown resultType").Raw()})
	}
}

// settle answers a call, with the result or error that answer holds.
func (l *legacy) settle(c *legacyCall, answer *jsonrpc.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked(c, answer)
}

func (l *legacy) settleLocked(c *legacyCall, answer *jsonrpc.Message) {
	if !l.ended {
		c.Respond(answer)
	}
}

// cancelled takes back a call that the client has cancelled, with m.
func (l *legacy) cancelled(c *legacyCall, m *jsonrpc.Message, at jsonrpc.Span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || m == nil {
		return
	}
	c.pause.Stop()
	l.withdrawLocked(c, "the request was cancelled")
	l.resources.abandonedLocked(c)
	if c.sent != nil {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.sent.ID.Raw()})
		c.sent.CancelWith(&jsonrpc.Message{Method: m.Method, Params: StripReserved(params), Extra: m.Extra})
	}
}

// progress passes progress of a call on, whose token stands at a place. A retry is the
// same call to the client, and so what does not go on from what it heard is dropped
// (2025-11-25 basic/utilities/progress: "The progress value MUST increase").
func (l *legacy) progress(c *legacyCall, m *jsonrpc.Message, at jsonrpc.Span) {
	text, err := jsonrpc.Member(m.Params, "progress")
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || c.token == nil || l.ended {
		return
	}
	value, err := strconv.ParseFloat(string(text), 64)
	if c.rounds > 0 && c.told && !(value > c.last) {
		return
	}
	if err == nil {
		c.last, c.told = max(value, c.last), true
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.token})
	l.client.Send(&jsonrpc.Message{Method: m.Method, Params: StripReserved(params), Extra: m.Extra, Related: c.ID})
}
