package session

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
)

// This file is the session as its upstream connections see it: as a [clientSide].

var _ clientSide = (*session)(nil)

func (s *session) dial(u *upstreamConn) (jsonrpc.Conn, error) {
	c, err := s.router.Dial(jsonrpc.WithForwarded(u.ctx, u.up.forwarded(s.forwarded, true)), u.up.Name, s.key, u.era)
	if err != nil {
		return nil, err
	}
	at := observe.Point{Side: observe.SideUpstream, Session: s.id(), Upstream: u.up.Name}
	at.Who = func(*jsonrpc.Message) (client, principal string) { return s.sender(nil) }
	return s.router.Tap.Conn(at, c), nil
}

func (s *session) initializeParams() json.RawMessage {
	params, _ := s.handshake.said()
	return params
}

func (s *session) stateAt(u *upstreamConn) (level json.RawMessage, subscriptions []json.RawMessage) {
	return s.handshake.lastLevel(), s.resourceSubs.Of(u)
}

func (s *session) needs(u *upstreamConn) bool {
	return s.tasks.IsUnfinishedAt(u) || s.clientTasks.IsUnfinishedAt(u) || s.resourceSubs.Of(u) != nil
}

func (s *session) isSole(u *upstreamConn) bool { return s.upstreams.of(u.era).only() == u }

// handle passes a request or notification of an upstream to the client.
func (s *session) handle(u *upstreamConn, in incoming) {
	switch {
	case in.r != nil:
		s.serverRequest(u, in)
	case u.era == mcp.Modern:
		s.handleModern(u, in)
	default:
		s.handleLegacy(u, in)
	}
}

// handleLegacy forwards a notification of an upstream of the legacy era.
func (s *session) handleLegacy(u *upstreamConn, in incoming) {
	if k, ok := catalog.ChangedKind(in.m.Method); ok {
		s.changed(u, k)
		return
	}
	switch m := in.m; m.Method {
	case mcp.MethodProgress:
		s.progress(u, in)
	case mcp.MethodCancelled:
		s.drop("cancellation of an unknown server request", m)
	case mcp.MethodTaskStatus:
		s.taskStatus(u, in)
	case mcp.MethodResourceUpdated:
		if !mayNotify(s.grant(), m) {
			s.drop("denied by a policy", m)
			return
		}
		s.pass(u, in, mcp.Read(m))
	case mcp.MethodLog, mcp.MethodElicited:
		s.pass(u, in, mcp.Read(m))
	default:
		s.extensionSaid(u, in)
	}
}

// extensionSaid forwards a notification that the proxy does not know. If it names a request by an id
// of ours, as a stream of an extension does, the client gets its own id. In the modern era it must
// belong to a request.
func (s *session) extensionSaid(u *upstreamConn, in incoming) {
	n := mcp.Read(in.m)
	if n.Method.IsRequest() {
		s.drop("a request without an id", in.m)
		return
	}
	c := callOf(in.of)
	id, names := n.Named()
	if number, _ := id.Int(); names && (id.IsZero() || number <= u.minted.Load()) { // else it is the upstream's own
		c = callOf(in.a.peer.Call(id))
		if c == nil || c.request == nil {
			s.drop("it names no open request", in.m)
			return
		}
	}
	g := s.grant()
	if c != nil && c.request != nil {
		g = c.request.grant
	} else if c = nil; u.era == mcp.Modern {
		s.drop("not requested", in.m)
		return
	}
	if mcp.MethodOf(in.m.Method).Name == "" && !g.MayMethod(in.m.Method) {
		s.drop("denied by a policy", in.m)
		return
	}
	out := s.exposed(u, in.m, n)
	out.Related = in.related()
	if names && c != nil {
		out.Related = c.request.ID
		params, ok := mcp.ReadParams(in.m.Method, out.Params).As(c.request.ID, c.token)
		if !ok {
			s.drop("the request has no progress token", in.m)
			return
		}
		out.Params = params
	}
	s.tell(out)
}

