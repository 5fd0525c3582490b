package session

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// Methods of extensions that the proxy does not know. A sole upstream gets them all. Of several,
// the owner is found in this order, and nobody else gets the request:
//
//   - the upstream that has the method in its configuration;
//   - the one that is named in params: by a name with its prefix, by the id of its task, or by the id of
//     a request that it works on;
//   - the first that does not answer that it has no such method, of those that have the name or the
//     URI in params, that gave a result for the method before, or that declare an extension that the
//     proxy does not know, in the order of the configuration.

// An extensionCall is the members of the params of an unknown method that may say whom it is for.
type extensionCall struct {
	name, uri, task  jsonrpc.Span
	responses, state jsonrpc.Span // the client returns to a call that asked it something
}

func readExtensionCall(params json.RawMessage) (e extensionCall, err error) {
	var at [5]jsonrpc.Span
	if len(params) > 0 && params[0] == '{' {
		err = jsonrpc.Find(params, jsonrpc.Span{}, at[:], "name", "uri", "taskId", "inputResponses", "requestState")
	}
	return extensionCall{at[0], at[1], at[2], at[3], at[4]}, err
}

// toExtension routes a request of an unknown method.
func (s *session) toExtension(r *request) *jsonrpc.Error {
	params, set := r.msg.Params, r.upstreams
	e, err := readExtensionCall(params)
	if err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	denied, answered := s.deniedExtension(r, e)
	switch {
	case answered:
		return nil
	case denied:
		s.noteDenial(r, "")
		return jsonrpc.MethodNotFound(r.Method)
	}
	if u := set.only(); u != nil {
		s.forward(r, u)
		return nil
	}
	u, edits := set.extensionOwner(r, e)
	if u != nil {
		s.forward(r, u, edits...)
		return nil
	}
	if isGiven(e.responses.Of(params)) || isGiven(e.state.Of(params)) {
		state, _ := jsonrpc.Unquote(e.state.Of(params))
		if u = s.readers.Get(r.stateKey(state)); u == nil {
			return foreignState
		}
		r.seeks = true
		s.forward(r, u)
		return nil
	}
	s.work(r, func(ctx context.Context) {
		conns := set.extensionOwners(ctx, r, e)
		if len(conns) == 0 {
			s.settle(r, &jsonrpc.Message{ID: r.ID, Error: r.unknownToAll()})
			return
		}
		r.seeks, r.others = true, conns[1:]
		s.forward(r, conns[0])
	})
	return nil
}

// deniedExtension reports whether a policy denies an unknown method, or what its params name. If only
// scopes are missing it answers the request, and answered is true.
func (s *session) deniedExtension(r *request, e extensionCall) (denied, answered bool) {
	if r.grant == nil {
		return false, false
	}
	if !r.grant.MayMethod(r.Method) {
		return true, false
	}
	if !e.uri.IsZero() {
		uri, ok := jsonrpc.Unquote(e.uri.Of(r.msg.Params))
		d := r.grant.Decide(policy.Resource, uri)
		if !ok || !d.Allowed {
			return true, false
		}
		if d.Missing != nil {
			s.needsScopes(r, d.Needs)
			return false, true
		}
	}
	if name, ok := jsonrpc.Unquote(e.name.Of(r.msg.Params)); ok {
		for _, k := range []catalog.Kind{catalog.Tools, catalog.Prompts} { // what it means is unknown, so it must not be denied as either
			u, original := s.upstreams.of(r.era).owner(r.caps, nil, k, name)
			if u == nil || !u.lists.Table(r.caps, k).Has(original) {
				continue
			}
			if denied, answered = s.denied(r, k, u, original); denied || answered {
				return denied, answered
			}
		}
	}
	if id, ok := jsonrpc.Unquote(e.task.Of(r.msg.Params)); ok {
		if u, own := r.upstreams.runner(id); u != nil {
			return s.deniedTask(r, u, own)
		}
	}
	return false, false
}

