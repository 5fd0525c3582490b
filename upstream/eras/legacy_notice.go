package eras

import (
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// noticeOfClient handles a notification of the client. The modern era knows one from
// clients, cancelled, and so all others stay here: roots are asked for when they are
// needed, and nobody waits for progress on a question.
func (l *legacy) noticeOfClient(m *jsonrpc.Message, _ *peer.Call) {
	if m.Method == mcp.MethodInitialized {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.initializedLocked()
	}
}

// noticeOfServer handles a notification of the upstream, of being the call that its stream
// names.
func (l *legacy) noticeOfServer(m *jsonrpc.Message, of *peer.Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	switch m.Method {
	case mcp.MethodProgress: // of nothing that is open
	case mcp.MethodLog:
		if l.wantsToHearLocked(m) {
			l.passLocked(m, of)
		}
	case mcp.MethodAcknowledged:
		if ln := l.listenOf(m, of); ln != nil {
			ln.acknowledgedLocked(m)
		}
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged,
		mcp.MethodResourcesChanged, mcp.MethodResourceUpdated:
		if ln := l.listenOf(m, of); ln != nil && ln.acked {
			ln.by.told(ln, m)
		}
	case mcp.MethodCancelled:
		l.cancelledByServerLocked(m)
	case mcp.MethodTask: // nobody declared them
	default:
		l.passLocked(m, of)
	}
}

// wantsToHearLocked reports whether a log message is of the client's level or above. A
// level that nobody knows may be.
func (l *legacy) wantsToHearLocked(m *jsonrpc.Message) bool {
	level, _ := mcp.Read(m).Text(mcp.Key)
	i := slices.Index(mcp.LogLevels, level)
	return i < 0 && level != "" || i >= slices.Index(mcp.LogLevels, l.level)
}

// passLocked passes a notification on, unless the call that it belongs to is settled.
func (l *legacy) passLocked(m *jsonrpc.Message, of *peer.Call) {
	var related jsonrpc.ID
	if !m.Related.IsZero() {
		if of == nil || of.For == nil {
			return
		}
		related = of.For.ID
	}
	l.client.Send(&jsonrpc.Message{Method: m.Method, Params: StripReserved(m.Params), Extra: m.Extra, Related: related})
}

// progress passes progress of a call on, whose token stands at a place. A retry is the
// same call to the client, and so what does not go on from what it heard is dropped
// (2025-11-25 basic/utilities/progress: "The progress value MUST increase").
func (l *legacy) progress(c *legacyCall, m *jsonrpc.Message, at jsonrpc.Span) {
	text, err := jsonrpc.Member(m.Params, "progress")
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || c.token == nil || l.ended {
		return
	}
	value, err := strconv.ParseFloat(string(text), 64)
	if c.rounds > 0 && c.told && !(value > c.last) {
		return
	}
	if err == nil {
		c.last, c.told = max(value, c.last), true
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.token})
	l.client.Send(&jsonrpc.Message{Method: m.Method, Params: StripReserved(params), Extra: m.Extra, Related: c.ID})
}

// cancelledByServerLocked handles the end of a listen that the server does not answer
// (2026-07-28 basic/patterns/cancellation). It can cancel nothing else.
func (l *legacy) cancelledByServerLocked(m *jsonrpc.Message) {
	id, _ := mcp.Read(m).ID(mcp.Key)
	c := l.modern.Call(id)
	if c == nil {
		return
	}
	if ln, ok := c.Value.(*listen); ok && c.Take() {
		ln.by.ended(ln, nil)
	}
}
