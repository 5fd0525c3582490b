package shared

import (
	"cmp"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// notified handles a notification of the server. of is the call that it says it belongs to.
func (s *sharedSession) notified(m *jsonrpc.Message, of *peer.Call) {
	if s.modern != nil {
		s.notifiedModern(m)
		return
	}
	switch m.Method {
	case mcp.MethodProgress: // of what is no call any more
		s.taskProgress(m)
	case mcp.MethodCancelled: // of what is over
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		s.listChanged(m)
	case mcp.MethodResourceUpdated:
		s.updated(m)
	case mcp.MethodTaskStatus:
		s.taskStatus(m, of)
	case mcp.MethodElicited:
		s.elicitationDone(m)
	default:
		s.otherNotified(m, of)
	}
}

// hearLocked passes a notification on as it is, unless the client has not heard
// yet that the server is there.
func (m *member) hearLocked(n *jsonrpc.Message, related jsonrpc.ID) {
	if m.ready {
		m.put(&jsonrpc.Message{Method: n.Method, Params: n.Params, Extra: n.Extra, Related: related})
	}
}

// listChanged tells all clients that a list has changed. It need not say more, and what it
// says besides may be about one of them.
func (s *sharedSession) listChanged(m *jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for member := range s.members {
		if s.users.others(member.holder.Who) {
			member.hearLocked(&jsonrpc.Message{Method: m.Method}, jsonrpc.ID{})
		} else {
			member.hearLocked(m, jsonrpc.ID{})
		}
	}
}

// updated tells those who subscribed to that very URI. To a server it may be a part
// of what somebody subscribed to, but of whose it cannot say.
func (s *sharedSession) updated(m *jsonrpc.Message) {
	uri, ok := mcp.KeyOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		for holder := range s.subs.Holders(uri) {
			holder.hearLocked(m, jsonrpc.ID{})
		}
	}
}

// elicitationDone tells who was given the elicitation.
func (s *sharedSession) elicitationDone(m *jsonrpc.Message) {
	id, ok := mcp.KeyOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if member := s.elicited.byID[id]; ok && member != nil {
		member.hearLocked(m, member.newest())
	}
}

// otherNotified handles log messages and what only a vendor knows. With a call or a task it is that
// client's. Without one it may have in it what any client has ever told this server, so
// that it is for the clients of the one principal that has told it anything.
func (s *sharedSession) otherNotified(m *jsonrpc.Message, of *peer.Call) {
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
	switch {
	case owner != nil:
		owner.hearSaidLocked(m, id, logs, level)
	case said: // of what is over
	case s.users.several:
		s.dropLocked(m)
	default:
		for member := range s.members {
			if !s.users.others(member.holder.Who) {
				member.hearSaidLocked(m, id, logs, level)
			}
		}
	}
}

// dropLocked counts a message that could be for any of several clients.
func (s *sharedSession) dropLocked(m *jsonrpc.Message) {
	s.dropped++
	s.log.Debug("message dropped: it could be for any of several clients", "method", m.Method)
}

// hearSaidLocked passes on what the server has said, but for log messages that the
// client does not want.
func (m *member) hearSaidLocked(n *jsonrpc.Message, id jsonrpc.ID, logs bool, level int) {
	if !logs || level >= m.wantsLocked() {
		m.hearLocked(n, id)
	}
}
