package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/tap"
)

// tapped is the client's Conn, where operators can look at what passes.
func (s *session) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	return tap.Point{Taps: s.router.Taps, Side: observe.SideClient, Session: s.id(), Who: s.sender}.Conn(c)
}

// tapped is a stream to the upstream, likewise.
func (u *upstreamConn) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	return tap.Point{Taps: u.s.router.Taps, Side: observe.SideUpstream, Session: u.s.id(), Upstream: u.up.Name,
		Who: func(*jsonrpc.Message) (client, principal string) { return u.s.sender(nil) }}.Conn(c)
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
