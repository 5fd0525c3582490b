package catalog

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// An Introduction is the merged self-description of several upstreams.
type Introduction struct {
	Capabilities json.RawMessage
	Instructions string // "" for none
	Missing      bool   // some upstream's is not known yet
}

// Introduce merges the results of initialize or server/discover of upstreams, nil for an upstream
// without one. missing means that there are further upstreams that are not known yet.
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

// InVersion returns the result of initialize of a single upstream, with the protocol version of
// this hop.
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

// knownExtensions removes the extensions that cannot be routed among several upstreams from
// capabilities. Tasks are an extension only in the modern era.
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

// everything is advertised while an upstream is missing, because that may offer any of it.
const everything = `{"tools":{},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}}`

// announce returns the capabilities of the session. Its lists can change even if no upstream's can,
// because upstreams come and go.
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

// union merges two JSON objects. If both have a member, objects are merged, true wins over false,
// and otherwise a wins.
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
