package eras

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Values of resultType in the core protocol. If it is absent, the first is meant.
const (
	resultComplete      = "complete"
	resultInputRequired = "input_required"
	resultTask          = "task" // of the tasks extension, which is not translated
)

// unknownResultType is the cause of an error for a result whose resultType the client cannot know.
const unknownResultType = "unknown resultType"

var errNoObject = errors.New("not an object")

// The members of _meta that concern one hop, as values that remove them.
var reserved = []jsonrpc.Value{
	{Key: mcp.KeyVersion}, {Key: mcp.KeyClientInfo}, {Key: mcp.KeyCapabilities},
	{Key: mcp.KeyLogLevel}, {Key: mcp.KeySubscription}, {Key: mcp.KeyServerInfo},
}

// stripReserved returns params or a result without the keys of _meta that concern only one hop. Nil
// stays nil.
func stripReserved(object json.RawMessage) json.RawMessage {
	if !mayHave(object, "_meta") {
		return object
	}
	return mcp.SetMeta(object, reserved...)
}

// mayHave reports whether object may have a member. Its key may have escapes.
func mayHave(object json.RawMessage, key string) bool {
	return bytes.Contains(object, []byte(key)) || bytes.Contains(object, []byte(`\u`))
}

// A modernResult is a result of a modern server with the positions of its relevant members, found
// in one pass.
type modernResult struct {
	text json.RawMessage
	kind string // resultType; absent means complete

	resultType, ttl, scope, meta, content, structured jsonrpc.Span
}

// readModernResult reads a result. It returns an error if the kind is ambiguous.
func readModernResult(text json.RawMessage) (modernResult, error) {
	r := modernResult{text: text, kind: resultComplete}
	if len(text) == 0 || text[0] != '{' {
		return r, errNoObject
	}
	var at [6]jsonrpc.Span
	if err := jsonrpc.Find(text, jsonrpc.Span{}, at[:], "resultType", "ttlMs", "cacheScope", "_meta", "content", "structuredContent"); err != nil {
		return r, err
	}
	r.resultType, r.ttl, r.scope, r.meta, r.content, r.structured = at[0], at[1], at[2], at[3], at[4], at[5]
	if r.resultType.IsZero() {
		return r, nil
	}
	var ok bool
	if r.kind, ok = jsonrpc.Unquote(r.resultType.Of(text)); !ok {
		return r, errors.New("resultType is not a string")
	}
	return r, nil
}

// toLegacy returns a complete result for a legacy client of a version. Parts that would make the
// client reject the whole result become text or are left out.
func (r modernResult) toLegacy(method, version string) json.RawMessage {
	edits := []jsonrpc.Edit{{Span: r.resultType}}
	if row := mcp.MethodOf(method); row.Cacheable && !row.OfExtension() {
		edits = append(edits, jsonrpc.Edit{Span: r.ttl}, jsonrpc.Edit{Span: r.scope})
	}
	if !r.meta.IsZero() {
		edits = append(edits, jsonrpc.Edit{Span: r.meta, With: orNil(jsonrpc.Set(r.meta.Of(r.text), reserved...))})
	}
	switch method {
	case mcp.MethodToolsCall:
		edits = append(edits, r.legacyContent(version)...)
	case mcp.MethodToolsList:
		edits = append(edits, r.each("tools", legacyTool))
	case mcp.MethodPromptsGet:
		if version < linksSince {
			edits = append(edits, r.each("messages", func(m json.RawMessage) json.RawMessage { return legacyMessage(version, m) }))
		}
	}
	return edited(r.text, edits...)
}

// each returns the edit that applies fn to each element of an array.
func (r modernResult) each(key string, fn func(json.RawMessage) json.RawMessage) jsonrpc.Edit {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(r.text, jsonrpc.Span{}, at[:], key) != nil {
		return jsonrpc.Edit{}
	}
	return jsonrpc.Edit{Span: at[0], With: changed(at[0].Of(r.text), fn)}
}

// The versions that introduced types of content.
const (
	audioSince = "2025-03-26"
	linksSince = "2025-06-18"
)

// orNil returns nil for an object without members, so that the member with it is removed.
func orNil(object json.RawMessage) json.RawMessage {
	if string(object) == "{}" {
		return nil
	}
	return object
}

// legacyContent returns the edits to the result of a tool. Before 2026-07-28 structuredContent had
// to be an object. If there is no other content, its text becomes the content.
func (r modernResult) legacyContent(version string) []jsonrpc.Edit {
	var edits []jsonrpc.Edit
	content := r.content.Of(r.text)
	if version < linksSince {
		blocks := changed(content, func(b json.RawMessage) json.RawMessage { return legacyBlock(version, b) })
		edits = append(edits, jsonrpc.Edit{Span: r.content, With: blocks})
	}
	if r.structured.IsZero() || r.text[r.structured.Start] == '{' {
		return edits
	}
	if isEmptyArray(content) {
		block := textBlock(string(r.structured.Of(r.text)))
		edits = []jsonrpc.Edit{{Span: r.content, With: jsonrpc.Array([]json.RawMessage{block})}}
	}
	return append(edits, jsonrpc.Edit{Span: r.structured})
}

