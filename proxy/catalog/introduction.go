package catalog

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// An Introduction is what upstreams say of themselves, together.
type Introduction struct {
	Capabilities json.RawMessage
	Instructions string // "" for none
	Missing      bool   // not all could say
}

// Introduce sums up what upstreams said of themselves: the results of initialize or
// server/discover, nil for an upstream that has not said anything. Missing tells that
// there are others, which are not known yet.
func Introduce(era mcp.Era, upstreams []string, said []json.RawMessage, missing bool) Introduction {
	in := Introduction{Capabilities: json.RawMessage(`{}`), Missing: missing}
	var instructions []string
	for i, result := range said {
		if result == nil {
			in.Missing = true
			continue
		}
		offered, _ := jsonrpc.Member(result, "capabilities")
		in.Capabilities = union(in.Capabilities, knownExtensions(era, offered))
		raw, _ := jsonrpc.Member(result, "instructions")
		if text, ok := jsonrpc.Unquote(raw); ok && text != "" {
			instructions = append(instructions, "# "+upstreams[i]+"\n\n"+text)
		}
	}
	in.Capabilities = announce(in.Capabilities, in.Missing)
	in.Instructions = strings.Join(instructions, "\n\n")
	return in
}

// InVersion returns the result of an only upstream's initialize in the version of this hop.
func InVersion(result json.RawMessage, version string) json.RawMessage {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "protocolVersion") != nil {
		return result
	}
	if at[0].IsZero() {
		return union(json.RawMessage(`{"protocolVersion":`+string(jsonrpc.Quote(version))+`}`), result)
	}
	return jsonrpc.Replace(result, jsonrpc.Edit{Span: at[0], With: jsonrpc.Quote(version)})
}

// knownExtensions takes those extensions out of capabilities that could not be routed
// among several upstreams. Tasks are an extension in the modern era only.
func knownExtensions(era mcp.Era, capabilities json.RawMessage) json.RawMessage {
	extensions, _ := jsonrpc.Member(capabilities, "extensions")
	if extensions == nil {
		return capabilities
	}
	var known []jsonrpc.Value
	for _, key := range []string{mcp.ExtensionTasks, mcp.ExtensionUI} {
		if era == mcp.Legacy && key == mcp.ExtensionTasks {
			continue
		}
		if settings, _ := jsonrpc.Member(extensions, key); settings != nil {
			known = append(known, jsonrpc.Value{Key: key, Text: settings})
		}
	}
	var kept json.RawMessage
	if known != nil {
		kept = jsonrpc.Set(nil, known...)
	}
	return jsonrpc.Set(capabilities, jsonrpc.Value{Key: "extensions", Text: kept})
}

// everything is what is advertised while an upstream is missing: it may offer
// any of it when it comes.
const everything = `{"tools":{},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}}`

// announce returns the capabilities of the session. Lists can change even if no
// upstream says so: an upstream may come and go.
func announce(capabilities json.RawMessage, missing bool) json.RawMessage {
	if missing {
		capabilities = union(capabilities, json.RawMessage(everything))
	}
	for _, list := range []string{"resources", "prompts", "tools"} {
		if v, _ := jsonrpc.Member(capabilities, list); v != nil {
			capabilities = union(json.RawMessage(`{"`+list+`":{"listChanged":true}}`), capabilities)
		}
	}
	return capabilities
}

// union merges two JSON objects. If a member is in both, objects are merged, true wins
// over false, and else that of a stays.
func union(a, b json.RawMessage) json.RawMessage {
	var keys []string
	values := make(map[string]json.RawMessage)
	add := func(k string, v json.RawMessage) {
		old, ok := values[k]
		if !ok {
			keys = append(keys, k)
			values[k] = v
		} else if v = bytes.TrimSpace(v); string(v) == "true" {
			values[k] = v
		} else if len(v) > 0 && v[0] == '{' && old[0] == '{' {
			values[k] = union(old, v)
		}
	}
	for _, object := range []json.RawMessage{a, b} {
		if len(object) > 0 && jsonrpc.Each(object, add) != nil {
			return a
		}
	}
	merged := []byte{'{'}
	for i, k := range keys {
		if i > 0 {
			merged = append(merged, ',')
		}
		merged = append(append(append(merged, jsonrpc.Quote(k)...), ':'), values[k]...)
	}
	return append(merged, '}')
}
