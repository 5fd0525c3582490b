package replay

import (
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// capabilityOf has the capabilities of a server by prefixes of the methods that it answered.
var capabilityOf = map[string]string{
	"tools/": "tools", "prompts/": "prompts", "resources/": "resources", "completion/": "completions", "logging/": "logging",
}

// madeUp returns the answer to a handshake, which is missing if the recording began later.
// It is nil for other requests, and in an era that was not recorded.
func (s *replaySession) madeUp(q question) *jsonrpc.Message {
	if !s.recording.speaks(q.era) {
		return nil
	}
	result := map[string]any{}
	switch q.method {
	case mcp.MethodInitialize:
		result["protocolVersion"] = q.params["protocolVersion"]
		result["serverInfo"] = s.info()
		result["capabilities"] = s.capabilities(q.era)
	case mcp.MethodDiscover:
		result["supportedVersions"] = mcp.ModernVersions
		result["capabilities"] = s.capabilities(q.era)
		result["_meta"] = map[string]any{mcp.KeyServerInfo: s.info()}
		result["resultType"], result["ttlMs"], result["cacheScope"] = "complete", 0, "private"
	case mcp.MethodPing:
	default:
		return nil
	}
	return &jsonrpc.Message{Result: json.RawMessage(textOf(result))}
}

func (s *replaySession) info() any {
	return map[string]any{"name": s.recording.upstream, "version": "recorded"}
}

func (s *replaySession) capabilities(era mcp.Era) any {
	all := map[string]any{}
	for _, method := range s.recording.methods(era) {
		for prefix, capability := range capabilityOf {
			if strings.HasPrefix(method, prefix) {
				all[capability] = map[string]any{}
			}
		}
	}
	return all
}