func isEmptyArray(text json.RawMessage) bool {
	return text != nil && text[0] == '[' && len(bytes.TrimSpace(text[1:len(text)-1])) == 0
}

// legacyTool returns a tool without an outputSchema that is not for objects, because a client that
// validates lists would reject the whole list.
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

// legacyMessage returns a message of a prompt with its content as text if version does not know its
// type.
func legacyMessage(version string, message json.RawMessage) json.RawMessage {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(message, jsonrpc.Span{}, at[:], "content") != nil || at[0].IsZero() {
		return message
	}
	return edited(message, jsonrpc.Edit{Span: at[0], With: legacyBlock(version, at[0].Of(message))})
}

// legacyBlock returns a content block as text if version does not know its type.
func legacyBlock(version string, block json.RawMessage) json.RawMessage {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(block, jsonrpc.Span{}, at[:], "type", "uri") != nil {
		return block
	}
	switch kind, _ := jsonrpc.Unquote(at[0].Of(block)); {
	case kind == "resource_link" && version < linksSince:
		uri, _ := jsonrpc.Unquote(at[1].Of(block))
		return textBlock("Resource: " + uri)
	case kind == "audio" && version < audioSince:
		return textBlock("(audio omitted)")
	}
	return block
}

func textBlock(text string) json.RawMessage {
	return append(append([]byte(`{"type":"text","text":`), jsonrpc.Quote(text)...), '}')
}

// changed returns an array with fn applied to each element. It returns other values unchanged.
func changed(list json.RawMessage, fn func(json.RawMessage) json.RawMessage) json.RawMessage {
	elements, err := jsonrpc.Elements(list)
	if err != nil {
		return list
	}
	for i, e := range elements {
		elements[i] = fn(e)
	}
	return jsonrpc.Array(elements)
}

// saysCaching reports whether modern results of a method say how long they may be cached, as those of all lists
// do.
func saysCaching(method string) bool {
	row := mcp.MethodOf(method)
	return row.Cacheable || row.Name == "" && strings.HasSuffix(method, "/list")
}

// toModernResult returns a legacy result as a complete modern one, which must not be cached.
// serverInfo may be nil.
func toModernResult(method string, result, serverInfo json.RawMessage) json.RawMessage {
	values := []jsonrpc.Value{{Key: "resultType", Text: jsonrpc.Quote(resultComplete)}}
	if saysCaching(method) {
		values = append(values, jsonrpc.Value{Key: "ttlMs", Text: []byte(`0`)},
			jsonrpc.Value{Key: "cacheScope", Text: []byte(`"private"`)})
	}
	meta, _ := jsonrpc.Member(result, "_meta")
	if meta != nil {
		meta = jsonrpc.Set(meta, reserved...)
	}
	if serverInfo != nil {
		meta = jsonrpc.Set(meta, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: serverInfo})
	}
	return jsonrpc.Set(result, append(values, jsonrpc.Value{Key: "_meta", Text: orNil(meta)})...)
}

// toLegacyError returns an error of a modern server for a legacy client: a missing resource has its
// own code, and codes that only the modern era has become internal errors, with their message and
// data.
func toLegacyError(method string, text json.RawMessage) json.RawMessage {
	e, ok := readError(text)
	switch {
	case !ok:
	case e.Code == jsonrpc.CodeInvalidParams && method == mcp.MethodResourcesRead && e.saysNotFound():
		return e.withCode(jsonrpc.CodeResourceNotFound)
	case e.Code == mcp.CodeHeaderMismatch, e.Code == mcp.CodeMissingCapability, e.Code == mcp.CodeUnsupportedVersion:
		return e.withCode(jsonrpc.CodeInternalError)
	}
	return text
}

// toModernError returns an error of a legacy server for a modern client. Codes with a meaning only
// in the modern era become internal errors, because they would make a client negotiate. Only a
// missing capability that is named keeps its code. Codes that only the legacy era has are replaced
// for methods that we know: an extension may give them a meaning for its own.
func toModernError(method string, text json.RawMessage) json.RawMessage {
	e, ok := readError(text)
	known := mcp.MethodOf(method).Name != ""
	switch {
	case !ok:
	case known && e.Code == jsonrpc.CodeResourceNotFound:
		return e.withCode(jsonrpc.CodeInvalidParams)
	case e.Code == mcp.CodeMissingCapability && e.namesCapability():
	case e.Code == mcp.CodeHeaderMismatch, e.Code == mcp.CodeMissingCapability,
		e.Code == mcp.CodeUnsupportedVersion, known && e.Code == mcp.CodeURLElicitation:
		return e.withCode(jsonrpc.CodeInternalError)
	}
	return text
}

