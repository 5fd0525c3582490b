package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// What a modern result's resultType may be in the core protocol. None is the first.
const (
	resultComplete      = "complete"
	resultInputRequired = "input_required"
)

var errNoObject = errors.New("not an object")

// Values of _meta that belong to one hop, to be taken out.
var reserved = []jsonrpc.Value{
	{Key: mcp.KeyVersion}, {Key: mcp.KeyClientInfo}, {Key: mcp.KeyCapabilities},
	{Key: mcp.KeyLogLevel}, {Key: mcp.KeySubscription}, {Key: mcp.KeyServerInfo},
}

// stripReserved returns params, or a result, without the keys of _meta that say
// something about one hop alone. Nil stays nil.
func stripReserved(object json.RawMessage) json.RawMessage {
	if !hasMeta(object) {
		return object
	}
	return mcp.SetMeta(object, reserved...)
}

// hasMeta reports whether object may have a member _meta; a key can be written with
// escapes.
func hasMeta(object json.RawMessage) bool {
	return bytes.Contains(object, []byte(`_meta`)) || bytes.Contains(object, []byte(`\u`))
}

// isCacheable reports whether a complete modern result of a method carries ttlMs
// and cacheScope (2026-07-28 server/utilities/caching).
func isCacheable(method string) bool {
	switch method {
	case "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read":
		return true
	}
	return false
}

// asksForInput reports whether a modern server may answer a method with
// input_required (2026-07-28 basic/patterns/mrtr).
func asksForInput(method string) bool {
	return method == "tools/call" || method == "prompts/get" || method == "resources/read"
}

// resultTypeOf returns what kind of result a modern one is: absent means complete.
// It is an error if that cannot be told for certain.
func resultTypeOf(result json.RawMessage) (string, error) {
	if len(result) == 0 || result[0] != '{' {
		return "", errNoObject
	}
	text, err := jsonrpc.Member(result, "resultType")
	if err != nil || text == nil {
		return resultComplete, err
	}
	kind, ok := jsonrpc.Unquote(text)
	if !ok {
		return "", errors.New("resultType is not a string")
	}
	return kind, nil
}

// toLegacyResult returns a complete modern result as a legacy client of a version
// knows it. What the client would refuse, and with it the whole result, is made text
// or left out.
func toLegacyResult(method, version string, result json.RawMessage) json.RawMessage {
	values := []jsonrpc.Value{{Key: "resultType"}}
	if isCacheable(method) {
		values = append(values, jsonrpc.Value{Key: "ttlMs"}, jsonrpc.Value{Key: "cacheScope"})
	}
	switch method {
	case "tools/call":
		values = append(values, legacyToolResult(version, result)...)
	case "tools/list":
		values = append(values, changed(result, "tools", legacyTool)...)
	case "prompts/get":
		values = append(values, legacyPrompt(version, result)...)
	}
	if meta, err := jsonrpc.Member(result, "_meta"); err == nil && meta != nil {
		values = append(values, jsonrpc.Value{Key: "_meta", Text: orNil(jsonrpc.Set(meta, reserved...))})
	}
	return jsonrpc.Set(result, values...)
}

// orNil makes an object without members nil, which takes it out.
func orNil(object json.RawMessage) json.RawMessage {
	if string(object) == "{}" {
		return nil
	}
	return object
}

// legacyToolResult returns what changes in the result of a tool: structuredContent
// was an object before 2026-07-28. If nothing else says what it said, a text does.
func legacyToolResult(version string, result json.RawMessage) []jsonrpc.Value {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "structuredContent", "content") != nil {
		return nil
	}
	structured, content := at[0].Of(result), at[1].Of(result)
	var values []jsonrpc.Value
	if structured != nil && structured[0] != '{' {
		values = append(values, jsonrpc.Value{Key: "structuredContent"})
		if isEmptyArray(content) {
			return append(values, jsonrpc.Value{Key: "content", Text: array(textBlock(string(structured)))})
		}
	}
	if version < "2025-06-18" {
		values = append(values, changed(result, "content", func(block json.RawMessage) json.RawMessage {
			return legacyBlock(version, block)
		})...)
	}
	return values
}

func isEmptyArray(text json.RawMessage) bool {
	return text == nil || text[0] == '[' && len(bytes.TrimSpace(text[1:len(text)-1])) == 0
}

// legacyTool returns a tool without an outputSchema that is not of objects: a
// client that validates lists would refuse the list for that one tool.
func legacyTool(tool json.RawMessage) json.RawMessage {
	schema, err := jsonrpc.Member(tool, "outputSchema")
	if err != nil || schema == nil {
		return tool
	}
	if kind, _ := jsonrpc.Member(schema, "type"); string(kind) == `"object"` {
		return tool
	}
	return jsonrpc.Set(tool, jsonrpc.Value{Key: "outputSchema"})
}

// legacyPrompt returns what changes in the result of prompts/get.
func legacyPrompt(version string, result json.RawMessage) []jsonrpc.Value {
	if version >= "2025-06-18" {
		return nil
	}
	return changed(result, "messages", func(message json.RawMessage) json.RawMessage {
		block, err := jsonrpc.Member(message, "content")
		if err != nil || block == nil {
			return message
		}
		if now := legacyBlock(version, block); !same(now, block) {
			return jsonrpc.Set(message, jsonrpc.Value{Key: "content", Text: now})
		}
		return message
	})
}

// legacyBlock returns a content block as text if its type is newer than version.
func legacyBlock(version string, block json.RawMessage) json.RawMessage {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(block, jsonrpc.Span{}, at[:], "type", "uri") != nil {
		return block
	}
	switch kind, _ := jsonrpc.Unquote(at[0].Of(block)); {
	case kind == "resource_link" && version < "2025-06-18":
		uri, _ := jsonrpc.Unquote(at[1].Of(block))
		return textBlock("Resource: " + uri)
	case kind == "audio" && version < "2025-03-26":
		return textBlock("(audio omitted)")
	}
	return block
}

