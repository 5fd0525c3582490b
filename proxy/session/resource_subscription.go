package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
)

// subscribe routes resources/subscribe, and remembers successful ones.
func (s *session) subscribe(r *request) *jsonrpc.Error {
	params, bad := r.sentAgain("uri")
	if bad != nil {
		return bad
	}
	uri, _ := r.notes.Text(mcp.Key)
	if !s.keep(r, listen.Size(uri, params)) {
		return jsonrpc.Overloaded("")
	}
	s.whenAnswered(r, func(answer *jsonrpc.Message) {
		if answer.Error == nil && r.sent != nil {
			s.resourceSubs.Add(uri, r.sent.conn, params)
		}
	})
	return s.byURI(r)
}

// unsubscribe forwards to the upstream of the subscription.
func (s *session) unsubscribe(r *request) *jsonrpc.Error {
	if err := r.notes.Err(mcp.Key); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	uri, _ := r.notes.Text(mcp.Key)
	if u, ok := s.resourceSubs.Take(uri).(*upstreamConn); ok {
		s.forward(r, u)
		return nil
	}
	return s.toOwnerOf(r, mcp.Key)
}
