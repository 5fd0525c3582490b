package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// tapped returns the client's Conn, wrapped for operators.
func (s *session) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	return s.router.Tap.Conn(observe.Point{Side: observe.SideClient, Session: s.id(), Who: s.sender}, c)
}

// tapped returns a stream to the upstream, wrapped for operators.
func (u *upstreamConn) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	at := observe.Point{Side: observe.SideUpstream, Session: u.s.id(), Upstream: u.up.Name}
	at.Who = func(*jsonrpc.Message) (client, principal string) { return u.s.sender(nil) }
	return u.s.router.Tap.Conn(at, c)
}

// sender returns the sender of a message of the client; nil means the session's client. It stores
// the notes of a request in the message.
func (s *session) sender(m *jsonrpc.Message) (client, principal string) {
	client, principal = s.hello.Load().text(), s.name
	if m == nil {
		return client, principal
	}
	if m.From != nil {
		principal = m.From.String()
	}
	switch {
	case m.Method == mcp.MethodInitialize:
		client = namedIn(m.Params).text()
	case client == "" && m.IsRequest(): // of the modern era
		n := mcp.Read(m)
		m.Notes = n
		client = nameIn(n.Raw(mcp.ClientInfo))
	}
	return client, principal
}
