package admin

import (
	"cmp"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Labels error_type, by the semantic conventions for MCP: "" where nothing went wrong, the
// code of a JSON-RPC error as text, tool_error for a tool whose result says that it failed,
// and where there is no code a word of ours.

// codes are those of the errors of MCP and JSON-RPC as labels. Servers may think of any
// other.
var codes = map[int]string{
	-32700: "-32700", -32600: "-32600", -32601: "-32601", -32602: "-32602", -32603: "-32603",
	-32800: "-32800", // cancelled
	-32000: "-32000", -32001: "-32001", -32002: "-32002", -32003: "-32003", -32004: "-32004",
	-32020: "-32020", -32021: "-32021", -32022: "-32022", -32042: "-32042",
}

// typeOfCall is that of a call of a client.
func typeOfCall(end observe.End) string {
	if end.Code != 0 {
		return cmp.Or(codes[end.Code], other)
	}
	return word(end.Outcome)
}

// typeOfRequest is that of a request to an upstream. If that has not answered, the error is
// ours, and its code says nothing.
func typeOfRequest(end observe.End) string {
	if end.Outcome == observe.Failed {
		return typeOfCall(end)
	}
	return word(end.Outcome)
}

// typeOfSession is that of a session, and of a server: the class of the cause of its end.
func typeOfSession(end observe.End) string {
	if end.Outcome == observe.OK {
		return ""
	}
	return cmp.Or(end.Cause, word(end.Outcome))
}

// word is an outcome without a code.
func word(o observe.Outcome) string {
	switch o {
	case observe.OK:
		return ""
	case observe.ToolFailed, observe.Cancelled, observe.Closed, observe.Timeout, observe.Overloaded, observe.InvalidResponse:
		return string(o)
	}
	return other
}
