package session

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

func unknown(what, name string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Unknown " + what + ": " + name}
}

// callTool routes tools/call by the tool's name.
func (s *session) callTool(r *request) *jsonrpc.Error {
	if err := r.notes.Err(mcp.Key, mcp.InMeta, mcp.Task); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	switch {
	case r.era == mcp.Modern && r.tasks:
		r.whenAnswered(func(answer *jsonrpc.Message) { s.modernTaskCreated(r, answer) })
	case r.era == mcp.Legacy && r.notes.Has(mcp.Task):
		r.whenAnswered(func(answer *jsonrpc.Message) { s.taskCreated(r, answer) })
	}
	return s.byName(r, catalog.Tools, mcp.Key)
}

// getPrompt routes prompts/get by the prompt's name.
func (s *session) getPrompt(r *request) *jsonrpc.Error { return s.byName(r, catalog.Prompts, mcp.Key) }

// byName forwards a request to the upstream that offers the thing named by a member of params,
// under the upstream's own name for it.
func (s *session) byName(r *request, k catalog.Kind, in mcp.Member) *jsonrpc.Error {
	if err := r.notes.Err(in); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	name, ok := r.notes.Text(in)
	if !ok {
		return jsonrpc.InvalidParams(mcp.Missing("name").Error())
	}
	if u, original := r.upstreams.owner(r.caps, r.grant, k, name); u != nil {
		return s.toTarget(r, target{k, in, name, false}, u, original)
	}
	s.work(r, func(ctx context.Context) {
		u, original := r.upstreams.find(ctx, r.listClient(), k, name)
		if err := s.toTarget(r, target{k, in, name, true}, u, original); err != nil {
			s.fail(r, err)
		}
	})
	return nil
}

// A target is the tool or prompt that a request names.
type target struct {
	kind   catalog.Kind
	in     mcp.Member // of params, that has the name
	name   string
	listed bool // its upstream was listed for this call
}

// toTarget forwards a request to the upstream of its target, nil for none.
func (s *session) toTarget(r *request, n target, u *upstreamConn, original string) *jsonrpc.Error {
	if u != nil {
		denied, answered := s.denied(r, n.kind, u, original)
		switch {
		case answered:
			return nil
		case denied:
			u = nil
		}
	}
	switch {
	case u == nil && catalog.Longest(r.upstreams.prefixes, n.name) == "" && !r.upstreams.complete:
		return r.upstreams.unreached(r.grant)
	case u == nil || n.kind == catalog.Tools && !u.up.allows(original):
		s.noteUnknown(r, n)
		return unknown(n.what(), n.name)
	}
	if n.kind == catalog.Tools {
		r.tool = original
	} else {
		r.prompt = original
	}
	bad, sure := r.checkHeaders(u, n.kind, original)
	switch {
	case !sure && !n.listed:
		s.work(r, func(ctx context.Context) {
			u.lists.LearnTools(ctx, r.listClient())
			if err := s.toTarget(r, target{n.kind, n.in, n.name, true}, u, original); err != nil {
				s.fail(r, err)
			}
		})
	case bad != nil:
		return bad
	case original == n.name:
		s.forward(r, u)
	default:
		s.forward(r, u, jsonrpc.Edit{Span: r.notes.At(n.in), With: jsonrpc.Quote(original)})
	}
	return nil
}

func (n target) what() string {
	if n.kind == catalog.Tools {
		return "tool"
	}
	return "prompt"
}

// owner finds a name in the tables of a view, as far as a client may see them. A sole upstream with
// bare names needs no table.
func (set *upstreamSet) owner(caps catalog.Digest, g *policy.Grant, k catalog.Kind, name string) (*upstreamConn, string) {
	if u := set.only(); u != nil && set.prefixes[0] == "" {
		return u, set.former(caps, k, name)
	}
	var room [someUpstreams]catalog.Offer
	i, original := catalog.Owner(set.offers(caps, k, room[:0]), name, set.offersTo(g, k))
	if set.unsure(i, name, original) {
		return nil, ""
	}
	return set.at(i), original
}

// unsure reports whether the i-th upstream only lists a name that could also be one with the prefix
// of an upstream that is not known yet.
func (set *upstreamSet) unsure(i int, name, original string) bool {
	return i >= 0 && !set.complete && name == original && catalog.MayHavePrefix(name, set.prefixes[i])
}

// former returns the sole upstream's own name for a name that a client may know from when there
// were several.
func (set *upstreamSet) former(caps catalog.Digest, k catalog.Kind, name string) string {
	u := set.conns[0]
	if !set.s.upstreams.follows || !catalog.MayBeFormer(u.up.Name, name) {
		return name
	}
	return u.lists.Table(caps, k).Former(u.up.Name, name)
}