func textBlock(text string) json.RawMessage {
	return append(append([]byte(`{"type":"text","text":`), jsonrpc.Quote(text)...), '}')
}

// changed returns the member of an object that is an array, if fn changes one of its
// elements: with what fn makes of each.
func changed(object json.RawMessage, key string, fn func(json.RawMessage) json.RawMessage) []jsonrpc.Value {
	list, err := jsonrpc.Member(object, key)
	if err != nil || list == nil {
		return nil
	}
	elements, err := jsonrpc.Elements(list)
	differs := false
	for i, e := range elements {
		elements[i] = fn(e)
		differs = differs || !same(elements[i], e)
	}
	if err != nil || !differs {
		return nil
	}
	return []jsonrpc.Value{{Key: key, Text: array(elements...)}}
}

// same reports whether two texts are the same bytes in memory, which is how fn tells
// that nothing changed.
func same(a, b json.RawMessage) bool { return len(a) == len(b) && &a[0] == &b[0] }

func array(elements ...json.RawMessage) json.RawMessage {
	out := []byte{'['}
	for i, e := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']')
}

// toModernResult returns a legacy result as a complete modern one. Nothing is said
// of how long it stays true, so that nobody keeps it. serverInfo may be nil.
func toModernResult(method string, result, serverInfo json.RawMessage) json.RawMessage {
	values := []jsonrpc.Value{{Key: "resultType", Text: jsonrpc.Quote(resultComplete)}}
	if isCacheable(method) {
		values = append(values, jsonrpc.Value{Key: "ttlMs", Text: []byte(`0`)},
			jsonrpc.Value{Key: "cacheScope", Text: []byte(`"private"`)})
	}
	meta, _ := jsonrpc.Member(result, "_meta")
	if meta != nil || serverInfo != nil {
		if meta != nil {
			meta = jsonrpc.Set(meta, reserved...)
		}
		if serverInfo != nil {
			meta = jsonrpc.Set(meta, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: serverInfo})
		}
		values = append(values, jsonrpc.Value{Key: "_meta", Text: orNil(meta)})
	}
	return jsonrpc.Set(result, values...)
}

// toLegacyError returns an error of a modern server as a legacy client knows it: a
// resource that is not there has a code of its own, and codes that mean something in
// the modern era alone are internal errors, with their message and data.
func toLegacyError(method string, text json.RawMessage) json.RawMessage {
	e, ok := readError(text)
	switch {
	case !ok:
	case e.code == jsonrpc.CodeInvalidParams && method == "resources/read" && e.saysNotFound():
		return e.withCode(jsonrpc.CodeResourceNotFound)
	case e.code == mcp.CodeHeaderMismatch, e.code == mcp.CodeMissingCapability, e.code == mcp.CodeUnsupportedVersion:
		return e.withCode(jsonrpc.CodeInternalError)
	}
	return text
}

// toModernError returns an error of a legacy server as a modern client knows it. A
// code that has a meaning in the modern era alone is an internal error: a client
// would begin to negotiate.
func toModernError(text json.RawMessage) json.RawMessage {
	e, ok := readError(text)
	switch {
	case !ok:
	case e.code == jsonrpc.CodeResourceNotFound:
		return e.withCode(jsonrpc.CodeInvalidParams)
	case e.code == mcp.CodeHeaderMismatch, e.code == mcp.CodeMissingCapability,
		e.code == mcp.CodeUnsupportedVersion, e.code == mcp.CodeURLElicitation:
		return e.withCode(jsonrpc.CodeInternalError)
	}
	return text
}

// A wireError is an error object with the code read.
type wireError struct {
	text          json.RawMessage
	code          int
	at            jsonrpc.Span // of the code
	message, data json.RawMessage
}

func readError(text json.RawMessage) (wireError, bool) {
	var at [3]jsonrpc.Span
	if jsonrpc.Find(text, jsonrpc.Span{}, at[:], "code", "message", "data") != nil {
		return wireError{}, false
	}
	code, err := strconv.Atoi(string(at[0].Of(text)))
	return wireError{text, code, at[0], at[1].Of(text), at[2].Of(text)}, err == nil
}

func (e wireError) withCode(code int) json.RawMessage {
	return jsonrpc.Replace(e.text, jsonrpc.Edit{Span: e.at, With: strconv.AppendInt(nil, int64(code), 10)})
}

// saysNotFound reports whether invalid params of resources/read are about a resource
// that does not exist, which only words can tell (2026-07-28 server/resources).
func (e wireError) saysNotFound() bool {
	message, _ := jsonrpc.Unquote(e.message)
	words := strings.ToLower(message + string(e.data))
	return strings.Contains(words, "not found") || strings.Contains(words, "not_found")
}

// bridgedCapabilities returns capabilities, of a client or a server, as the other
// era knows them. Tasks are different protocols in the two eras and stay behind.
// Everything else has the same name and place in both; that goes for extensions, too:
// the legacy versions let anybody add capabilities, and MCP Apps
// (io.modelcontextprotocol/ui) is negotiated there with 2025-11-25.
func bridgedCapabilities(capabilities json.RawMessage) json.RawMessage {
	extensions, _ := jsonrpc.Member(capabilities, "extensions")
	if extensions != nil {
		extensions = orNil(jsonrpc.Set(extensions, jsonrpc.Value{Key: mcp.ExtensionTasks}))
	}
	return jsonrpc.Set(capabilities, jsonrpc.Value{Key: "tasks"}, jsonrpc.Value{Key: "extensions", Text: extensions})
}
