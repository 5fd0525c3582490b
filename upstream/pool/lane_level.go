package pool

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A laneLevel is the log level of a legacy server that modern clients use. Guarded by
// tenant.mu.
type laneLevel struct {
	told    int  // what the server was told to log; zero for nothing
	asking  bool // and it has not answered
	refused bool
}

// levelWithin is how long calls wait for the answer to setLevel.
const levelWithin = time.Second

// levelLocked has the server log what a call wants to hear, and what those want that
// are under way with it. What it says beyond that is left out. It reports whether the
// call has to wait until the server has answered, so that nothing is missed.
func (l *lane) levelLocked(c *bridged) (wait bool) {
	if c.Level == 0 || !l.welcome.Logs || l.level.refused {
		return false
	}
	most := c.Level
	for other := range l.calls {
		if other.r != nil && other.Level != 0 {
			most = min(most, other.Level)
		}
	}
	if most != l.level.told && !l.level.asking {
		l.level.told, l.level.asking = most, true
		params := jsonrpc.Set(nil, jsonrpc.Value{Key: "level", Text: jsonrpc.Quote(mcp.LogLevels[most-1])})
		l.askLocked(mcp.MethodSetLevel, params, l.leveledLocked)
		l.t.after(levelWithin, l.leveledLateLocked)
	}
	return l.level.asking
}

// leveledLocked handles the answer to setLevel. A server that refuses is not asked
// again in this session, and logs what it likes.
func (l *lane) leveledLocked(m *jsonrpc.Message) {
	l.level.asking = false
	l.level.refused = m.Error != nil
	l.forwardAllLocked()
}

// leveledLateLocked ends the wait for a server that says nothing.
func (l *lane) leveledLateLocked() {
	if l.level.asking && l.state == laneReady {
		l.level.asking = false
		l.forwardAllLocked()
	}
}
