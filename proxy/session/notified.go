package session

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// notified handles a notification of the client. It ignores cancellations of unknown, settled or
// invalid ids, and of initialize, which must not be cancelled (2025-11-25
// basic/utilities/cancellation).
func (s *session) notified(m *jsonrpc.Message) {
	if m.Method == mcp.MethodCancelled || !s.admitsNotification(m) {
		return
	}
	n := mcp.Read(m)
	if n.Method.IsRequest() { // nobody would answer it, nor look at policies and the filter of tools
		s.drop("a request without an id", m)
		return
	}
	era := s.eraOf(n)
	if era == mcp.Modern { // which defines no others
		s.extensionNotified(era, m)
		return
	}
	switch m.Method {
	case mcp.MethodInitialized:
		s.clientReady()
	case mcp.MethodProgress:
		s.taskProgress(m, n)
	case mcp.MethodRootsChanged:
		s.rootsChanged(m)
	case mcp.MethodTaskStatus:
		s.clientTaskStatus(m, n)
	default:
		s.extensionNotified(era, m)
	}
}

// eraOf returns the era of a notification: modern if it claims so, or if the client has never sent
// initialize.
func (s *session) eraOf(n *mcp.Notes) mcp.Era {
	said, _ := s.handshake.said()
	if claim, err := n.Claim(); s.ofPrincipal || err == nil && claim.Claimed || said == nil && n.Method.Name == "" {
		return mcp.Modern
	}
	return mcp.Legacy
}

// extensionNotified passes a notification that is of no concern to the session to the upstream for
// which it is, which it may start: only that one knows what the notification is worth. If it names a
// request of the client, the upstream gets the id and progress token that the request has there.
func (s *session) extensionNotified(era mcp.Era, m *jsonrpc.Message) {
	n := mcp.Read(m)
	c := s.callNamed(n)
	u := s.extensionReceiver(era, m, c)
	if u == nil {
		s.drop("no owner", m)
		return
	}
	if _, err := s.namedFor(u, n); err != nil || c != nil && c.conn != u {
		s.drop("it names no open request", m)
		return
	}
	if c != nil {
		own := *m
		own.Params, own.Notes = n.Own(c.ID, c.token), nil
		m = &own
	}
	u.deliver(m)
}

// clientProgress routes progress on a server request to the upstream that asked.
func (s *session) clientProgress(c *peer.Call, m *jsonrpc.Message, _ jsonrpc.Span) {
	if !s.admitsNotification(m) {
		return
	}
	sr, notes := c.Value.(*serverRequest), mcp.Read(m)
	token := sr.token
	id, _ := notes.ID(mcp.Key)
	if _, ok := id.Int(); !ok { // it only looks like one of the session's
		token = nil
	}
	s.progressTo(sr.conn, token, m, notes)
}

// taskProgress is clientProgress for a server request that has become a task.
func (s *session) taskProgress(m *jsonrpc.Message, notes *mcp.Notes) {
	id, _ := notes.ID(mcp.Key)
	n, _ := id.Int()
	x := s.clientTasks.GetByToken(tokenKey{N: n})
	s.progressTo(x.Conn, x.Token, m, notes)
}

func (s *session) progressTo(u *upstreamConn, token json.RawMessage, m *jsonrpc.Message, notes *mcp.Notes) {
	if token == nil {
		s.drop("progress without a server request", m)
		return
	}
	edits := append(s.ownRelated(u, notes), jsonrpc.Edit{Span: notes.At(mcp.Key), With: token})
	u.tell(&jsonrpc.Message{Method: m.Method, Params: jsonrpc.Replace(m.Params, edits...), Extra: m.Extra})
}

// clientTaskStatus forwards the client's status of one of its tasks to the upstream that asked for
// it.
func (s *session) clientTaskStatus(m *jsonrpc.Message, n *mcp.Notes) {
	id, ended := catalog.NotedTask(n)
	u := s.clientTasks.Get(id).Conn
	if u == nil {
		s.drop("task status without a task", m)
		return
	}
	if ended {
		s.clientTasks.End(u, id, true)
	}
	u.tell(m)
}
