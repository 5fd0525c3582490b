package translate

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// noticeOfClient handles a notification of the client. The modern era knows one from
// clients, cancelled, and so all others stay here: roots are asked for when they are
// needed, and nobody waits for progress on a question.
func (l *legacy) noticeOfClient(m *jsonrpc.Message) {
	switch m.Method {
	case mcp.MethodCancelled:
		l.cancelledByClient(m)
	case mcp.MethodInitialized:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.initializedLocked()
	}
}

// noticeOfServer handles a notification of the upstream.
func (l *legacy) noticeOfServer(m *jsonrpc.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	switch m.Method {
	case mcp.MethodProgress:
		l.progressLocked(m)
	case mcp.MethodLog:
		if l.wantsToHearLocked(m) {
			l.passLocked(m)
		}
	case mcp.MethodAcknowledged:
		if ln := l.subscriptionLocked(m); ln != nil {
			ln.acknowledgedLocked(m)
		}
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged,
		mcp.MethodResourcesChanged, mcp.MethodResourceUpdated:
		if ln := l.subscriptionLocked(m); ln != nil && ln.acked {
			ln.by.told(ln, m)
		}
	case mcp.MethodCancelled:
		l.cancelledByServerLocked(m)
	case mcp.MethodTask: // nobody declared them
	default:
		l.passLocked(m)
	}
}

// wantsToHearLocked reports whether a log message is of the client's level or above. A
// level that nobody knows may be.
func (l *legacy) wantsToHearLocked(m *jsonrpc.Message) bool {
	raw, _ := jsonrpc.Member(m.Params, "level")
	level, _ := jsonrpc.Unquote(raw)
	i := slices.Index(mcp.LogLevels, level)
	return i < 0 && level != "" || i >= slices.Index(mcp.LogLevels, l.level)
}

// passLocked passes a notification on, unless the call that it belongs to is settled.
func (l *legacy) passLocked(m *jsonrpc.Message) {
	var related jsonrpc.ID
	if !m.Related.IsZero() {
		n, _ := m.Related.Answered()
		c := l.open[n].call
		if c == nil {
			return
		}
		related = c.id
	}
	l.toClient.put(&jsonrpc.Message{Method: m.Method, Params: StripReserved(m.Params), Extra: m.Extra, Related: related})
}

// progressLocked passes progress of a call on. A retry is the same call to the
// client, and so what does not go on from what it heard is dropped (2025-11-25
// basic/utilities/progress: "The progress value MUST increase").
func (l *legacy) progressLocked(m *jsonrpc.Message) {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "progressToken", "progress") != nil {
		return
	}
	id, _ := jsonrpc.ParseID(at[0].Of(m.Params))
	n, ok := id.Answered()
	c := l.open[n].call
	if !ok || c == nil || c.token == nil {
		return
	}
	value, err := strconv.ParseFloat(string(at[1].Of(m.Params)), 64)
	if c.rounds > 0 && c.told && !(value > c.last) {
		return
	}
	if err == nil {
		c.last, c.told = max(value, c.last), true
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: c.token})
	l.toClient.put(&jsonrpc.Message{Method: m.Method, Params: StripReserved(params), Extra: m.Extra, Related: c.id})
}

// cancelledByServerLocked handles the end of a listen that the server does not answer
// (2026-07-28 basic/patterns/cancellation). It can cancel nothing else.
func (l *legacy) cancelledByServerLocked(m *jsonrpc.Message) {
	text, _ := jsonrpc.Member(m.Params, "requestId")
	id, _ := jsonrpc.ParseID(text)
	n, _ := id.Answered()
	if ln := l.open[n].listen; ln != nil {
		delete(l.open, n)
		ln.endedLocked(nil)
	}
}

// subscriptionOf returns the listen that a notification says it belongs to.
func subscriptionOf(params json.RawMessage) (int64, bool) {
	meta, _ := jsonrpc.Member(params, "_meta")
	text, err := jsonrpc.Member(meta, mcp.KeySubscription)
	id, ok := jsonrpc.ParseID(text)
	n, isInt := id.Answered()
	return n, err == nil && ok && isInt
}
