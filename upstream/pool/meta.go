package pool

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
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

// readAbilities reads what a client has declared in its initialize.
func readAbilities(params json.RawMessage) (mcp.Abilities, error) {
	capabilities, err := jsonrpc.Member(params, "capabilities")
	if err != nil {
		return mcp.Abilities{}, err
	}
	return mcp.ReadAbilities(capabilities)
}

// refuses returns why a client cannot be asked this; nil if it can. The server
// was told that it may ask everything of everybody, so that what a client would
// not understand must end here.
func (s *sharer) refuses(m *jsonrpc.Message) *jsonrpc.Error {
	switch m.Method {
	case mcp.MethodTasksGet, mcp.MethodTasksResult, mcp.MethodTasksCancel, mcp.MethodTasksList:
		return jsonrpc.MethodNotFound(m.Method)
	}
	return s.can.Refuses(m.Method, m.Params)
}
