package eras

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// A legacyCall is a request of the client. It is at the upstream, or waits for the client's answers, for a pause,
// or for a listen.
type legacyCall struct {
	*peer.Request

	// Static once it is sent.
	version  string          // of the client
	extended bool            // the client declares extensions that may have results of their own
	params   json.RawMessage // of the client, for a retry; nil if there can be none
	names    json.RawMessage // the subscription id in the request, for the upstream; nil for none
	extra    []byte
	headers  *jsonrpc.Forwarded // that came with it; nil for none

	// Guarded by legacy.mu.
	token  json.RawMessage // the client's progress token, as it came; nil for none
	sent   *peer.Call      // on the modern stream, maybe ended; nil before
	rounds int             // retries
	empty  int             // consecutive results that asked for no input
	last   float64         // progress sent last to the client, if told
	told   bool
	round  *round // the open questions to the client; nil for none
	pause  *timers.Timer
}

func (c *legacyCall) progressToken() json.RawMessage { return c.token }

var errNotInitialized = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: not initialized"}

// beginLocked makes a request a call. It returns nil if the request was cancelled or refused.
func (l *legacy) beginLocked(r *peer.Request) *legacyCall {
	c := &legacyCall{Request: r, extra: r.Message.Extra, headers: r.Message.Forwarded}
	r.Message, r.Value = nil, c
	if _, open := l.client.Open(); open > maxLegacyCalls {
		r.Fail(jsonrpc.Overloaded(l.upstream))
	}
	if !r.OnCancel(func(m *jsonrpc.Message, at jsonrpc.Span) { l.cancelled(c, m, at) }) {
		return nil
	}
	return c
}

// forward forwards a request.
func (l *legacy) forward(r *peer.Request) {
	params, notes := withoutForeign(r.Method, r.Message.Params), mcp.Read(r.Message)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hello == nil {
		r.Fail(errNotInitialized)
		return
	}
	names, err := named(notes, func() *peer.Call {
		if c, _ := callNamed[*legacyCall](l.client, notes); c != nil {
			return c.sent
		}
		return nil
	})
	if err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	c := l.beginLocked(r)
	if c == nil {
		return
	}
	c.version, c.extended, c.names = l.hello.version, l.hello.extended, names
	if mcp.MethodOf(r.Method).Asks {
		c.params = params
	}
	l.sendLocked(c, params)
}

// sendLocked sends a call or its retry under a new id.
func (l *legacy) sendLocked(c *legacyCall, params json.RawMessage) {
	again := c.rounds > 0
	sent := l.modern.NewCall(c.Method)
	text, token, err := stamped(params, l.stamp, sent.ID)
	if err != nil {
		c.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	if c.names != nil {
		text = mcp.SetMeta(text, jsonrpc.Value{Key: mcp.KeySubscription, Text: c.names})
	}
	c.sent, c.token = sent, token
	sent.For = c.Request
	sent.Progress = func(m *jsonrpc.Message, at jsonrpc.Span) { l.progress(c, sent.ID, m, at) }
	sent.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil { // otherwise the client's stream ends, and its proxy settles the open requests
			l.answered(c, sent.ID, again, answer)
		}
	}
	_ = sent.Send(&jsonrpc.Message{Params: text, Extra: c.extra, Forwarded: c.headers})
}

// answered handles the answer to a call, which had the id sent. It rewrites results, which may be large, without
// the lock.
func (l *legacy) answered(c *legacyCall, sent jsonrpc.ID, again bool, m *jsonrpc.Message) {
	if m.Error != nil {
		failure := toLegacyError(c.Method, mcp.AnsweredAs(m.Error, sent, c.ID))
		if again {
			failure = notTheFirst(failure)
		}
		l.settle(c, &jsonrpc.Message{Error: failure, Extra: m.Extra})
		return
	}
	result, err := readModernResult(m.Result)
	switch {
	case err == nil && result.kind == resultComplete:
		legacy := result.toLegacy(c.Method, c.version)
		l.settle(c, &jsonrpc.Message{Result: withSubscription(legacy, m.Result, sent, c.ID), Extra: m.Extra})
	case err == nil && isOwnKind(result.kind, c.Method, c.extended):
		l.settle(c, &jsonrpc.Message{Result: withSubscription(stripReserved(m.Result), m.Result, sent, c.ID), Extra: m.Extra})
	case err == nil && result.kind == resultInputRequired && mcp.MethodOf(c.Method).Asks:
		l.inputRequired(c, m.Result)
	default: // such as "task"
		l.settle(c, &jsonrpc.Message{Error: jsonrpc.InvalidResponse(l.upstream, unknownResultType).Raw()})
	}
}

// settle answers a call with a result or an error.
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

// cancelled handles m, the client's cancellation of a call.
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
		c.sent.CancelWith(&jsonrpc.Message{Method: m.Method, Params: stripReserved(params), Extra: m.Extra})
	}
}

// progress forwards progress of a call, whose token is at a position in the params. To the client a retry is the
// same call, so progress that does not increase is dropped (2025-11-25 basic/utilities/progress: "The progress
// value MUST increase").
func (l *legacy) progress(c *legacyCall, sent jsonrpc.ID, m *jsonrpc.Message, at jsonrpc.Span) {
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
	params := withSubscription(stripReserved(jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.token})), m.Params, sent, c.ID)
	l.client.Send(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.ID})
}