// A wireError is a parsed error object.
type wireError struct {
	Text          json.RawMessage
	Code          int
	at            jsonrpc.Span // of the code
	Message, Data json.RawMessage
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
	return jsonrpc.Replace(e.Text, jsonrpc.Edit{Span: e.at, With: strconv.AppendInt(nil, int64(code), 10)})
}

// namesCapability reports whether the data is that of -32021 (2026-07-28 schema,
// MissingRequiredClientCapabilityError).
func (e wireError) namesCapability() bool {
	required, err := jsonrpc.Member(e.Data, "requiredCapabilities")
	return err == nil && required != nil && required[0] == '{'
}

// saysNotFound reports whether invalid params of resources/read mean a missing resource, which only
// the text tells (2026-07-28 server/resources). "Unknown resource" is of the Python SDK.
func (e wireError) saysNotFound() bool {
	message, _ := jsonrpc.Unquote(e.Message)
	words := strings.ToLower(message + string(e.Data))
	return strings.Contains(words, "not found") || strings.Contains(words, "not_found") || strings.Contains(words, "unknown resource")
}

// notTheFirst returns the error for a call that was sent before. If it says that the request was
// not sent, that does not hold for the whole call: the earlier attempts may have had effects.
func notTheFirst(text json.RawMessage) json.RawMessage {
	var data [1]jsonrpc.Span
	var at [2]jsonrpc.Span
	if jsonrpc.Find(text, jsonrpc.Span{}, data[:], "data") != nil || data[0].IsZero() ||
		jsonrpc.Find(text, data[0], at[:], "phase", "retryable") != nil || string(at[0].Of(text)) != `"`+string(jsonrpc.NotSent)+`"` {
		return text
	}
	return jsonrpc.Replace(text, jsonrpc.Edit{Span: at[0], With: jsonrpc.Quote(string(jsonrpc.InFlight))},
		jsonrpc.Edit{Span: at[1], With: []byte(`false`)})
}

// withoutTasks returns capabilities of a client or a server for the other era. It removes tasks,
// which are different protocols in the two eras. Everything else has the same name and place in
// both, including extensions: legacy versions allow additional capabilities, and MCP Apps
// (io.modelcontextprotocol/ui) is negotiated there with 2025-11-25.
func withoutTasks(capabilities json.RawMessage) json.RawMessage {
	extensions, _ := jsonrpc.Member(capabilities, "extensions")
	if extensions != nil {
		extensions = orNil(jsonrpc.Set(extensions, jsonrpc.Value{Key: mcp.ExtensionTasks}))
	}
	return jsonrpc.Set(capabilities, jsonrpc.Value{Key: "tasks"}, jsonrpc.Value{Key: "extensions", Text: extensions})
}

// abilitiesOf returns what servers may ask of a client: nothing, if that is ambiguous.
func abilitiesOf(capabilities json.RawMessage) mcp.Abilities {
	can, _ := mcp.ReadAbilities(capabilities)
	return can
}

// edited returns an object with edits of its members made. It is like [jsonrpc.Replace], but an Edit
// without With removes the member. It does not read the unchanged parts again.
func edited(object json.RawMessage, edits ...jsonrpc.Edit) json.RawMessage {
	slices.SortFunc(edits, func(a, b jsonrpc.Edit) int { return a.Start - b.Start })
	size := len(object)
	for _, e := range edits {
		size += len(e.With)
	}
	out, from := make([]byte, 0, size), 0
	for _, e := range edits {
		switch {
		case e.IsZero():
		case e.With != nil:
			out = append(append(out, object[from:e.Start]...), e.With...)
			from = e.End
		default:
			out = append(out, object[from:nameStart(object, e.Start)]...)
			if from = afterComma(object, e.End); from == e.End { // the last one
				out = bytes.TrimSuffix(bytes.TrimRight(out, space), []byte(","))
			}
		}
	}
	return append(out, object[from:]...)
}

const space = " \t\r\n"

// nameStart returns the start of the name of the value at start. The name was passed to Find, so it
// contains no quote.
func nameStart(object []byte, start int) int {
	end := bytes.LastIndexByte(object[:start], '"')
	return bytes.LastIndexByte(object[:end], '"')
}

// afterComma returns the start of the member after the value at end, or end if there is none.
func afterComma(object []byte, end int) int {
	rest := bytes.TrimLeft(object[end:], space)
	if rest[0] != ',' {
		return end
	}
	return len(object) - len(bytes.TrimLeft(rest[1:], space))
}
