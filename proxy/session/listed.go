package session

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// Extensions with a list of their own: skills (SEP-2640), and events (SEP-3415, a draft, of which only
// what is stable is here). The lists of several upstreams are merged, and a request is for the
// upstream that lists what it names. URIs and names stay as they are: the digests of a skill are about
// its bytes, and a server that delivers an event to a URL names it in its own way. So of two with one
// name the first in the configuration answers, and /mcp/NAME reaches the other.

// An extensionList is the list of an extension.
type extensionList struct {
	extension  string // in capabilities
	capability string // a top-level one that servers use in its place; "" for none
	method     string // that lists
	member     string // of the result
	key        string // of an element
}

var (
	skillsList = extensionList{mcp.ExtensionSkills, "", mcp.MethodSkillsList, "skills", "uri"}
	eventsList = extensionList{mcp.ExtensionEvents, "events", mcp.MethodEventsList, "events", "name"}
)

func (l *extensionList) isOf(u *upstreamConn) bool {
	said := u.lists.Says()
	return said.DeclaresExtension(l.extension) || l.capability != "" && said.Declares(l.capability)
}

// may reports whether a client may see an element. Skills are resources. Rules know no names of
// events: they are allowed by method.
func (l *extensionList) may(r *request, key string) bool {
	return l.key != "uri" || r.grant.May(policy.Resource, key)
}

// listingOf returns who listed what of a list.
func (set *upstreamSet) listingOf(l *extensionList) *listing {
	if l.key == "uri" {
		return &set.skills
	}
	return &set.events
}

// listExtension returns the handler of the list of an extension.
func listExtension(l *extensionList) handler {
	return func(s *session, r *request) *jsonrpc.Error {
		cursor, meta, err := r.readList()
		switch {
		case err != nil:
			return jsonrpc.InvalidParams(err.Error())
		case !l.allows(r):
			s.noteDenial(r, "")
			return jsonrpc.MethodNotFound(r.Method)
		}
		if u := r.upstreams.only(); u != nil && r.grant == nil {
			s.forward(r, u)
			return nil
		}
		if cursor != nil { // a merged list is one page
			return unknownCursor
		}
		s.work(r, func(ctx context.Context) {
			elements, caching, failure := s.mergeExtension(ctx, r, l, meta)
			switch {
			case ctx.Err() != nil: // the request was cancelled
			case failure != nil:
				s.settle(r, &jsonrpc.Message{ID: r.ID, Error: failure})
			default:
				s.settle(r, jsonrpc.NewResult(r.ID, l.result(s, r, elements, caching)))
			}
		})
		return nil
	}
}

// allows reports whether a policy allows the methods of the extension.
func (l *extensionList) allows(r *request) bool { return l.key == "uri" || r.grant.MayMethod(r.Method) }

// result returns a merged list.
func (l *extensionList) result(s *session, r *request, elements []json.RawMessage, caching catalog.Caching) json.RawMessage {
	if s.router.Policies.Differ() {
		caching.Private()
	}
	values := []jsonrpc.Value{{Key: l.member, Text: jsonrpc.Array(elements)}}
	kind, hints := caching.Members()[:1], caching.Members()[1:]
	if mcp.MethodOf(l.method).Cacheable {
		values = append(values, hints...)
	}
	if r.era == mcp.Legacy {
		return jsonrpc.Set(nil, values...)
	}
	values = append(values, kind...)
	return mcp.SetMeta(jsonrpc.Set(nil, values...), jsonrpc.Value{Key: mcp.KeyServerInfo, Text: s.router.serverInfo()})
}

