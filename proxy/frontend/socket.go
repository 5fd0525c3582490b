package frontend

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// A socket is a WebSocket on which what waits for its client counts for what the principal
// may have waiting.
type socket struct {
	*wsconn.Conn
	backlog streamBacklog
}

// Send implements [jsonrpc.Conn].
func (s *socket) Send(m *jsonrpc.Message) error { return s.SendAll([]*jsonrpc.Message{m}) }

// SendAll sends messages, and counts them as long as that takes.
func (s *socket) SendAll(messages []*jsonrpc.Message) error {
	n := 0
	for _, m := range messages {
		n += m.Size()
	}
	s.backlog.grow(n)
	defer s.backlog.add(-n)
	return s.Conn.SendAll(messages)
}

// Waits counts messages that wait for SendAll: so many bytes more, or less.
func (s *socket) Waits(bytes int) { s.backlog.grow(bytes) }

// cut ends a WebSocket whose client does not read.
func (s *socket) cut() {
	s.CloseAs(wsconn.PolicyViolation, "too many unread messages")
	s.Close()
}
