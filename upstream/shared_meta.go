package upstream

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// A meta is what _meta says about whose a message is.
type meta struct {
	token jsonrpc.Span // of the progress token in params; zero for none
	task  string       // the id of the task; "" for none
}

// readMeta reads the _meta of a message's params. It is an error if two readers
// of it could read two things.
func readMeta(params json.RawMessage) (meta, error) {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "_meta"); err != nil || at[0].IsZero() {
		return meta{}, err
	}
	var in [2]jsonrpc.Span
	if err := jsonrpc.Find(params, at[0], in[:], "progressToken", mcp.KeyRelatedTask); err != nil {
		return meta{}, err
	}
	if string(in[0].Of(params)) == "null" {
		in[0] = jsonrpc.Span{}
	}
	if in[1].IsZero() {
		return meta{token: in[0]}, nil
	}
	if err := jsonrpc.Find(params, in[1], at[:], "taskId"); err != nil {
		return meta{}, err
	}
	task, ok := jsonrpc.Unquote(at[0].Of(params))
	if !ok {
		return meta{}, errMissing("taskId")
	}
	return meta{token: in[0], task: task}, nil
}

// abilities are what a client has declared in its initialize.
type abilities struct{ roots, sampling, samplingTools, elicitation, elicitationURL bool }

func readAbilities(params json.RawMessage) (can abilities, err error) {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "capabilities"); err != nil || at[0].IsZero() {
		return can, err
	}
	var top [3]jsonrpc.Span
	if err := jsonrpc.Find(params, at[0], top[:], "roots", "sampling", "elicitation"); err != nil {
		return can, err
	}
	can.roots, can.sampling, can.elicitation = !top[0].IsZero(), !top[1].IsZero(), !top[2].IsZero()
	can.samplingTools = member(top[1].Of(params), "tools") != ""
	can.elicitationURL = member(top[2].Of(params), "url") != ""
	return can, nil
}

// refuses returns why a client cannot be asked this; nil if it can. The server
// was told that it may ask everything of everybody, so that what a client would
// not understand must end here (2025-11-25 client/elicitation, client/sampling).
func (can abilities) refuses(m *jsonrpc.Message) *jsonrpc.Error {
	able := true
	switch m.Method {
	case "roots/list":
		able = can.roots
	case "sampling/createMessage":
		able = can.sampling
		if able && !can.samplingTools && (member(m.Params, "tools") != "" || member(m.Params, "toolChoice") != "") {
			return invalidParams("the client does not take tools")
		}
	case "elicitation/create":
		able = can.elicitation
		if able && !can.elicitationURL && member(m.Params, "mode") == `"url"` {
			return invalidParams("the client does not take this mode")
		}
	case "tasks/get", "tasks/result", "tasks/cancel", "tasks/list":
		able = false
	}
	if !able {
		return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + m.Method}
	}
	return nil
}