// extensionOwner returns the upstream that alone can be meant, and the edits that give it its own
// names; nil if others may be meant.
func (set *upstreamSet) extensionOwner(r *request, e extensionCall) (*upstreamConn, []jsonrpc.Edit) {
	params := r.msg.Params
	name, _ := jsonrpc.Unquote(e.name.Of(params))
	prefix := catalog.Longest(set.prefixes, name)
	var edits []jsonrpc.Edit
	if prefix != "" {
		edits = []jsonrpc.Edit{{Span: e.name, With: jsonrpc.Quote(strings.TrimPrefix(name, prefix))}}
	}
	for i, u := range set.conns {
		if set.upstreams[i].owns(r.Method) {
			if set.prefixes[i] != prefix {
				edits = nil
			}
			return u, edits
		}
	}
	if id, ok := jsonrpc.Unquote(e.task.Of(params)); ok {
		if u, own := set.runner(id); u != nil && set.s.mayUse(u, owners.OfTask, own) {
			return u, []jsonrpc.Edit{{Span: e.task, With: jsonrpc.Quote(own)}}
		}
	}
	if named := set.named(prefix); prefix != "" && len(named) == 1 {
		return named[0], edits
	}
	if r.notes.Has(mcp.Subscription) {
		if c := set.s.callNamed(r.notes); c != nil && slices.Contains(set.conns, c.conn) {
			return c.conn, nil
		}
	}
	return nil, nil
}

// unknownToAll returns the error for a method that no upstream knows that could be asked.
func (r *request) unknownToAll() json.RawMessage {
	if r.fallback != nil { // it might have known it
		return r.fallback
	}
	return jsonrpc.MethodNotFound(r.Method).Raw()
}

// extensionOwners returns the upstreams that may know the method of a request, in the order in which
// they are asked.
func (set *upstreamSet) extensionOwners(ctx context.Context, r *request, e extensionCall) (found []*upstreamConn) {
	add := func(u *upstreamConn) {
		if u != nil && !slices.Contains(found, u) {
			found = append(found, u)
		}
	}
	if name, ok := jsonrpc.Unquote(e.name.Of(r.msg.Params)); ok {
		for _, k := range []catalog.Kind{catalog.Tools, catalog.Prompts} {
			if u, original := set.owner(r.caps, r.grant, k, name); u != nil && original == name {
				add(u)
			}
		}
	}
	if uri, ok := jsonrpc.Unquote(e.uri.Of(r.msg.Params)); ok {
		add(set.ownerOf(r.caps, uri))
	}
	if u, ok := set.knows.Load(r.Method); ok {
		add(u.(*upstreamConn))
	}
	r.fallback = set.introduceAll(ctx, r)
	for _, u := range set.conns {
		if u.lists.Says().IsExtended() {
			add(u)
		}
	}
	return found
}

// introduceAll waits for the descriptions of the upstreams that have none yet. What those have that
// could not be reached, or was too slow, stays unknown: it returns the error of one of them, or of the
// links whose upstreams are unknown, nil if there are none.
func (set *upstreamSet) introduceAll(ctx context.Context, r *request) (unasked json.RawMessage) {
	ctx, cancel := context.WithTimeout(ctx, set.s.router.maxStart())
	defer cancel()
	who := r.listClient()
	unknown := set.filter(func(u *upstreamConn) bool { return u.lists.Says().Result == nil })
	failed := make([]*lists.Failure, len(unknown))
	lists.ForEach(ctx, listsOf(unknown), func(ctx context.Context, i int) {
		u := unknown[i]
		said, f := u.describe(ctx, who, who.Meta)
		if said == nil && f == nil && lists.TimedOut(ctx) {
			f = lists.FailureOf(peer.Unsent(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartTimeout}, u.up.Name))
		}
		failed[i] = f
	})
	for _, f := range failed {
		if f != nil {
			return f.Wire
		}
	}
	return set.unreachedText(r.grant)
}

// extensionReceiver returns the upstream for an unknown notification of a client: the sole one, the
// one that has the method in its configuration, the one of the call that it names, or the only one that
// declares an extension that the proxy does not know; nil for none. To tell several would tell servers
// what is not for them.
func (s *session) extensionReceiver(era mcp.Era, m *jsonrpc.Message, named *call) *upstreamConn {
	g := s.grantOf(m.From)
	if !g.MayMethod(m.Method) {
		return nil
	}
	set := s.upstreams.of(era).visibleTo(g)
	if u := set.only(); u != nil {
		return u
	}
	if mcp.MethodOf(m.Method).Name != "" {
		return nil
	}
	for i, u := range set.conns {
		if set.upstreams[i].owns(m.Method) {
			return u
		}
	}
	if named != nil && slices.Contains(set.conns, named.conn) {
		return named.conn
	}
	if extended := set.filter(func(u *upstreamConn) bool { return u.lists.Says().IsExtended() }); len(extended) == 1 && set.complete {
		return extended[0]
	}
	return nil
}
