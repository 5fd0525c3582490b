package pool

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// notified handles a notification of the server.
func (sh *shared) notified(m *jsonrpc.Message, related jsonrpc.ID) {
	switch m.Method {
	case mcp.MethodProgress:
		sh.progress(m)
	case mcp.MethodCancelled:
		sh.withdrawn(m)
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		sh.mu.Lock()
		defer sh.mu.Unlock()
		for s := range sh.sharers {
			s.hearLocked(m, jsonrpc.ID{})
		}
	case mcp.MethodResourceUpdated:
		sh.updated(m)
	case mcp.MethodTaskStatus:
		sh.taskStatus(m, related)
	case mcp.MethodElicited:
		sh.elicitationComplete(m)
	default:
		sh.said(m, related)
	}
}

// hearLocked passes a notification on as it is, unless the client has not heard
// yet that the server is there.
func (s *sharer) hearLocked(m *jsonrpc.Message, related jsonrpc.ID) {
	if s.ready {
		s.putLocked(&jsonrpc.Message{Method: m.Method, Params: m.Params, Extra: m.Extra, Related: related})
	}
}

// progress passes progress on to whose call it is, with the client's own token,
// until the call is settled or, if it has become a task, that has ended.
func (sh *shared) progress(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "progressToken") != nil {
		return
	}
	id, _ := jsonrpc.ParseID(at[0].Of(m.Params))
	n, ok := id.Answered()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var s *sharer
	var token json.RawMessage
	var related jsonrpc.ID
	if c := sh.calls[n]; c != nil && c.by != nil && c.sent && !c.orphan {
		s, token, related = c.by, c.token, c.id
	} else if x := sh.tasks.byToken[n]; x != nil {
		s, token = x.by, x.token
	}
	if !ok || token == nil {
		return
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: token})
	s.putLocked(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: related})
}

// taskStatus passes a word on a task on to its owner.
func (sh *shared) taskStatus(m *jsonrpc.Message, related jsonrpc.ID) {
	_, id, ended := readTask(m.Params)
	if id == "" {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s, call, _ := sh.ownerLocked(related, id)
	if s == nil {
		return
	}
	if x := sh.tasks.byID[id]; ended {
		sh.tasks.endLocked(x)
	}
	s.hearLocked(m, call)
}

// elicitationComplete tells who was given the elicitation (2025-11-25
// client/elicitation: "MUST only send the notification to the client that
// initiated the elicitation request").
func (sh *shared) elicitationComplete(m *jsonrpc.Message) {
	id, ok := jsonrpc.Unquote(json.RawMessage(member(m.Params, "elicitationId")))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.urls[id]; ok && s != nil {
		s.hearLocked(m, s.newestLocked())
	}
}

// said handles log messages and what only a vendor knows. With a call or a task
// it is that client's. Log messages without one are about the server and go to
// all that want to hear them; anything else may be private, and goes to a client
// only if there was no other of late.
func (sh *shared) said(m *jsonrpc.Message, related jsonrpc.ID) {
	meta, err := readMeta(m.Params)
	if err != nil {
		return
	}
	logs := m.Method == mcp.MethodLog
	level := cmp.Or(levelIn(m.Params), infoLevel)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	owner, call, said := sh.ownerLocked(related, meta.task)
	if !said && !logs && (len(sh.sharers) != 1 || sh.othersSpeakLocked(time.Now())) {
		return
	}
	if owner != nil {
		owner.hearSaidLocked(m, call, logs, level)
	}
	if said {
		return
	}
	for s := range sh.sharers {
		s.hearSaidLocked(m, call, logs, level)
	}
}

// hearSaidLocked passes on what the server has said, but for log messages that the
// client does not want.
func (s *sharer) hearSaidLocked(m *jsonrpc.Message, call jsonrpc.ID, logs bool, level int) {
	if !logs || level >= s.wantsLocked() {
		s.hearLocked(m, call)
	}
}
