package mcp

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Discover returns a server/discover of the proxy itself, which finds out the era of a server.
func Discover(id jsonrpc.ID) *jsonrpc.Message {
	params := SetMeta(nil,
		jsonrpc.Value{Key: KeyVersion, Text: jsonrpc.Quote(ModernVersions[0])},
		jsonrpc.Value{Key: KeyClientInfo, Text: json.RawMessage(`{"name":"mcp-proxy","version":"1"}`)},
		jsonrpc.Value{Key: KeyCapabilities, Text: json.RawMessage(`{}`)})
	return jsonrpc.NewRequest(id, MethodDiscover, params)
}

// DiscoversModern reports whether the answer to a server/discover comes from a server that shares a
// version of the modern era with us. A server that demands a capability or rejects a header is of
// that era, too (2026-07-28 basic/versioning: recognized modern errors). So is another mcp-proxy
// that says why it cannot answer: because it stops, or because of its upstreams. Other errors are
// of a server that does not know the request.
func DiscoversModern(answer *jsonrpc.Message) bool {
	if answer.Result != nil {
		versions, _ := jsonrpc.Member(answer.Result, "supportedVersions")
		return SpeaksModern(versions)
	}
	raw, _ := jsonrpc.Member(answer.Error, "code")
	switch code, _ := strconv.Atoi(string(raw)); code {
	case CodeUnsupportedVersion:
		data, _ := jsonrpc.Member(answer.Error, "data")
		versions, _ := jsonrpc.Member(data, "supported")
		return SpeaksModern(versions)
	case CodeHeaderMismatch, CodeMissingCapability:
		return true
	}
	return jsonrpc.ReadErrorData(answer.Error).Reason != ""
}

// OnlyLegacy reports whether an array of versions has only versions of the legacy era.
func OnlyLegacy(versions json.RawMessage) bool {
	elements, _ := jsonrpc.Elements(versions)
	return len(elements) > 0 && !slices.ContainsFunc(elements, func(e json.RawMessage) bool {
		text, ok := jsonrpc.Unquote(e)
		return !ok || IsModern(text)
	})
}

// SpeaksModern reports whether an array of versions has one of the modern era that we support.
func SpeaksModern(versions json.RawMessage) bool {
	elements, _ := jsonrpc.Elements(versions)
	return slices.ContainsFunc(elements, func(e json.RawMessage) bool {
		text, _ := jsonrpc.Unquote(e)
		return slices.Contains(ModernVersions, text)
	})
}
