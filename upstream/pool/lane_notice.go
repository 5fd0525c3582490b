package pool

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

// heard handles a notification of the server.
func (l *lane) heard(m *jsonrpc.Message, of *peer.Call) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	switch m.Method {
	case mcp.MethodProgress, mcp.MethodCancelled: // of what is over
	case mcp.MethodLog:
		l.messageLocked(m, of)
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		for li := range l.g.listens { // the newest list is the same for all lanes
			li.hearLocked(m.Method, m)
		}
	case mcp.MethodResourceUpdated:
		l.updatedLocked(m)
	case mcp.MethodElicited, mcp.MethodTaskStatus: // nothing of the modern era
	default:
		if c := l.ofLocked(m, of); c != nil {
			c.tellLocked(m, translate.StripReserved(m.Params))
		}
	}
}

// updatedLocked tells the listens of the lane that watch a resource.
func (l *lane) updatedLocked(m *jsonrpc.Message) {
	uri, ok := keyIn(m)
	if !ok {
		return
	}
	for li := range l.listens {
		li.hearUpdateLocked(uri, m)
	}
}

// tellLocked sends the client a notification that belongs to a call, with other params.
func (c *bridged) tellLocked(m *jsonrpc.Message, params json.RawMessage) {
	if c.r == nil || c.state != forwarded {
		return
	}
	c.s.peer.Send(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.r.ID})
}

// ofLocked returns the call that a notification surely belongs to; nil if that
// cannot be told.
func (l *lane) ofLocked(m *jsonrpc.Message, of *peer.Call) *bridged {
	switch {
	case !m.Related.IsZero() && l.relates && of == nil:
		return nil
	case !m.Related.IsZero() && l.relates:
		c, _ := of.Value.(*bridged)
		return c
	case len(l.calls) == 1:
		for c := range l.calls {
			return c
		}
	}
	return nil
}

// messageLocked brings a log message to the call that it belongs to, as far as that
// wants to hear it. If it cannot be told, but only one call wants to hear anything, it
// is that call's.
func (l *lane) messageLocked(m *jsonrpc.Message, of *peer.Call) {
	c := l.ofLocked(m, of)
	if c == nil && (m.Related.IsZero() || !l.relates) {
		c = l.onlyListenerLocked()
	}
	if c == nil || c.Level == 0 {
		return
	}
	if mcp.ReadLevel(mcp.Read(m).Raw(mcp.Key)) >= c.Level {
		c.tellLocked(m, translate.StripReserved(m.Params))
	}
}

func (l *lane) onlyListenerLocked() (only *bridged) {
	for c := range l.calls {
		switch {
		case c.Level == 0:
		case only != nil:
			return nil
		default:
			only = c
		}
	}
	return only
}

// progress brings progress to the call whose token it has. While nobody waits for the
// call, the last of it is kept.
func (l *lane) progress(c *bridged, m *jsonrpc.Message) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	switch {
	case c.lane != l:
	case c.state == parked:
		c.progress.kept = m
	default:
		c.tellProgressLocked(m)
	}
}

// tellProgressLocked tells the client of progress under its own token. After an
// interruption only what is further on is told.
func (c *bridged) tellProgressLocked(m *jsonrpc.Message) {
	params := m.Params
	if c.Token == nil || c.park != nil && c.progress.last != nil && !further(params, c.progress.last) {
		return
	}
	c.progress.last = params
	c.tellLocked(m, jsonrpc.Set(translate.StripReserved(params), jsonrpc.Value{Key: "progressToken", Text: c.Token}))
}

func further(params, before json.RawMessage) bool { return progressIn(params) > progressIn(before) }

func progressIn(params json.RawMessage) float64 {
	text, _ := jsonrpc.Member(params, "progress")
	n, _ := strconv.ParseFloat(string(text), 64)
	return n
}
