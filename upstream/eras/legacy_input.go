package eras

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// maxRetries bounds how often a call is sent again, with input or without.
	maxRetries = 8

	// firstPause is the pause before a call is sent again whose result asks for nothing else, as
	// that of a server does that sheds load, or that waits for what a user does in a browser. It
	// doubles with each such result in a row, so that all retries of a call take a minute.
	firstPause = 250 * time.Millisecond

	// maxAsked bounds the questions of one result, and maxOpenQuestions the open questions to
	// the client. The call fails beyond that.
	maxAsked         = 64
	maxOpenQuestions = 1024

	// maxState bounds the requestState that is kept until the client has answered.
	maxState = 64 << 10
)

// Failures of a call that needs input. The model or the user reads these texts.
const (
	failUnusable   = "the server sent an unusable request for input"
	failUndeclared = "the server asked for input that this client cannot provide"
	failTooMany    = "the server asked for too much input"
	failRounds     = "the server asked for input too many times"
	failClient     = "the input that the server asked for could not be obtained"
	failBusy       = "the server is busy"
)

// A round is the input that one result asked for.
type round struct {
	state     json.RawMessage // requestState of the result; nil if absent
	keys      []string
	answers   []json.RawMessage // by key; nil until the client answers
	questions []*peer.Call      // to the client
	missing   int               // number of answers
}

// An inputRequest is one question of a result.
type inputRequest struct {
	key    string
	method string
	params json.RawMessage // nil if absent
	url    bool            // an elicitation in URL mode
}

// readInput reads a result that asks for input: its requestState, nil if absent or null, and its questions.
func readInput(result json.RawMessage) (state json.RawMessage, asks []inputRequest, err error) {
	var at [2]jsonrpc.Span
	if err := jsonrpc.Find(result, jsonrpc.Span{}, at[:], "inputRequests", "requestState"); err != nil {
		return nil, nil, err
	}
	requests, state := orAbsent(at[0].Of(result)), orAbsent(at[1].Of(result))
	if requests == nil && state == nil || state != nil && state[0] != '"' {
		return state, nil, errors.New("no input requests and no state")
	}
	if requests == nil {
		return state, nil, nil
	}
	var bad error
	err = jsonrpc.Each(requests, func(key string, value json.RawMessage) {
		ask, err := readInputRequest(key, value)
		asks = append(asks, ask)
		bad = errors.Join(bad, err)
	})
	return state, asks, errors.Join(err, bad)
}

func readInputRequest(key string, value json.RawMessage) (inputRequest, error) {
	var at [2]jsonrpc.Span
	if err := jsonrpc.Find(value, jsonrpc.Span{}, at[:], "method", "params"); err != nil {
		return inputRequest{}, err
	}
	method, _ := jsonrpc.Unquote(at[0].Of(value))
	ask := inputRequest{key: key, method: method, params: at[1].Of(value)}
	mode, err := jsonrpc.Member(ask.params, "mode")
	ask.url = method == mcp.MethodElicit && string(mode) == `"url"`
	return ask, err
}

// isOf reports whether a client with these abilities can be asked.
func (ask inputRequest) isOf(can mcp.Abilities) bool {
	switch ask.method {
	case mcp.MethodElicit, mcp.MethodSample, mcp.MethodRootsList:
		return can.Refuses(ask.method, ask.params) == nil
	}
	return false
}

// inputRequired handles a result that asks for input. It asks the client, or sends the call again after a pause,
// or fails the call before asking anything.
func (l *legacy) inputRequired(c *legacyCall, result json.RawMessage) {
	state, asks, err := readInput(result)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.Open() || l.ended {
		return
	}
	reason := l.refusalLocked(c, state, asks)
	if err != nil {
		reason = failUnusable
	}
	switch {
	case reason != "":
		l.inputFailedLocked(c, reason)
	case len(asks) == 0:
		l.pauseLocked(c, state)
	default:
		l.askClientLocked(c, state, asks)
	}
}

