package shared

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// params returns the params of a notification that belongs to the call, with the client's own id and token. It
// returns false if they name anything else.
func (c *memberCall) params(m *jsonrpc.Message, edits ...jsonrpc.Edit) (json.RawMessage, bool) {
	notes := mcp.Read(m)
	if id, said := notes.Named(); said && id != c.ID {
		return nil, false
	}
	return notes.As(c.request.ID, c.token, edits...)
}

// callNamed returns the open call of a client that a notification of the server names, or on whose stream it came
// (of); nil if there is none, or it names two.
func (s *sharedSession) callNamed(m *jsonrpc.Message, of *peer.Call) (c *memberCall, said bool) {
	id, said := mcp.Read(m).Named()
	if !said && m.Related.IsZero() {
		return nil, false
	}
	if said {
		named := s.server.Call(id)
		if !m.Related.IsZero() && named != of {
			return nil, true
		}
		of = named
	}
	if of == nil || !of.Sent() || callOf(of).request == nil || !callOf(of).request.Open() {
		return nil, true
	}
	return callOf(of), true
}

var metaKey = []byte("_meta")

// callNamed returns the client's own call that its message of an extension names, by the id of the request or
// by its progress token; nil if it names none. It must not name another's by the id that this has at the server.
func (m *member) callNamed(notes *mcp.Notes) (*memberCall, error) {
	if !notes.Method.MaybeOfExtension() {
		return nil, nil
	}
	if err := notes.Err(mcp.InMeta, mcp.Subscription); err != nil || !notes.Has(mcp.Subscription) {
		return m.callWithToken(notes), err
	}
	id, _ := notes.ID(mcp.Subscription)
	if r := m.peer.Request(id); r != nil {
		if c := r.Forwarded(); c != nil {
			return callOf(c), nil
		}
	}
	if mcp.CouldBeOurs(id) {
		return nil, mcp.ErrUnknownSubscription
	}
	return nil, nil
}

// callWithToken returns the client's call that a message names by its progress token; nil for none.
func (m *member) callWithToken(notes *mcp.Notes) *memberCall {
	if !notes.Has(mcp.Token) && !notes.Has(mcp.ParamToken) {
		return nil
	}
	calls := m.s.server.Calls(func(c *peer.Call) bool { return c.Owner == any(m) && notes.HasToken(callOf(c).token) })
	if len(calls) == 0 {
		return nil
	}
	return callOf(calls[0])
}
