package eras

import (
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Welcome is what a legacy server says of itself, as modern clients are told.
type Welcome struct {
	Info     json.RawMessage // serverInfo
	Discover json.RawMessage // the result of server/discover
	Logs     bool            // it declares logging

	Lists     [4]bool // whose changes it can notify of, as in mcp.Filter
	Subscribe bool
}

// ReadWelcome reads the result of initialize; false if it is none that a legacy
// client could live with.
func ReadWelcome(result json.RawMessage) (w Welcome, ok bool) {
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
	w.Info = at[2].Of(result)
	logging, _ := jsonrpc.Member(capabilities, "logging")
	w.Logs = logging != nil
	for k, c := range changes {
		w.Lists[k] = isSet(capabilities, c.capability, "listChanged")
	}
	w.Subscribe = isSet(capabilities, "resources", "subscribe")
	w.Discover = ToModernResult(mcp.MethodDiscover, jsonrpc.Set(nil,
		jsonrpc.Value{Key: "supportedVersions", Text: []byte(`["` + strings.Join(mcp.ModernVersions, `","`) + `"]`)},
		jsonrpc.Value{Key: "capabilities", Text: Capabilities(capabilities)},
		jsonrpc.Value{Key: "instructions", Text: at[3].Of(result)}), w.Info)
	return w, true
}

// isSet reports whether a boolean inside a capability is true.
func isSet(capabilities json.RawMessage, name, key string) bool {
	capability, _ := jsonrpc.Member(capabilities, name)
	value, _ := jsonrpc.Member(capability, key)
	return string(value) == "true"
}
