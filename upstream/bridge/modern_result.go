package bridge

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// completed is [toModernResult] without a look at the result where that is not needed,
// which can be large: one that holds none of the members to come gets them at its end.
func completed(method string, result, serverInfo json.RawMessage) json.RawMessage {
	for _, key := range []string{"resultType", "ttlMs", "cacheScope", "_meta"} {
		if mayHave(result, key) {
			return toModernResult(method, result, serverInfo)
		}
	}
	head := bytes.TrimRight(result[:bytes.LastIndexByte(result, '}')], space)
	out := append(make([]byte, 0, len(head)+len(serverInfo)+128), head...)
	if len(bytes.TrimLeft(head, space)) > 1 { // more than the opening brace
		out = append(out, ',')
	}
	out = append(out, `"resultType":"`+resultComplete+`"`...)
	if isCacheable(method) {
		out = append(out, `,"ttlMs":0,"cacheScope":"private"`...)
	}
	if serverInfo != nil {
		out = append(strconv.AppendQuote(append(out, `,"_meta":{`...), mcp.KeyServerInfo), ':')
		out = append(append(out, serverInfo...), '}')
	}
	return append(out, '}')
}
