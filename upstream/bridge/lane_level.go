package bridge

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// readSeverity returns a log level as its place in [mcp.LogLevels], from 1 for the
// most verbose; zero if text is none.
func readSeverity(text json.RawMessage) int {
	name, _ := jsonrpc.Unquote(text)
	return slices.Index(mcp.LogLevels, name) + 1
}

// levelLocked has the server log what a call wants to hear, and what those want that
// are under way with it. What it says beyond that is left out.
func (l *lane) levelLocked(c *call) {
	if c.level == 0 || !l.welcome.logs {
		return
	}
	most := c.level
	for _, other := range l.calls {
		if other.s != nil && other.level != 0 {
			most = min(most, other.level)
		}
	}
	if most == l.level {
		return
	}
	l.level = most
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "level", Text: jsonrpc.Quote(mcp.LogLevels[most-1])})
	l.askLocked("logging/setLevel", params, func(m *jsonrpc.Message) {
		if m.Error != nil {
			l.level = 0 // the next call tries again
		}
	})
}
