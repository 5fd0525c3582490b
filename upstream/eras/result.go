package eras

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// completed is [toModernResult] for results that may be large: if the result has none of the
// members to add, it appends them without reading the result.
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
	if saysCaching(method) {
		out = append(out, `,"ttlMs":0,"cacheScope":"private"`...)
	}
	if serverInfo != nil {
		out = append(strconv.AppendQuote(append(out, `,"_meta":{`...), mcp.KeyServerInfo), ':')
		out = append(append(out, serverInfo...), '}')
	}
	return append(out, '}')
}

// extends reports whether a client declares an extension that may have results of its own.
func extends(capabilities json.RawMessage) (extended bool) {
	extensions, _ := jsonrpc.Member(capabilities, "extensions")
	_ = jsonrpc.Each(extensions, func(key string, _ json.RawMessage) { // other values have no members
		extended = extended || key != mcp.ExtensionTasks && key != mcp.ExtensionUI
	})
	return extended
}

// isOwnKind reports whether a resultType is none of those that we know, and passes nevertheless: of a method of an
// extension, or to a client with extensions of its own.
func isOwnKind(kind, method string, extended bool) bool {
	switch kind {
	case resultComplete, resultInputRequired, resultTask:
		return false
	}
	return extended || mcp.MethodOf(method).MaybeOfExtension()
}

// withOwnKind returns converted, the conversion of a legacy result, with the resultType of the result, if it has
// one of its own. It reports false if that does not pass to a client with these capabilities: such a result must
// be treated as invalid (2026-07-28 basic, "ResultType").
func withOwnKind(converted, result json.RawMessage, method string, capabilities json.RawMessage) (json.RawMessage, bool) {
	if !mayHave(result, "resultType") {
		return converted, true
	}
	raw, _ := jsonrpc.Member(result, "resultType")
	kind, ok := jsonrpc.Unquote(raw)
	switch {
	case raw == nil || kind == resultComplete:
		return converted, true
	case !ok || !isOwnKind(kind, method, extends(capabilities)):
		return nil, false
	}
	return jsonrpc.Set(converted, jsonrpc.Value{Key: "resultType", Text: raw}), true
}

// withoutTaskTools returns the result of a legacy tools/list without the tools that run only as
// tasks, which no modern client can call, and their names. It keeps the taskSupport of other tools,
// which modern clients ignore.
func withoutTaskTools(result json.RawMessage) (json.RawMessage, []string) {
	var at [1]jsonrpc.Span
	if !mayHave(result, "taskSupport") || jsonrpc.Find(result, jsonrpc.Span{}, at[:], "tools") != nil {
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
	return jsonrpc.Replace(result, jsonrpc.Edit{Span: at[0], With: jsonrpc.Array(tools)}), left
}

// A change is a list_changed notification.
type change struct{ capability, filter, method string }

// changes are in the order of mcp.Filter.
var changes = []change{
	{"tools", "toolsListChanged", mcp.MethodToolsChanged},
	{"prompts", "promptsListChanged", mcp.MethodPromptsChanged},
	{"resources", "resourcesListChanged", mcp.MethodResourcesChanged},
}

// declaredChanges returns the lists whose changes a server's capabilities declare, as in mcp.Filter.
func declaredChanges(capabilities json.RawMessage) (lists [4]bool) {
	for k, c := range changes {
		lists[k] = isSet(capabilities, c.capability, "listChanged")
	}
	return lists
}

// A welcome is a legacy server's result of initialize, for modern clients.
type welcome struct {
	Info     json.RawMessage // serverInfo
	Discover json.RawMessage // the result of server/discover, with the version of the server; see doc.go
	Logs     bool            // it declares logging

	Lists     [4]bool // lists whose changes it declares, as in mcp.Filter
	Subscribe bool
}

// readWelcome reads the result of initialize; false if a legacy client would reject it.
func readWelcome(result json.RawMessage) (w welcome, ok bool) {
	if len(result) == 0 || result[0] != '{' {
		return w, false
	}
	var at [3]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "protocolVersion", "capabilities", "serverInfo") != nil {
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
	w.Lists = declaredChanges(capabilities)
	w.Subscribe = isSet(capabilities, "resources", "subscribe")
	w.Discover = toModernResult(mcp.MethodDiscover, jsonrpc.Set(result,
		jsonrpc.Value{Key: "protocolVersion"},
		jsonrpc.Value{Key: "serverInfo"},
		jsonrpc.Value{Key: "supportedVersions", Text: jsonrpc.Array([]json.RawMessage{at[0].Of(result)})},
		jsonrpc.Value{Key: "capabilities", Text: withoutTasks(capabilities)}), w.Info)
	return w, true
}

// isSet reports whether a boolean inside a capability is true.
func isSet(capabilities json.RawMessage, name, key string) bool {
	capability, _ := jsonrpc.Member(capabilities, name)
	value, _ := jsonrpc.Member(capability, key)
	return string(value) == "true"
}

// Errors for requests of a server that no client is asked.
var (
	errNoCall      = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "no call is in progress that the request could belong to"}
	errCannotAsk   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client cannot be asked during this request"}
	errNotNeeded   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the call has ended"}
	errNoInput     = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientSilent, jsonrpc.InFlight)
	errTooManyAsks = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "too many questions"}
)

// Reasons why a requestState is refused, in the data of the error.
const (
	stateInvalid = "request_state_invalid" // of another request
	stateExpired = "request_state_expired" // expired, of another process, forged, or another client's
	stateUsed    = "request_state_used"
)

// refusedState returns the error for a requestState that is not accepted.
func refusedState(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: requestState is not valid here",
		Data: map[string]string{"reason": reason},
	}
}

var emptyObject = json.RawMessage(`{}`)

func updated(uri string) *jsonrpc.Message {
	return jsonrpc.NewNotification(mcp.MethodResourceUpdated, mcp.URIParams(uri))
}
