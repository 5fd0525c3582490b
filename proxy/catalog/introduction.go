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

	// Twice are the unknown extensions that several upstreams declare. The settings of the first
	// stand.
	Twice []string
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
		in.add(era, offered)
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

// add adds the capabilities of an upstream.
func (in *Introduction) add(era mcp.Era, offered json.RawMessage) {
	extensions, _ := jsonrpc.Member(offered, "extensions")
	before, _ := jsonrpc.Member(in.Capabilities, "extensions")
	var without []jsonrpc.Value
	_ = jsonrpc.Each(extensions, func(key string, _ json.RawMessage) { // other values have no members
		switch {
		case era == mcp.Legacy && key == mcp.ExtensionTasks: // an extension only in the modern era
			without = append(without, jsonrpc.Value{Key: key})
		case !IsKnownExtension(key) && key != mcp.ExtensionEvents:
			if had, _ := jsonrpc.Member(before, key); had != nil {
				in.Twice = append(in.Twice, key)
				without = append(without, jsonrpc.Value{Key: key})
			}
		}
	})
	if without != nil {
		extensions = jsonrpc.Set(extensions, without...)
		if string(extensions) == "{}" {
			extensions = nil
		}
		offered = jsonrpc.Set(offered, jsonrpc.Value{Key: "extensions", Text: extensions})
	}
	in.Capabilities = union(in.Capabilities, offered)
}

// IsKnownExtension reports whether the proxy knows all that an extension may say. Events are a draft:
// what the proxy does not know of them passes as for unknown extensions.
func IsKnownExtension(key string) bool {
	return key == mcp.ExtensionTasks || key == mcp.ExtensionUI || key == mcp.ExtensionSkills
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
