package pool

import (
	"cmp"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// notified handles a notification of the server. of is the call that it says it belongs to.
func (s *session) notified(m *jsonrpc.Message, of *peer.Call) {
	if s.modern != nil {
		s.hear(m)
		return
	}
	switch m.Method {
	case mcp.MethodProgress: // of what is no call any more
		s.taskProgress(m)
	case mcp.MethodCancelled: // of what is over
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		s.mu.Lock()
		defer s.mu.Unlock()
		for member := range s.members {
			member.hearLocked(m, jsonrpc.ID{})
		}
	case mcp.MethodResourceUpdated:
		s.updated(m)
	case mcp.MethodTaskStatus:
		s.taskStatus(m, of)
	case mcp.MethodElicited:
		s.elicitationDone(m)
	default:
		s.said(m, of)
	}
}

// hearLocked passes a notification on as it is, unless the client has not heard
// yet that the server is there.
func (m *member) hearLocked(n *jsonrpc.Message, related jsonrpc.ID) {
	if m.ready {
		m.put(&jsonrpc.Message{Method: n.Method, Params: n.Params, Extra: n.Extra, Related: related})
	}
}

// updated tells those who subscribed to that very URI. To a server it may be a part
// of what somebody subscribed to, but of whose it cannot say.
func (s *session) updated(m *jsonrpc.Message) {
	uri, ok := keyIn(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		for holder := range s.subs.holders(uri) {
			holder.hearLocked(m, jsonrpc.ID{})
		}
	}
}

// elicitationDone tells who was given the elicitation.
func (s *session) elicitationDone(m *jsonrpc.Message) {
	id, ok := keyIn(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if member := s.elicited.byID[id]; ok && member != nil {
		member.hearLocked(m, member.newest())
	}
}

// said handles log messages and what only a vendor knows. With a call or a task
// it is that client's. Log messages without one are about the server and go to
// all that want to hear them; anything else may be private, and goes to a client
// only if there was no other of late.
func (s *session) said(m *jsonrpc.Message, of *peer.Call) {
	notes := mcp.Read(m)
	task, err := relatedTask(notes)
	if err != nil {
		return
	}
	logs := m.Method == mcp.MethodLog
	level := cmp.Or(levelIn(notes), infoLevel)
	s.mu.Lock()
	defer s.mu.Unlock()
	owner, id, said := s.ownerLocked(m.Related, of, task)
	if !said && !logs && (len(s.members) != 1 || s.othersSpeakLocked(time.Now())) {
		return
	}
	if owner != nil {
		owner.hearSaidLocked(m, id, logs, level)
	}
	if said {
		return
	}
	for member := range s.members {
		member.hearSaidLocked(m, id, logs, level)
	}
}

// hearSaidLocked passes on what the server has said, but for log messages that the
// client does not want.
func (m *member) hearSaidLocked(n *jsonrpc.Message, id jsonrpc.ID, logs bool, level int) {
	if !logs || level >= m.wantsLocked() {
		m.hearLocked(n, id)
	}
}
