package session

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
)

// asked handles a request of the upstream. The modern era has none.
func (u *upstreamConn) asked(a *attempt, r *peer.Request) {
	in := incoming{a: a, m: r.Message, of: r.Of, r: r}
	r.Message = nil
	switch {
	case u.era == mcp.Modern:
		r.Respond(nil)
		u.s.drop("request from an upstream of the modern era", in.m)
	case r.Method == mcp.MethodPing:
		r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
	case !u.hold(in):
		u.handle(in)
	}
}

// notified handles a notification of the upstream.
func (u *upstreamConn) notified(in incoming) {
	switch {
	case u.era == mcp.Modern:
		u.handleModern(in)
	case !u.hold(in):
		u.handle(in)
	}
}

// hold holds messages back until the client is ready. If there is no room, hold refuses them.
func (u *upstreamConn) hold(in incoming) bool {
	held, room := u.held.add(in, &u.s.handshake.ready, u.s.router.queueBytes())
	if !held {
		return false
	}
	if !room {
		u.s.drop("the client is not ready", in.m)
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
		u.handle(in)
		u.held.remove(next) // unless the stream has ended meanwhile
	}
}

// handle passes a request or notification of the upstream to the client.
func (u *upstreamConn) handle(in incoming) {
	if in.r != nil {
		u.s.serverRequest(u, in)
		return
	}
	switch m := in.m; m.Method {
	case mcp.MethodProgress:
		u.progress(in)
	case mcp.MethodCancelled:
		u.s.drop("cancellation of an unknown server request", m)
	case mcp.MethodToolsChanged:
		u.changed(catalog.Tools)
	case mcp.MethodPromptsChanged:
		u.changed(catalog.Prompts)
	case mcp.MethodResourcesChanged:
		u.changed(catalog.Resources)
	case mcp.MethodTaskStatus:
		u.taskStatus(in)
	case mcp.MethodResourceUpdated:
		if !mayNotify(u.s.grant(), m) {
			u.s.drop("denied by a policy", m)
			return
		}
		u.pass(in, mcp.Read(m))
	default:
		u.pass(in, mcp.Read(m))
	}
}

// changed notes that the upstream changed a list, and notifies the client if it may see any of it.
func (u *upstreamConn) changed(k catalog.Kind) {
	u.lists.Changed(k, u.s.lists.Legacy())
	if u.s.grant().SeesAny(lists.KindOf(k), u.up.Name) {
		u.s.lists.TellChanged(k)
	}
}

// pass forwards a message to the client, with edits to its params.
func (u *upstreamConn) pass(in incoming, n *mcp.Notes, edits ...jsonrpc.Edit) {
	out := u.s.exposed(u, in.m, n, edits...)
	out.Related = in.related()
	u.s.tell(out)
}

// progress forwards a progress notification with the client's own token. It drops those of settled
// requests.
func (u *upstreamConn) progress(in incoming) {
	notes := mcp.Read(in.m)
	var token json.RawMessage
	id, _ := notes.ID(mcp.Key)
	n, ok := id.Int()
	if c := callOf(in.of); c != nil && c.request != nil {
		token = c.token
		c.timeout.extend(u.up.RequestTimeout)
	} else {
		token = u.s.tasks.GetByToken(tokenKey{Conn: u, N: n}).Token
	}
	if !ok || token == nil {
		u.s.drop("late progress", in.m)
		return
	}
	u.pass(in, notes, jsonrpc.Edit{Span: notes.At(mcp.Key), With: token})
}

// handleModern forwards a notification of an upstream of the modern era, if it belongs to a request
// of the client.
func (u *upstreamConn) handleModern(in incoming) {
	switch m := in.m; m.Method {
	case mcp.MethodProgress:
		u.progress(in)
	case mcp.MethodLog:
		u.passModern(in)
	case mcp.MethodCancelled:
		u.subscriptionCancelled(in)
	default:
		tell := receiverOf(in)
		switch {
		case tell != nil:
			tell(m)
		case mcp.MethodOf(m.Method).OnListen:
			u.s.drop("no subscription", m)
		default:
			u.passModern(in)
		}
	}
}

// passModern forwards a message with the client's request to which it belongs, and drops messages
// without one. A log message needs a request that asks for its level.
func (u *upstreamConn) passModern(in incoming) {
	n := mcp.Read(in.m)
	c := callOf(in.of)
	if c == nil || c.request == nil || in.m.Method == mcp.MethodLog && !c.request.logs(n) {
		u.s.drop("not requested", in.m)
		return
	}
	u.pass(in, n)
}

// logs reports whether the client asked for a log message.
func (r *request) logs(n *mcp.Notes) bool {
	level, _ := n.Text(mcp.Key)
	return n.Err(mcp.Key) == nil && r.level > 0 && slices.Index(mcp.LogLevels, level)+1 >= r.level
}

// receiverOf returns the receiver of a notification that belongs to a subscription; nil for none.
func receiverOf(in incoming) func(*jsonrpc.Message) {
	of := in.of
	if in.m.Related.IsZero() {
		id, _ := mcp.Read(in.m).ID(mcp.Subscription)
		of = in.a.peer.Call(id)
	}
	if c := callOf(of); c != nil {
		return c.onNotification
	}
	return nil
}

// subscriptionCancelled handles an upstream's cancellation of a subscription, which is how some end
// it.
func (u *upstreamConn) subscriptionCancelled(in incoming) {
	id, _ := mcp.Read(in.m).ID(mcp.Key)
	c := callOf(in.a.peer.Call(id))
	if c == nil || c.onNotification == nil || !c.Take() {
		u.s.drop("cancellation of an unknown subscription", in.m)
		return
	}
	c.Done(jsonrpc.NewResult(c.ID, json.RawMessage(`{}`)), nil)
}

// taskStatus forwards an upstream's status of one of its tasks.
func (u *upstreamConn) taskStatus(in incoming) {
	n := mcp.Read(in.m)
	id, ended := catalog.NotedTask(n)
	if !u.s.mayUse(u, owners.OfTask, id) || !u.s.mayTask(u, u.s.grant(), id) {
		u.s.drop("status of an unknown task", in.m)
		return
	}
	if ended {
		u.s.tasks.End(u, u.s.taskName(u, id))
	}
	u.pass(in, n, catalog.Renaming(n, mcp.Key, func(id string) string { return u.s.taskName(u, id) })...)
}
