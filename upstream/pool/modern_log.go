package pool

import (
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A log message of a modern server belongs to a request, and names none. It may be of
// each call in flight that asked for such, and of one that was given up a moment ago.
// If all of these are of one client that is whose it is; else it goes to nobody.

// givenUp are the calls with a log level that were given up a moment ago. Guarded by
// shared.mu.
type givenUp struct {
	till time.Time // until then they may still log
	by   *sharer   // whose they all are; nil if they are of several
	from int       // the least that they wanted
}

// gaveUpLocked notes that a call is given up that may go on to log.
func (m *modernServer) gaveUpLocked(c *sharedCall) {
	now, g := time.Now(), givenUp{by: c.by, from: c.logs}
	if now.Before(m.givenUp.till) {
		g.from = min(g.from, m.givenUp.from)
		if m.givenUp.by != c.by {
			g.by = nil
		}
	}
	g.till = now.Add(lingering)
	m.givenUp = g
}

// mayBe reports whether a message may be of a call that was given up, of somebody
// else than s.
func (g *givenUp) mayBe(level int, s *sharer) bool {
	return time.Now().Before(g.till) && wanted(level, g.from) && !(g.by == s && s.alone)
}

// wanted reports whether a message is of a level from which on somebody wants to hear.
// One that is of none may be.
func wanted(level, from int) bool { return level == 0 || level >= from }

// levelOf returns the level that a request asks for. What is none is the server's to
// refuse; until then it may log anything.
func levelOf(raw json.RawMessage) int {
	if raw == nil || isNull(raw) {
		return 0
	}
	return max(1, mcp.ReadLevel(raw))
}

// logged passes a log message on to whose it is. Of several calls of one connection
// the newest has it; those of a principal may be of different clients.
func (sh *shared) logged(m *jsonrpc.Message) {
	level := levelIn(m.Params)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var newest *sharedCall
	for _, c := range sh.calls {
		switch {
		case c.logs == 0 || !c.sent || !wanted(level, c.logs):
		case newest == nil:
			newest = c
		case newest.by != c.by || !c.by.alone:
			return
		case c.n > newest.n:
			newest = c
		}
	}
	if newest != nil && !sh.modern.givenUp.mayBe(level, newest.by) {
		newest.by.putLocked(&jsonrpc.Message{Method: m.Method, Params: m.Params, Extra: m.Extra, Related: newest.id})
	}
}
