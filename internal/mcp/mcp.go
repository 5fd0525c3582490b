package mcp

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An Era is a family of protocol versions with the same structure.
type Era string

// The eras, as the hello of a link and the configuration write them.
const (
	Legacy Era = "legacy"
	Modern Era = "modern"
)

// Other returns the other era.
func (e Era) Other() Era {
	if e == Modern {
		return Legacy
	}
	return Modern
}

// ErrOtherEra is wrapped by the end of a stream whose server speaks the other era.
var ErrOtherEra = errors.New("the server speaks the other era")

// Versions that we support, newest first.
var (
	ModernVersions = []string{"2026-07-28"}
	LegacyVersions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
	Versions       = slices.Concat(ModernVersions, LegacyVersions)
)

// IsModern reports whether a version, even an unknown one, is of the modern era. Versions are dates
// and compare as text.
func IsModern(version string) bool { return version >= "2026-07-28" }

// principalPrefix begins the key of a principal, which may return at any time with the same key.
// Any other key belongs to one connection, and does not return after that has ended.
const principalPrefix = "p-"

// PrincipalKey returns a key for a principal: p-NAME.WHO-PROXY. The name is unique, who is common
// to all keys of the principal, and proxy is the id of the proxy, "" for none. Name and who must
// not contain "-" or ".".
func PrincipalKey(name, who, proxy string) string {
	key := principalPrefix + name + "." + who
	if proxy == "" {
		return key
	}
	return key + "-" + proxy
}

// ConnectionKey returns the key of one connection: NAME.WHO, as in [PrincipalKey]. Who is "" for a
// connection without a client.
func ConnectionKey(name, who string) string { return name + "." + who }

// A Holder is what a key says about its holder: how long the holder's state must be kept, and which
// keys belong to the same principal, but not who that is.
type Holder struct {
	Principal bool   // may return at any time; else it is one connection
	Who       string // common to all keys of its principal; "" for no client
	Proxy     string // of a principal, the id of its proxy; "" if that has none
}

// HolderOf returns the holder of a key. A key without a who belongs to a principal of its own.
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

// Error codes that MCP defines in addition to JSON-RPC's.
const (
	CodeURLElicitation     = -32042 // legacy, 2025-11-25; -32002 is in jsonrpc
	CodeHeaderMismatch     = -32020 // modern, like the following ones
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
	ExtensionTasks  = "io.modelcontextprotocol/tasks"
	ExtensionUI     = "io.modelcontextprotocol/ui"
	ExtensionSkills = "io.modelcontextprotocol/skills" // SEP-2640
	ExtensionEvents = "io.modelcontextprotocol/events" // SEP-3415, a draft
)

// Meta is what a modern request says in _meta about itself and its sender.
type Meta struct {
	Claimed bool   // it names a protocol version, so it is of the modern era
	Version string // "" if the version is not a string

	Capabilities json.RawMessage // of the client; nil if absent
	ClientInfo   json.RawMessage // nil if absent
	LogLevel     json.RawMessage // nil if absent
}

// Check returns what is wrong with the _meta of a modern request, nil if nothing is: a required key
// is missing or malformed (-32602), the log level is invalid (-32602), or we do not support the
// version (-32022).
func (m Meta) Check() *jsonrpc.Error {
	switch {
	case m.Version == "":
		return jsonrpc.InvalidParams(`"_meta" has no valid "` + KeyVersion + `"`)
	case len(m.Capabilities) == 0 || m.Capabilities[0] != '{':
		return jsonrpc.InvalidParams(`"_meta" has no valid "` + KeyCapabilities + `"`)
	case m.ClientInfo != nil && m.ClientInfo[0] != '{':
		return jsonrpc.InvalidParams(`"` + KeyClientInfo + `" is not an object`)
	case m.LogLevel != nil && !isLogLevel(m.LogLevel):
		return jsonrpc.InvalidParams(`"` + KeyLogLevel + `" is not a log level`)
	case !slices.Contains(ModernVersions, m.Version):
		return UnsupportedVersion(m.Version, Versions)
	}
	return nil
}

// LogLevels are the severities of server/utilities/logging, in both eras, most verbose first.
var LogLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// ReadLevel returns the position of a log level in [LogLevels], from 1 for the most verbose; zero
// if text is no level.
func ReadLevel(text json.RawMessage) int {
	name, _ := jsonrpc.Unquote(text)
	return slices.Index(LogLevels, name) + 1
}

func isLogLevel(raw json.RawMessage) bool {
	level, ok := jsonrpc.Unquote(raw)
	return ok && slices.Contains(LogLevels, level)
}

// UnsupportedVersion returns the error -32022, which lists the supported versions.
func UnsupportedVersion(requested string, supported []string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: CodeUnsupportedVersion, Message: "Unsupported protocol version",
		Data: struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{supported, requested}}
}

// MissingCapability returns the error -32021. required is a ClientCapabilities object:
// {"elicitation":{}}.
func MissingCapability(required json.RawMessage) *jsonrpc.Error {
	return &jsonrpc.Error{Code: CodeMissingCapability, Message: "Missing required client capability",
		Data: map[string]json.RawMessage{"requiredCapabilities": required}}
}

// SetMeta returns params or a result with members of its _meta set or removed, like [jsonrpc.Set].
// It removes a _meta without members.
func SetMeta(object json.RawMessage, values ...jsonrpc.Value) json.RawMessage {
	meta, _ := jsonrpc.Member(object, "_meta")
	if meta = jsonrpc.Set(meta, values...); string(meta) == "{}" {
		meta = nil
	}
	return jsonrpc.Set(object, jsonrpc.Value{Key: "_meta", Text: meta})
}
