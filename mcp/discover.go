package mcp

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// DiscoverMethod is the request that shows which era a server speaks.
const DiscoverMethod = "server/discover"

// Discover returns a server/discover that this program sends in its own name.
func Discover(id jsonrpc.ID) *jsonrpc.Message {
	params := SetMeta(nil,
		jsonrpc.Value{Key: KeyVersion, Text: jsonrpc.Quote(ModernVersions[0])},
		jsonrpc.Value{Key: KeyClientInfo, Text: json.RawMessage(`{"name":"mcp-proxy","version":"1"}`)},
		jsonrpc.Value{Key: KeyCapabilities, Text: json.RawMessage(`{}`)})
	return jsonrpc.NewRequest(id, DiscoverMethod, params)
}

// DiscoversModern reports whether the answer to a server/discover is that of a
// server with which we have a version of the modern era in common. A server that
// demands a capability, or finds fault with a header, is of that era, too
// (2026-07-28 basic/versioning: recognized modern errors); any other error is no
// sign of it.
func DiscoversModern(answer *jsonrpc.Message) bool {
	if answer.Result != nil {
		versions, _ := jsonrpc.Member(answer.Result, "supportedVersions")
		return SpokenVersion(versions, "") != ""
	}
	raw, _ := jsonrpc.Member(answer.Error, "code")
	switch code, _ := strconv.Atoi(string(raw)); code {
	case CodeUnsupportedVersion:
		return SpokenVersion(SupportedVersions(answer.Error), "") != ""
	case CodeHeaderMismatch, CodeMissingCapability:
		return true
	}
	return false
}

// SupportedVersions returns the array of versions in an error -32022, nil if there
// is none.
func SupportedVersions(refusal json.RawMessage) json.RawMessage {
	data, _ := jsonrpc.Member(refusal, "data")
	versions, _ := jsonrpc.Member(data, "supported")
	return versions
}

// SpokenVersion returns the newest version of the modern era, besides one, in an
// array of versions that we speak; "" for none.
func SpokenVersion(versions json.RawMessage, besides string) string {
	elements, _ := jsonrpc.Elements(versions)
	spoken := func(v string) bool {
		return v != besides && slices.ContainsFunc(elements, func(e json.RawMessage) bool {
			text, _ := jsonrpc.Unquote(e)
			return text == v
		})
	}
	if i := slices.IndexFunc(ModernVersions, spoken); i >= 0 {
		return ModernVersions[i]
	}
	return ""
}
