package bridge

import (
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// offers is what a legacy server can notify of.
type offers struct{ tools, prompts, resources, subscribe bool }

// readWelcome reads the result of initialize; false if it is none that a legacy
// client could live with.
func readWelcome(result json.RawMessage) (w welcome, ok bool) {
	if len(result) == 0 || result[0] != '{' {
		return w, false
	}
	var at [4]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "protocolVersion", "capabilities", "serverInfo", "instructions") != nil {
		return w, false
	}
	version, ok := jsonrpc.Unquote(at[0].Of(result))
	if !ok || mcp.IsModern(version) {
		return w, false
	}
	capabilities := at[1].Of(result)
	w.info = at[2].Of(result)
	logging, _ := jsonrpc.Member(capabilities, "logging")
	w.logs = logging != nil
	w.offers = offers{isSet(capabilities, "tools", "listChanged"), isSet(capabilities, "prompts", "listChanged"),
		isSet(capabilities, "resources", "listChanged"), isSet(capabilities, "resources", "subscribe")}
	w.discover = toModernResult(mcp.MethodDiscover, jsonrpc.Set(nil,
		jsonrpc.Value{Key: "supportedVersions", Text: []byte(`["` + strings.Join(mcp.ModernVersions, `","`) + `"]`)},
		jsonrpc.Value{Key: "capabilities", Text: bridgedCapabilities(capabilities)},
		jsonrpc.Value{Key: "instructions", Text: at[3].Of(result)}), w.info)
	return w, true
}

// isSet reports whether a boolean inside a capability is true.
func isSet(capabilities json.RawMessage, name, key string) bool {
	capability, _ := jsonrpc.Member(capabilities, name)
	value, _ := jsonrpc.Member(capability, key)
	return string(value) == "true"
}