// find is owner after listing the upstreams whose lists are unknown or stale, first those with the
// prefix of the name. If one of those cannot list now, it gets the request, so that the client gets
// its error. A name that the catalog does not have may be new: it starts the lazy upstreams with its
// prefix, and no others.
func (set *upstreamSet) find(ctx context.Context, who lists.Client, k catalog.Kind, name string) (*upstreamConn, string) {
	prefix := catalog.Longest(set.prefixes, name)
	named := set.named(prefix)
	if prefix != "" {
		if u, original := set.ownerIn(ctx, named, who, k, name); u != nil {
			return u, original
		}
		for _, u := range named {
			if u.lists.IsStale(who.Caps, k) {
				return u, strings.TrimPrefix(name, prefix)
			}
		}
	}
	lists.Refresh(ctx, listsOf(set.conns), who, k)
	if u, original := set.ownerIn(ctx, named, who, k, name); u != nil {
		return u, original
	}
	var room [someUpstreams]catalog.Offer
	i := catalog.BareOwner(set.offers(who.Caps, k, room[:0]), name, set.offersTo(who.Grant, k))
	if set.unsure(i, name, name) {
		return nil, ""
	}
	return set.at(i), name // an upstream that could not list now cannot serve the request either
}

// ownerIn is owner after listing upstreams whose lists are unknown or stale. If that does not help
// it starts those that are lazy.
func (set *upstreamSet) ownerIn(ctx context.Context, conns []*upstreamConn, who lists.Client, k catalog.Kind, name string) (*upstreamConn, string) {
	lists.Refresh(ctx, listsOf(conns), who, k)
	u, original := set.owner(who.Caps, who.Grant, k, name)
	if u == nil {
		who.Own = true
		silent := slices.DeleteFunc(slices.Clone(conns), func(u *upstreamConn) bool { return !u.lists.IsLazy() || u.lists.Answers() })
		lists.Refresh(ctx, listsOf(silent), who, k)
		u, original = set.owner(who.Caps, who.Grant, k, name)
	}
	return u, original
}

// named returns the upstreams with a prefix.
func (set *upstreamSet) named(prefix string) (found []*upstreamConn) {
	for i, u := range set.conns {
		if set.prefixes[i] == prefix {
			found = append(found, u)
		}
	}
	return found
}

// complete routes completion/complete by its reference.
func (s *session) complete(r *request) *jsonrpc.Error {
	if err := r.notes.Err(mcp.Key, mcp.RefType, mcp.RefURI); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	switch kindOfRef, _ := r.notes.Text(mcp.RefType); kindOfRef {
	case "ref/prompt":
		return s.byName(r, catalog.Prompts, mcp.RefName)
	case "ref/resource":
		return s.toOwnerOf(r, mcp.RefURI)
	}
	if u := r.upstreams.only(); u != nil && r.grant.MayExtend() {
		s.forward(r, u)
		return nil
	}
	return jsonrpc.InvalidParams(`"ref" is neither a prompt nor a resource`)
}

// checkHeaders compares the headers of a call with its arguments, for an upstream's tool. It
// returns nil if nothing is known to be wrong. sure is false if a fresh list of the tools could
// change the result.
func (r *request) checkHeaders(u *upstreamConn, k catalog.Kind, tool string) (bad *jsonrpc.Error, sure bool) {
	if k != catalog.Tools || r.msg.Headers == nil {
		return nil, true
	}
	t := u.lists.Table(r.caps, catalog.Tools)
	bad = catalog.Disagrees(t.Mirrors(tool), r.msg.Headers, r.notes)
	return bad, t.Has(tool) && bad == nil || !u.lists.MayLearnTools(r.caps)
}

// noteUnknown logs a denial if the name is unknown only to this client.
func (s *session) noteUnknown(r *request, n target) {
	if r.grant == nil || !s.log.Enabled(s.ctx, slog.LevelDebug) {
		return
	}
	set := s.upstreams.of(r.era)
	if u, original := set.owner(r.caps, nil, n.kind, n.name); u != nil {
		s.noteDenial(r, ruleName(n.kind, u, original))
	} else if catalog.Longest(set.prefixes, n.name) != catalog.Longest(r.upstreams.prefixes, n.name) {
		s.noteDenial(r, "")
	}
}

// offersTo returns which names of a kind resolve for a client; nil for all.
func (set *upstreamSet) offersTo(g *policy.Grant, k catalog.Kind) func(i int, name string) bool {
	if g == nil {
		return nil
	}
	return func(i int, name string) bool { return g.May(lists.KindOf(k), ruleName(k, set.conns[i], name)) }
}
