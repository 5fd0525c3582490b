package mcp

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

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
	versions, tells := versionsIn(answer)
	if tells {
		return SpeaksModern(versions)
	}
	switch codeOf(answer.Error) {
	case CodeHeaderMismatch, CodeMissingCapability:
		return true
	}
	return jsonrpc.ReadErrorData(answer.Error).Reason != ""
}

// versionsIn returns the versions that a server lists, in a result of server/discover or in an error about the
// version, and whether the answer is one of these.
func versionsIn(answer *jsonrpc.Message) (versions json.RawMessage, tells bool) {
	switch {
	case answer.Result != nil:
		versions, _ = jsonrpc.Member(answer.Result, "supportedVersions")
		return versions, true
	case codeOf(answer.Error) == CodeUnsupportedVersion:
		data, _ := jsonrpc.Member(answer.Error, "data")
		versions, _ = jsonrpc.Member(data, "supported")
		return versions, true
	}
	return nil, false
}

func codeOf(failed json.RawMessage) int {
	raw, _ := jsonrpc.Member(failed, "code")
	code, _ := strconv.Atoi(string(raw))
	return code
}

// A VersionError says that a server speaks only versions that we do not.
type VersionError struct{ versions []string }

// Error implements error. The text is a predicate whose subject is the server.
func (e *VersionError) Error() string {
	return "speaks only " + strings.Join(e.versions, ", ") + ", and this proxy speaks " + LegacyVersions[len(LegacyVersions)-1] + " to " + Versions[0]
}

// maxVersions bounds the versions in the text of a VersionError.
const maxVersions = 4

// isVersion reports whether a text of a server may be shown as a version.
func isVersion(text string) bool {
	odd := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-'
	}
	return text != "" && len(text) <= 20 && !strings.ContainsFunc(text, odd)
}

// OtherVersions returns the error that an answer to server/discover or initialize means if it lists versions and we
// speak none of them, else nil.
func OtherVersions(answer *jsonrpc.Message) *VersionError {
	listed, _ := versionsIn(answer)
	elements, _ := jsonrpc.Elements(listed)
	e := &VersionError{}
	for _, element := range elements {
		text, _ := jsonrpc.Unquote(element)
		if slices.Contains(Versions, text) {
			return nil
		}
		if isVersion(text) && len(e.versions) < maxVersions {
			e.versions = append(e.versions, text)
		}
	}
	if e.versions == nil {
		return nil
	}
	return e
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
