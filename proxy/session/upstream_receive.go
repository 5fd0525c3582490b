package session

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// asked handles a request of the upstream. The modern era has none.
func (u *upstreamConn) asked(a *attempt, r *peer.Request) {
	in := incoming{a: a, m: r.Message, of: r.Of, r: r}
	r.Message = nil
	switch {
	case u.era == mcp.Modern:
		r.Respond(nil)
		u.client.drop("request from an upstream of the modern era", in.m)
	case r.Method == mcp.MethodPing:
		r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
	case mcp.MethodOf(r.Method).IsNotification(): // as in route
		r.Fail(jsonrpc.MethodNotFound(r.Method))
	case !u.hold(in):
		u.client.handle(u, in)
	}
}

// notified handles a notification of the upstream. In the modern era none is held back, because each
// belongs to a request of a client, which is ready.
func (u *upstreamConn) notified(in incoming) {
	if u.era == mcp.Modern || !u.hold(in) {
		u.client.handle(u, in)
	}
}

// hold holds messages back until the client is ready. If there is no room, hold refuses them.
func (u *upstreamConn) hold(in incoming) bool {
	held, room := u.held.add(in, u.clientReady, u.maxBytes)
	if !held {
		return false
	}
	if !room {
		u.client.drop("the client is not ready", in.m)
		if in.r != nil {
			in.r.Fail(jsonrpc.Overloaded(u.up.Name))
		}
	}
	return true
}

// release handles the messages that were held, in order.
func (u *upstreamConn) release() {
	for {
		next, ok := u.held.first()
		if !ok {
			return
		}
		in := next
		if in.of != nil && !in.of.Open() { // its call has ended meanwhile
			in.of = nil
		}
		u.client.handle(u, in)
		u.held.remove(next) // unless the stream has ended meanwhile
	}
}
