package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// tapped is the client's Conn, where operators can look at what passes.
func (s *session) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	return s.router.Tap.Conn(observe.Point{Side: observe.SideClient, Session: s.id(), Who: s.sender}, c)
}

// tapped is a stream to the upstream, likewise.
func (u *upstreamConn) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	at := observe.Point{Side: observe.SideUpstream, Session: u.s.id(), Upstream: u.up.Name}
	at.Who = func(*jsonrpc.Message) (client, principal string) { return u.s.sender(nil) }
	return u.s.router.Tap.Conn(at, c)
}

// sender is who has sent a message of the client, or whose session it is. What is read of a
// request stays with it.
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
