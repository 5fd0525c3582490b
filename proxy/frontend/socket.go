package frontend

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// A socket is a WebSocket that counts the messages waiting for its client in the backlog of the
// principal.
type socket struct {
	*wsconn.Conn
	backlog streamBacklog
	by      caller
}

// Forwarded returns the headers of the handshake that upstreams get, nil for none, and a digest of
// those that say who the user is.
func (s *socket) Forwarded() (headers *jsonrpc.Forwarded, user string) {
	return s.by.forwarded, s.by.user
}

// Send implements [jsonrpc.Conn].
func (s *socket) Send(m *jsonrpc.Message) error { return s.SendAll([]*jsonrpc.Message{m}) }

// SendAll sends messages, and counts them until they are sent.
func (s *socket) SendAll(messages []*jsonrpc.Message) error {
	n := 0
	for _, m := range messages {
		n += m.Size()
	}
	s.backlog.grow(n)
	defer s.backlog.add(-n)
	return s.Conn.SendAll(messages)
}

// Waits adds the size of messages that wait for SendAll; bytes may be negative.
func (s *socket) Waits(bytes int) { s.backlog.grow(bytes) }

// cut ends the WebSocket of a client that does not read.
func (s *socket) cut() {
	s.CloseAs(wsconn.PolicyViolation, "too many unread messages")
	s.Close()
}
