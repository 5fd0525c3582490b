package mcp

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An Era is a family of protocol versions that understand each other.
type Era string

// The eras, as a hello of a link and a configuration call them.
const (
	Legacy Era = "legacy"
	Modern Era = "modern"
)

// Other returns the era that e is not.
func (e Era) Other() Era {
	if e == Modern {
		return Legacy
	}
	return Modern
}

// ErrOtherEra is in the end of a stream whose server turned out to speak the other era.
var ErrOtherEra = errors.New("the server speaks the other era")

// Versions that this program speaks, newest first.
var (
	ModernVersions = []string{"2026-07-28"}
	LegacyVersions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
	Versions       = slices.Concat(ModernVersions, LegacyVersions)
)

// IsModern reports whether a version, known or not, is one without sessions.
// Versions are dates and compare as text.
func IsModern(version string) bool { return version >= "2026-07-28" }

// principalPrefix begins the key of a principal, which comes back under the same key
// whenever it likes. Any other key is of one connection, and not seen again when that
// has ended.
const principalPrefix = "p-"

// PrincipalKey returns a key of a principal of a proxy, p-NAME.WHO-PROXY: a name that no
// other key has, a word for the principal, which all its keys have, and the proxy's id if
// it has one. Name and who must have no "-" and no ".".
func PrincipalKey(name, who, proxy string) string {
	key := principalPrefix + name + "." + who
	if proxy == "" {
		return key
	}
	return key + "-" + proxy
}

// ConnectionKey returns the key of one connection, NAME.WHO, whose parts are those of
// [PrincipalKey]. Who is "" for a connection of no client.
func ConnectionKey(name, who string) string { return name + "." + who }

// A Holder is what a key says of its holder: how long to keep what is the holder's, and
// what else is the same principal's, but not who that is.
type Holder struct {
	Principal bool   // may come back whenever it likes; else it is one connection
	Who       string // the word for its principal; "" for no client
	Proxy     string // of a principal, the id of its proxy; "" if that has none
}

// HolderOf returns the holder of a key. One that has no word for its principal is taken for
// that of a principal of its own.
func HolderOf(key string) Holder {
	rest, principal := strings.CutPrefix(key, principalPrefix)
	words, proxy, _ := strings.Cut(rest, "-")
	who, after, ok := strings.Cut(words, ".")
	if ok {
		who = after
	}
	if !principal {
		proxy = ""
	}
	return Holder{Principal: principal, Who: who, Proxy: proxy}
}

// Error codes that MCP defines beside JSON-RPC's.
const (
	CodeURLElicitation     = -32042 // legacy, 2025-11-25; -32002 stands in jsonrpc
	CodeHeaderMismatch     = -32020 // modern, as are those below
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

// The reserved keys of _meta (2026-07-28 basic/index).
const (
	KeyVersion      = "io.modelcontextprotocol/protocolVersion"
	KeyClientInfo   = "io.modelcontextprotocol/clientInfo"
	KeyCapabilities = "io.modelcontextprotocol/clientCapabilities"
	KeyLogLevel     = "io.modelcontextprotocol/logLevel"
	KeySubscription = "io.modelcontextprotocol/subscriptionId"
	KeyServerInfo   = "io.modelcontextprotocol/serverInfo"
	KeyRelatedTask  = "io.modelcontextprotocol/related-task" // of 2025-11-25: ties a message to a task
)

// Extensions that are more than a key in capabilities.
const (
	ExtensionTasks = "io.modelcontextprotocol/tasks"
	ExtensionUI    = "io.modelcontextprotocol/ui"
)

// Meta is what a modern request says in _meta about itself and its sender.
type Meta struct {
	Claimed bool   // it names a protocol version, and so is of the modern era
	Version string // "" if what it names is no string

	Capabilities json.RawMessage // of the client; nil if absent
	ClientInfo   json.RawMessage // nil if absent
	LogLevel     json.RawMessage // nil if absent
}

// Check returns what is wrong with the _meta of a modern request, nil if nothing
// is: a required key is missing or malformed (-32602), the log level is none
// (-32602), or nobody here speaks the version (-32022).
func (m Meta) Check() *jsonrpc.Error {
	switch {
	case m.Version == "":
		return invalid(`"_meta" has no valid "` + KeyVersion + `"`)
	case len(m.Capabilities) == 0 || m.Capabilities[0] != '{':
		return invalid(`"_meta" has no valid "` + KeyCapabilities + `"`)
	case m.ClientInfo != nil && m.ClientInfo[0] != '{':
		return invalid(`"` + KeyClientInfo + `" is not an object`)
	case m.LogLevel != nil && !isLogLevel(m.LogLevel):
		return invalid(`"` + KeyLogLevel + `" is not a log level`)
	case !slices.Contains(ModernVersions, m.Version):
		return UnsupportedVersion(m.Version, Versions)
	}
	return nil
}

func invalid(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: " + reason}
}

// LogLevels are the severities of server/utilities/logging, the most verbose
// first; they are the same in both eras.
var LogLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// ReadLevel returns a log level as its place in [LogLevels], from 1 for the most
// verbose; zero if text is none.
func ReadLevel(text json.RawMessage) int {
	name, _ := jsonrpc.Unquote(text)
	return slices.Index(LogLevels, name) + 1
}

func isLogLevel(raw json.RawMessage) bool {
	level, ok := jsonrpc.Unquote(raw)
	return ok && slices.Contains(LogLevels, level)
}

// UnsupportedVersion returns the error -32022, which names the versions that are
// spoken here.
func UnsupportedVersion(requested string, supported []string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: CodeUnsupportedVersion, Message: "Unsupported protocol version",
		Data: versionData{supported, requested}}
}

type versionData struct {
	Supported []string `json:"supported"`
	Requested string   `json:"requested"`
}

// MissingCapability returns the error -32021. required is a ClientCapabilities
// object: {"elicitation":{}}.
func MissingCapability(required json.RawMessage) *jsonrpc.Error {
	return &jsonrpc.Error{Code: CodeMissingCapability, Message: "Missing required client capability",
		Data: capabilityData{required}}
}

type capabilityData struct {
	Required json.RawMessage `json:"requiredCapabilities"`
}

// SetMeta returns params, or a result, with keys of its _meta set or taken out, as
// [jsonrpc.Set] does. A _meta that is left without members goes, too.
func SetMeta(object json.RawMessage, values ...jsonrpc.Value) json.RawMessage {
	meta, _ := jsonrpc.Member(object, "_meta")
	if meta = jsonrpc.Set(meta, values...); string(meta) == "{}" {
		meta = nil
	}
	return jsonrpc.Set(object, jsonrpc.Value{Key: "_meta", Text: meta})
}
