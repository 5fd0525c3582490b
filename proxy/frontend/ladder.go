package frontend

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The headers of the modern era, in the form in which net/http keeps them.
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
)

// checkModern returns why a message of a modern client is refused with 400, nil if
// it is not. The order decides which error a client sees that made several.
func checkModern(h http.Header, m *jsonrpc.Message) *jsonrpc.Error {
	switch {
	case len(h[headerVersion]) > 1:
		return mcp.HeaderMismatch(headerVersion)
	case m.Batch != nil:
		return invalidRequest("batches do not exist in this protocol version")
	case m.IsNotification():
		return checkNotification(h, m)
	case !m.IsRequest():
		return invalidRequest("a client has no responses to send in this protocol version")
	}
	keys := []string{"_meta", mcp.MethodOf(m.Method).HeaderKey()}
	var at [2]jsonrpc.Span
	if keys[1] == "" {
		keys = keys[:1]
	}
	err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], keys...)
	meta, ambiguous := mcp.ReadMetaIn(m.Params, at[0])
	if err != nil || ambiguous != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: `Invalid params: "` + strings.Join(keys, `" or "`) + `" is ambiguous`}
	}
	bad := meta.Check()
	if bad != nil && bad.Code != mcp.CodeUnsupportedVersion {
		return bad
	}
	switch {
	case !says(h[headerVersion], meta.Version):
		return mcp.HeaderMismatch(headerVersion)
	case !says(h[headerMethod], m.Method):
		return mcp.HeaderMismatch(headerMethod)
	case len(keys) > 1 && !names(h[headerName], at[1].Of(m.Params)):
		return mcp.HeaderMismatch(headerName)
	}
	return bad
}

// twoVersions refuses a request whose version comes twice, and reports whether it
// did. A POST of the modern era is left to checkModern, which knows its id.
func twoVersions(w http.ResponseWriter, r *http.Request, path string) bool {
	modern := modernHeader(r)
	switch {
	case len(r.Header[headerVersion]) < 2 || modern && path == "/mcp" && r.Method == http.MethodPost:
		return false
	case modern:
		refuseWith(w, http.StatusBadRequest, mcp.HeaderMismatch(headerVersion))
	default:
		refuse(w, http.StatusBadRequest, headerVersion+" comes twice")
	}
	return true
}

// says reports whether there is one value and it is want.
func says(values []string, want string) bool {
	return len(values) == 1 && strings.Trim(values[0], " \t") == want
}

// names reports whether there is one value of Mcp-Name and it is the JSON string want.
func names(values []string, raw json.RawMessage) bool {
	want, ok := jsonrpc.Unquote(raw)
	if !ok || len(values) != 1 {
		return false
	}
	got, ok := mcp.DecodeHeader(values[0])
	return ok && got == want
}

// checkNotification is the ladder for notifications, which need no headers and no
// _meta ("header requirements for notification POSTs are not defined by this
// revision"). What is there must be right.
func checkNotification(h http.Header, m *jsonrpc.Message) *jsonrpc.Error {
	meta, err := mcp.ReadMeta(m.Params)
	version := strings.Trim(h.Get(headerVersion), " \t")
	if meta.Claimed {
		if len(h[headerVersion]) > 0 && !says(h[headerVersion], meta.Version) {
			return mcp.HeaderMismatch(headerVersion)
		}
		version = meta.Version
	}
	switch {
	case err != nil:
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: `Invalid params: "_meta" is ambiguous`}
	case len(h[headerMethod]) > 0 && !says(h[headerMethod], m.Method):
		return mcp.HeaderMismatch(headerMethod)
	case !slices.Contains(mcp.ModernVersions, version):
		return mcp.UnsupportedVersion(version, mcp.Versions)
	}
	return nil
}

// repeated returns the headers that repeat arguments of a call. Which there have to
// be is known to who knows the tool. Nobody writes to them.
func repeated(h http.Header) map[string][]string {
	found := nothingRepeated
	for name, values := range h {
		if !strings.HasPrefix(name, "Mcp-Param-") {
			continue
		}
		if len(found) == 0 {
			found = make(map[string][]string)
		}
		found[strings.ToLower(name)] = values
	}
	return found
}

var nothingRepeated = map[string][]string{}
