package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A request is what a modern request says in its params besides what it asks.
type request struct {
	capabilities, clientInfo     json.RawMessage
	token                        json.RawMessage // for progress; nil if it wants none
	level                        int             // of logs; zero for none
	requestState, inputResponses json.RawMessage // nil if absent, the state also if null
	meta                         []byte          // what a legacy server gets of _meta, without the token and the closing brace
	at                           jsonrpc.Span    // of _meta
	foreign                      bool            // there are params that mean nothing, or something else, to a legacy server
}

var (
	noCapabilities = json.RawMessage(`{}`)

	// hopKeys are what a legacy server gets nothing of in _meta.
	hopKeys = append(slices.Clone(reserved), jsonrpc.Value{Key: "progressToken"})

	// foreignKeys are what it gets nothing of in params, nor a modern one of a legacy client.
	foreignKeys = []jsonrpc.Value{{Key: "requestState"}, {Key: "inputResponses"}, {Key: "task"}}
)

// readRequest reads params. It is an error if two readers of them could read two
// things.
func readRequest(params json.RawMessage) (request, error) {
	var at [4]jsonrpc.Span
	err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "_meta", "requestState", "inputResponses", "task")
	r := request{capabilities: noCapabilities, at: at[0],
		requestState: orAbsent(at[1].Of(params)), inputResponses: at[2].Of(params),
		foreign: !at[1].IsZero() || !at[2].IsZero() || !at[3].IsZero()}
	if err == nil && r.inputResponses != nil && r.inputResponses[0] != '{' {
		err = errors.New(`"inputResponses" is not an object`)
	}
	if err != nil || at[0].IsZero() {
		return r, err
	}
	return r, r.readMeta(params)
}

// orAbsent makes null nil, as some write what they leave out.
func orAbsent(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// readMeta reads _meta: each key that means something here once, in one spelling. The
// others stay as they are written.
func (r *request) readMeta(params json.RawMessage) error {
	var at [5]jsonrpc.Span
	err := jsonrpc.Find(params, r.at, at[:], mcp.KeyCapabilities, mcp.KeyClientInfo, mcp.KeyLogLevel, "progressToken", mcp.KeyVersion)
	meta := r.at.Of(params)
	switch {
	case err != nil:
		return err
	case meta[0] != '{':
		return errors.New(`"_meta" is not an object`)
	case at[0].End-at[0].Start > maxCapabilities:
		return errors.New("the client's capabilities are too long")
	}
	if !at[0].IsZero() {
		r.capabilities = at[0].Of(params)
	}
	r.clientInfo, r.level, r.token = at[1].Of(params), readSeverity(at[2].Of(params)), orAbsent(at[3].Of(params))
	r.meta = bytes.TrimSuffix(jsonrpc.Set(meta, hopKeys...), []byte("}"))
	return nil
}

// answersSomething reports whether the request has input for a call.
func (r *request) answersSomething() bool {
	return r.inputResponses != nil && !isEmptyObject(r.inputResponses)
}

func isEmptyObject(text json.RawMessage) bool {
	return text[0] == '{' && bytes.TrimLeft(text[1:], space)[0] == '}'
}