// changed notes that an upstream changed a list, and notifies the client if it may see any of it.
func (s *session) changed(u *upstreamConn, k catalog.Kind) {
	u.lists.Changed(k, s.lists.Legacy())
	if s.grant().SeesAny(lists.KindOf(k), u.up.Name) {
		s.lists.TellChanged(k)
	}
}

// pass forwards a message of an upstream to the client, with edits to its params. If it names its
// request as a subscription, it gets the client's own id there.
func (s *session) pass(u *upstreamConn, in incoming, n *mcp.Notes, edits ...jsonrpc.Edit) {
	if c := callOf(in.of); c != nil && c.request != nil && n.Has(mcp.Subscription) {
		if id, _ := n.Named(); id == c.ID {
			edits = append(edits, jsonrpc.Edit{Span: n.At(mcp.Subscription), With: c.request.ID.Raw()})
		}
	}
	out := s.exposed(u, in.m, n, edits...)
	out.Related = in.related()
	s.tell(out)
}

// progress forwards a progress notification with the client's own token. It drops those of settled
// requests.
func (s *session) progress(u *upstreamConn, in incoming) {
	notes := mcp.Read(in.m)
	var token json.RawMessage
	id, _ := notes.ID(mcp.Key)
	n, ok := id.Int()
	if c := callOf(in.of); c != nil && c.request != nil {
		token = c.token
		c.timeout.extend(u.up.RequestTimeout)
	} else {
		token = s.tasks.GetByToken(tokenKey{Conn: u, N: n}).Token
	}
	if !ok || token == nil {
		s.drop("late progress", in.m)
		return
	}
	s.pass(u, in, notes, jsonrpc.Edit{Span: notes.At(mcp.Key), With: token})
}

// handleModern forwards a notification of an upstream of the modern era, if it belongs to a request
// of the client.
func (s *session) handleModern(u *upstreamConn, in incoming) {
	switch m := in.m; m.Method {
	case mcp.MethodProgress:
		s.progress(u, in)
	case mcp.MethodLog:
		s.passModern(u, in)
	case mcp.MethodCancelled:
		s.subscriptionCancelled(in)
	default:
		tell := receiverOf(in)
		k, changed := catalog.ChangedKind(m.Method)
		switch {
		case tell != nil:
			tell(m)
		case changed: // the host tells of a translated server, for the catalog; no client listens
			u.lists.Changed(k, lists.Client{})
		case mcp.MethodOf(m.Method).OnListen:
			s.drop("no subscription", m)
		default:
			s.extensionSaid(u, in)
		}
	}
}

// passModern forwards a message with the client's request to which it belongs, and drops messages
// without one. A log message needs a request that asks for its level.
func (s *session) passModern(u *upstreamConn, in incoming) {
	n := mcp.Read(in.m)
	c := callOf(in.of)
	if c == nil || c.request == nil || in.m.Method == mcp.MethodLog && !c.request.logs(n) {
		s.drop("not requested", in.m)
		return
	}
	s.pass(u, in, n)
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
func (s *session) subscriptionCancelled(in incoming) {
	id, _ := mcp.Read(in.m).ID(mcp.Key)
	c := callOf(in.a.peer.Call(id))
	if c == nil || c.onNotification == nil || !c.Take() {
		s.drop("cancellation of an unknown subscription", in.m)
		return
	}
	c.Done(jsonrpc.NewResult(c.ID, json.RawMessage(`{}`)), nil)
}

// taskStatus forwards an upstream's status of one of its tasks.
func (s *session) taskStatus(u *upstreamConn, in incoming) {
	n := mcp.Read(in.m)
	id, ended := catalog.NotedTask(n)
	if !s.mayUse(u, owners.OfTask, id) || !s.mayTask(u, s.grant(), id) {
		s.drop("status of an unknown task", in.m)
		return
	}
	if ended {
		s.tasks.End(u, s.taskName(u, id), false)
	}
	s.pass(u, in, n, catalog.Renaming(n, mcp.Key, func(id string) string { return s.taskName(u, id) })...)
}