// refusalLocked returns the reason why the client is not asked; "" if it is.
func (l *legacy) refusalLocked(c *legacyCall, state json.RawMessage, asks []inputRequest) string {
	keys := make(map[string]bool, len(asks))
	for _, ask := range asks {
		switch {
		case keys[ask.key]:
			return failUnusable
		case !ask.isOf(l.hello.can):
			return failUndeclared
		}
		keys[ask.key] = true
	}
	open, _ := l.client.Open()
	switch {
	case c.rounds >= maxRetries && len(asks) == 0:
		return failBusy
	case c.rounds >= maxRetries:
		return failRounds
	case len(asks) > maxAsked, len(state) > maxState, open+len(asks) > maxOpenQuestions:
		return failTooMany
	}
	return ""
}

// inputFailedLocked fails a call: a tool call with a result, which the model can react to, others with an error.
func (l *legacy) inputFailedLocked(c *legacyCall, reason string) {
	l.withdrawLocked(c, reason)
	if c.Method != mcp.MethodToolsCall {
		c.Fail(&jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error: " + reason})
		return
	}
	result := jsonrpc.Set(nil,
		jsonrpc.Value{Key: "content", Text: jsonrpc.Array([]json.RawMessage{textBlock("Error: " + reason)})},
		jsonrpc.Value{Key: "isError", Text: []byte(`true`)})
	l.settleLocked(c, &jsonrpc.Message{Result: result})
}

// pauseLocked sends a call again after a pause, whose upstream asked for nothing else.
func (l *legacy) pauseLocked(c *legacyCall, state json.RawMessage) {
	c.pause = l.afterLocked(firstPause<<c.empty, func() {
		if c.Open() {
			l.retryLocked(c, nil, state)
		}
	})
	c.empty++
}

// askClientLocked sends all questions of a result to the client, unchanged except that elicitations by URL get an
// id, which legacy versions require.
func (l *legacy) askClientLocked(c *legacyCall, state json.RawMessage, asks []inputRequest) {
	c.empty = 0
	c.round = &round{state: state, answers: make([]json.RawMessage, len(asks)), missing: len(asks)}
	for i, ask := range asks {
		params := ask.params
		if ask.url {
			params = jsonrpc.Set(params, jsonrpc.Value{Key: "elicitationId", Text: jsonrpc.Quote(rand.Text())})
		}
		q := l.client.NewCall(ask.method)
		q.Related = c.ID
		q.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
			if lost == nil {
				l.answeredByClient(c, i, answer)
			}
		}
		c.round.keys = append(c.round.keys, ask.key)
		c.round.questions = append(c.round.questions, q)
		_ = q.Send(&jsonrpc.Message{Params: params, Related: c.ID})
	}
}

// answeredByClient handles the answer to a question. The last answer of a round sends the call again; an error
// fails the call at once. A user who declines has answered.
func (l *legacy) answeredByClient(c *legacyCall, i int, m *jsonrpc.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := c.round
	if r == nil || l.ended { // the call has been cancelled
		return
	}
	if m.Error != nil || m.Result[0] != '{' {
		l.inputFailedLocked(c, failClient)
		return
	}
	r.answers[i] = m.Result
	if r.missing--; r.missing == 0 {
		l.retryLocked(c, r.responses(), r.state)
	}
}

// responses returns the inputResponses of a round.
func (r *round) responses() json.RawMessage {
	values := make([]jsonrpc.Value, len(r.keys))
	for i, key := range r.keys {
		values[i] = jsonrpc.Value{Key: key, Text: r.answers[i]}
	}
	return jsonrpc.Set(nil, values...)
}

// retryLocked sends a call again with the answers and the state of its last round, which replace earlier ones
// (2026-07-28 basic/patterns/mrtr).
func (l *legacy) retryLocked(c *legacyCall, responses, state json.RawMessage) {
	c.round = nil
	c.rounds++
	l.sendLocked(c, jsonrpc.Set(c.params,
		jsonrpc.Value{Key: "inputResponses", Text: responses}, jsonrpc.Value{Key: "requestState", Text: state}))
}

// withdrawLocked cancels the open questions of a call.
func (l *legacy) withdrawLocked(c *legacyCall, reason string) {
	if c.round == nil {
		return
	}
	for _, q := range c.round.questions {
		q.Cancel(reason)
	}
	c.round = nil
}