// mergeExtension asks the upstreams that declare an extension for its list, and notes who listed what.
// It returns an error if no upstream could list anything.
func (s *session) mergeExtension(ctx context.Context, r *request, l *extensionList, meta json.RawMessage) (merged []json.RawMessage, caching catalog.Caching, failure json.RawMessage) {
	set := r.upstreams
	r.fallback = set.introduceAll(ctx, r)
	want := func(i int) bool { return l.isOf(set.conns[i]) }
	found, failed := lists.Gather(ctx, listsOf(set.conns), l.method, want, func(ctx context.Context, i int) (catalog.Collection, *lists.Failure) {
		return set.conns[i].lists.Pages(ctx, l.method, l.member, meta)
	})
	var first *lists.Failure
	answers := 0
	owner := make(map[string]*upstreamConn)
	if r.fallback != nil {
		caching.Partial()
	}
	for i, u := range set.conns {
		if f := failed[i]; f != nil {
			u.lists.LeftOut(l.method, f)
			first = cmp.Or(first, f)
			caching.Partial()
			continue
		}
		if !want(i) {
			continue
		}
		answers++
		caching.Add(found[i].Caching)
		merged = append(merged, s.own(r, l, u, found[i].Elements, owner)...)
	}
	switch {
	case answers > 0:
		set.listingOf(l).set(owner)
		return merged, caching, nil
	case first != nil:
		return nil, caching, first.Wire
	}
	return nil, caching, r.unknownToAll()
}

// own returns the elements of an upstream that the client may see and that no other has listed before,
// and notes them.
func (s *session) own(r *request, l *extensionList, u *upstreamConn, elements []json.RawMessage, owner map[string]*upstreamConn) (own []json.RawMessage) {
	for _, e := range elements {
		raw, _ := jsonrpc.Member(e, l.key)
		key, ok := jsonrpc.Unquote(raw)
		switch {
		case !ok || !l.may(r, key):
		case mcp.IsTooLong(raw):
			u.lists.WarnTooLong(l.method, l.key)
		case owner[key] == nil:
			owner[key] = u
			own = append(own, e)
		case owner[key] != u && s.router.memory.WarnOnce("clash "+l.member+key):
			s.log.Warn("listed by two upstreams: the first one in the config answers", l.key, key)
		}
	}
	return own
}

// byListed routes a request by what an extension lists. The owner of what nobody lists is found by
// asking.
func (s *session) byListed(r *request) *jsonrpc.Error {
	l := &skillsList
	if strings.HasPrefix(r.Method, "events/") {
		l = &eventsList
	}
	key, ok := r.notes.Text(mcp.Key)
	switch {
	case r.notes.Err(mcp.Key) != nil:
		return jsonrpc.InvalidParams(r.notes.Err(mcp.Key).Error())
	case !ok:
		return jsonrpc.InvalidParams(mcp.Missing(l.key).Error())
	case !l.allows(r), l == &eventsList && !r.mayDeliver():
		s.noteDenial(r, "")
		return jsonrpc.MethodNotFound(r.Method)
	case l == &skillsList:
		switch denied, answered := s.denied(r, catalog.Resources, nil, key); {
		case answered:
			return nil
		case denied:
			s.noteDenial(r, "")
			return resourceNotFound(mcp.Modern, key)
		}
	}
	set, isDirectory := r.upstreams, r.Method == mcp.MethodDirectoryRead
	u := set.only()
	if u == nil {
		u = set.listingOf(l).of(key, isDirectory)
	}
	if u != nil {
		s.forward(r, u)
		return nil
	}
	s.work(r, func(ctx context.Context) {
		_, _, failure := s.mergeExtension(ctx, r, l, r.identity())
		if u := set.listingOf(l).of(key, isDirectory); u != nil {
			r.fallback = nil // whatever this one answers is the answer
			s.forward(r, u)
			return
		}
		candidates := set.filter(l.isOf)
		if ctx.Err() != nil {
			return
		}
		if len(candidates) == 0 {
			s.settle(r, &jsonrpc.Message{ID: r.ID, Error: failure})
			return
		}
		r.others = slices.Clone(candidates[1:])
		s.forward(r, candidates[0])
	})
	return nil
}

// mayDeliver reports whether a policy allows the URL to which a server is to send events.
func (r *request) mayDeliver() bool {
	if r.grant == nil || r.Method != mcp.MethodEventsSubscribe {
		return true
	}
	delivery, err := jsonrpc.Member(r.msg.Params, "delivery")
	if err != nil {
		return false
	}
	raw, err := jsonrpc.Member(delivery, "url")
	url, ok := jsonrpc.Unquote(raw)
	return err == nil && ok && r.grant.MayDeliver(url)
}
