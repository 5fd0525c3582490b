package traces

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// The keys of the semantic conventions (open-telemetry/semantic-conventions-genai,
// docs/gen-ai/mcp.md), in development but for error.type and network.*.
const (
	keyMethod     = "mcp.method.name"
	keySession    = "mcp.session.id" // as in the log: the real one is a secret
	keyVersion    = "mcp.protocol.version"
	keyTool       = "gen_ai.tool.name"
	keyPrompt     = "gen_ai.prompt.name"
	keyOperation  = "gen_ai.operation.name"
	keyRequest    = "jsonrpc.request.id"
	keyErrorType  = "error.type"
	keyStatusCode = "rpc.response.status_code"
	keyTransport  = "network.transport"
	keyProtocol   = "network.protocol.name"
)

// Our own keys.
const (
	keyUpstream  = "mcp_proxy.upstream"
	keyEra       = "mcp_proxy.era"
	keyClient    = "mcp_proxy.client"
	keyPrincipal = "mcp_proxy.principal" // as configured
	keyOutcome   = "mcp_proxy.outcome"
	keyEvent     = "mcp_proxy.event.id"
	keyCause     = "mcp_proxy.event.cause"

	eventError = "mcp_proxy.event" // of a span: the event that its error names
	eventSent  = "mcp_proxy.sent"  // of a client span: the end of a wait before its call was sent
)

const (
	toolsCall = "tools/call"
	longest   = 128 // bytes of text from a client
)

// nameOf returns the name of a span. Names are few, because backends aggregate by them.
func nameOf(method, target string) string {
	return strings.TrimSuffix(observe.MethodOf(method)+" "+cut(target), " ")
}

// cut bounds text from a client.
func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), longest)], "\uFFFD") }

// attributes returns the attributes of pairs of key and value, without empty values.
func attributes(pairs ...string) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, len(pairs)/2+1)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, attribute.String(pairs[i], cut(pairs[i+1])))
		}
	}
	return all
}

// arrived returns the attributes of a request that begins.
func arrived(c observe.Request, from observe.Arrival) []attribute.KeyValue {
	var transport, protocol string
	switch from.Transport {
	case "stdio":
		transport = "pipe"
	case "websocket":
		protocol = "websocket"
	case "http", "http+sse":
		protocol = "http"
	}
	return attributes(keyMethod, observe.MethodOf(c.Method), keySession, c.Session, keyVersion, from.Version, keyRequest, from.ID,
		keyTransport, transport, keyProtocol, protocol, keyEra, c.Era, keyClient, c.Client, keyPrincipal, c.Account)
}

// answered returns the attributes of a request at its end. It leaves out names that the upstream does not list, because
// a client may have made them up.
func answered(c observe.Request) []attribute.KeyValue {
	all := attributes(keyUpstream, c.Upstream)
	if c.Listed != nil {
		all = append(all, attributes(keyTool, c.Tool, keyPrompt, c.Prompt)...)
	}
	return append(all, operation(c.Method)...)
}

// asked returns the attributes of a call to an upstream.
func asked(q observe.Call, target string) []attribute.KeyValue {
	key := keyPrompt
	if q.Method == toolsCall {
		key = keyTool
	}
	return append(attributes(keyMethod, observe.MethodOf(q.Method), keyUpstream, q.Upstream, keyEra, q.Era, key, target),
		operation(q.Method)...)
}

// operation returns the operation if a tool is called.
func operation(method string) []attribute.KeyValue {
	if method != toolsCall {
		return nil
	}
	return attributes(keyOperation, "execute_tool")
}
