package eras

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Completed is [ToModernResult] without a look at the result where that is not needed,
// which can be large: one that holds none of the members to come gets them at its end.
func Completed(method string, result, serverInfo json.RawMessage) json.RawMessage {
	for _, key := range []string{"resultType", "ttlMs", "cacheScope", "_meta"} {
		if MayHave(result, key) {
			return ToModernResult(method, result, serverInfo)
		}
	}
	head := bytes.TrimRight(result[:bytes.LastIndexByte(result, '}')], space)
	out := append(make([]byte, 0, len(head)+len(serverInfo)+128), head...)
	if len(bytes.TrimLeft(head, space)) > 1 { // more than the opening brace
		out = append(out, ',')
	}
	out = append(out, `"resultType":"`+resultComplete+`"`...)
	if mcp.MethodOf(method).Cacheable {
		out = append(out, `,"ttlMs":0,"cacheScope":"private"`...)
	}
	if serverInfo != nil {
		out = append(strconv.AppendQuote(append(out, `,"_meta":{`...), mcp.KeyServerInfo), ':')
		out = append(append(out, serverInfo...), '}')
	}
	return append(out, '}')
}

// WithoutTaskTools returns the result of a legacy tools/list without the tools that run as
// tasks alone, which no modern client can call, and their names. What it says of tasks
// that need not be stays, and means nothing.
func WithoutTaskTools(result json.RawMessage) (json.RawMessage, []string) {
	var at [1]jsonrpc.Span
	if !MayHave(result, "taskSupport") || jsonrpc.Find(result, jsonrpc.Span{}, at[:], "tools") != nil {
		return result, nil
	}
	tools, err := jsonrpc.Elements(at[0].Of(result))
	if err != nil {
		return result, nil
	}
	var left []string
	tools = slices.DeleteFunc(tools, func(tool json.RawMessage) bool {
		execution, _ := jsonrpc.Member(tool, "execution")
		support, _ := jsonrpc.Member(execution, "taskSupport")
		kind, _ := jsonrpc.Unquote(support)
		if kind == "required" {
			name, _ := jsonrpc.Member(tool, "name")
			text, _ := jsonrpc.Unquote(name)
			left = append(left, text)
		}
		return kind == "required"
	})
	if left == nil {
		return result, nil
	}
	return jsonrpc.Replace(result, jsonrpc.Edit{Span: at[0], With: Array(tools...)}), left
}
