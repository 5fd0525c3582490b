package frontend

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The headers of Streamable HTTP, in the canonical form of net/http. The last two are of the modern
// era.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerLastID  = "Last-Event-Id"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
)

// field returns the first value of a header whose name is in canonical form. Header.Get would find that form for each
// request.
func field(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// versions are the protocol versions of legacy Streamable HTTP, oldest first.
var versions = []string{"2025-03-26", "2025-06-18", "2025-11-25"}

func knownVersion(v string) bool { return v == "" || slices.Contains(versions, v) }

// checkPost checks the headers that every POST needs, and refuses the POST if they are wrong.
func checkPost(w http.ResponseWriter, r *http.Request) bool {
	if mediaType(field(r.Header, "Content-Type")) != typeJSON {
		refuse(w, http.StatusUnsupportedMediaType, "Content-Type must be application/json")
		return false
	}
	if e := field(r.Header, "Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		refuse(w, http.StatusUnsupportedMediaType, "Content-Encoding is not supported")
		return false
	}
	return true
}

// checkAccept refuses a client that does not accept all of these types.
func checkAccept(w http.ResponseWriter, r *http.Request, types ...string) bool {
	for _, t := range types {
		if !accepts(r, t) {
			refuse(w, http.StatusNotAcceptable, "Accept must list "+strings.Join(types, " and "))
			return false
		}
	}
	return true
}

// accepts reports whether the client accepts want, "type/subtype". A client without an Accept
// header accepts everything.
func accepts(r *http.Request, want string) bool {
	values := r.Header["Accept"]
	if len(values) == 0 {
		return true
	}
	class, _, _ := strings.Cut(want, "/")
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			switch mediaType(part) {
			case want, "*/*", class + "/*":
				return true
			}
		}
	}
	return false
}

// mediaType returns a media type without its parameters.
func mediaType(value string) string {
	t, _, _ := strings.Cut(value, ";")
	if t == typeJSON {
		return t
	}
	return strings.ToLower(strings.TrimSpace(t))
}

// modernHeader reports whether a header of r names a version of the modern era, known or not. A
// value that is no date does not count.
func modernHeader(r *http.Request) bool {
	return slices.ContainsFunc(r.Header[headerVersion], func(v string) bool { return mcp.IsModern(v) && v[0] <= '9' })
}

// isModern reports whether the body of a POST is of the modern era. A batch is if one of its
// messages is.
func isModern(m *jsonrpc.Message) bool {
	if m.Batch != nil {
		return slices.ContainsFunc(m.Batch, isModern)
	}
	n := mcp.Read(m)
	return n.Method.ModernOnly() || n.Has(mcp.Version)
}

// twoVersions refuses a request with a duplicate version header, and reports whether it did. It
// leaves a POST of the modern era to checkModern, which knows the id.
func twoVersions(w http.ResponseWriter, r *http.Request, path string) bool {
	if len(r.Header[headerVersion]) < 2 {
		return false
	}
	switch modern := modernHeader(r); {
	case modern && path == "/mcp" && r.Method == http.MethodPost:
		return false
	case modern:
		writeError(w, http.StatusBadRequest, jsonrpc.ID{}, mcp.HeaderMismatch(headerVersion))
	default:
		refuse(w, http.StatusBadRequest, headerVersion+" comes twice")
	}
	return true
}

// checkModern compares a message of a modern client with the headers that repeat parts of it. It
// returns the error for a response with 400, nil if they match. The order of the checks decides
// which error a client with several mistakes gets.
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
	n := mcp.Read(m)
	meta, err := n.Claim()
	key := n.Method.HeaderKey()
	switch {
	case errors.Is(n.Err(mcp.Key), mcp.ErrTooLong): // no header can repeat it
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: " + n.Err(mcp.Key).Error()}
	case key != "" && (err != nil || n.Err(mcp.Key) != nil):
		return ambiguous(`_meta" or "` + key)
	case err != nil:
		return ambiguous("_meta")
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
	case key == "":
		return bad
	}
	name, ok := jsonrpc.Unquote(n.Raw(mcp.Key))
	switch {
	case !ok && len(h[headerName]) == 0: // there is nothing to repeat: the params are wrong, not the headers
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: `Invalid params: "` + key + `" must be a string`}
	case !ok || !names(h[headerName], name):
		return mcp.HeaderMismatch(headerName)
	}
	return bad
}

func ambiguous(keys string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: `Invalid params: "` + keys + `" is ambiguous`}
}

// checkNotification is checkModern for notifications. They need no headers and no _meta ("header
// requirements for notification POSTs are not defined by this revision"), but those that they have
// must match.
func checkNotification(h http.Header, m *jsonrpc.Message) *jsonrpc.Error {
	meta, err := mcp.Read(m).Claim()
	version := strings.Trim(h.Get(headerVersion), " \t")
	if meta.Claimed {
		if len(h[headerVersion]) > 0 && !says(h[headerVersion], meta.Version) {
			return mcp.HeaderMismatch(headerVersion)
		}
		version = meta.Version
	}
	switch {
	case err != nil:
		return ambiguous("_meta")
	case len(h[headerMethod]) > 0 && !says(h[headerMethod], m.Method):
		return mcp.HeaderMismatch(headerMethod)
	case !slices.Contains(mcp.ModernVersions, version):
		return mcp.UnsupportedVersion(version, mcp.Versions)
	}
	return nil
}

// says reports whether values is exactly want.
func says(values []string, want string) bool {
	return len(values) == 1 && strings.Trim(values[0], " \t") == want
}

// names reports whether values is exactly one Mcp-Name, for the name want.
func names(values []string, want string) bool {
	if len(values) != 1 {
		return false
	}
	got, ok := mcp.DecodeHeader(values[0])
	return ok && got == want
}

// repeated returns the headers that repeat arguments of a call. They travel with the message, and
// are checked where the tool's schema is known. The map must not be changed.
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

// traceOf returns the trace context in the headers of a request; nil for none. A duplicate
// traceparent is ignored, and lists may be split over several headers (W3C Trace Context, 3.2 and
// 3.3.1).
func traceOf(h http.Header) *jsonrpc.TraceContext {
	parent := h["Traceparent"]
	if len(parent) != 1 {
		return nil
	}
	list := func(header string) string { return strings.Join(h[header], ",") }
	return &jsonrpc.TraceContext{Parent: parent[0], State: list("Tracestate"), Baggage: list("Baggage")}
}
