package eras

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// hopReserved are those of reserved that are not the id of a request.
var hopReserved = slices.DeleteFunc(slices.Clone(reserved), func(v jsonrpc.Value) bool { return v.Key == mcp.KeySubscription })

// forClient returns the params of a notification of a call for its client, who knows the call by id and token:
// with these in place of ours, and without the other keys of _meta that concern only one hop. It returns
// false if they name anything else.
func forClient(m *jsonrpc.Message, ours, id jsonrpc.ID, token json.RawMessage) (json.RawMessage, bool) {
	notes := mcp.Read(m)
	named, said := notes.Named()
	if !said || named.IsZero() {
		return StripReserved(m.Params), true
	}
	if named != ours {
		return nil, false
	}
	params, ok := notes.As(id, token)
	return mcp.SetMeta(params, hopReserved...), ok
}

// withSubscription returns converted, the conversion of a result, with the client's own id as subscription id, if
// the result has the id of its call there.
func withSubscription(converted, result json.RawMessage, ours, id jsonrpc.ID) json.RawMessage {
	if !MayHave(result, "subscriptionId") {
		return converted
	}
	meta, _ := jsonrpc.Member(result, "_meta")
	raw, _ := jsonrpc.Member(meta, mcp.KeySubscription)
	found, _ := jsonrpc.ParseID(raw)
	if n, ok := found.Answered(); !ok || jsonrpc.IntID(n) != ours {
		return converted
	}
	return mcp.SetMeta(converted, jsonrpc.Value{Key: mcp.KeySubscription, Text: id.Raw()})
}
