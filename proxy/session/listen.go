package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// Package listen has the subscriptions. This file says which upstream has what they are for.

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
	r.whenAnswered(func(answer *jsonrpc.Message) {
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
	r.whenAnswered(func(answer *jsonrpc.Message) {
		if answer.Error == nil {
			s.resourceSubs.Take(uri) // one that was not answered yet when this request came
		}
	})
	if u, ok := s.resourceSubs.Take(uri).(*upstreamConn); ok {
		s.forward(r, u)
		return nil
	}
	return s.toOwnerOf(r, mcp.Key)
}

// listen begins a subscriptions/listen.
func (s *session) listen(r *request) *jsonrpc.Error {
	want, err := mcp.ReadFilter(r.notes)
	if err == nil {
		err = r.notes.Err(mcp.InMeta, mcp.Token)
	}
	switch {
	case err != nil:
		return jsonrpc.InvalidParams(err.Error())
	case want.Tasks != nil && !r.tasks:
		return errNoTasks
	case !s.confine(r, &want):
		return nil
	}
	l := &listener{s: s, r: r, want: want, identity: r.identity(), who: cmp.Or(r.msg.From, s.who)}
	meta, size := bytes.Clone(r.notes.Raw(mcp.InMeta)), len(r.msg.Params)
	r.msg, r.notes = nil, nil
	if !s.keep(r, size) {
		return jsonrpc.Overloaded("")
	}
	sub := s.subscriptions.Begin(r.ID, want, meta, l)
	if sub == nil {
		return jsonrpc.Overloaded("")
	}
	if !s.work(r, sub.Run) {
		sub.Forget()
	}
	return nil
}

// over returns the result of a subscription that was last split over set.
func (r *request) over(set *upstreamSet) *jsonrpc.Message {
	says := []jsonrpc.Value{{Key: mcp.KeySubscription, Text: r.ID.Raw()}}
	if set.only() == nil {
		says = append(says, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: set.s.router.serverInfo()})
	}
	return jsonrpc.NewResult(r.ID, mcp.SetMeta(json.RawMessage(`{"resultType":"complete"}`), says...))
}

// A listener is the client of one subscriptions/listen. It implements [listen.Client].
type listener struct {
	// Static after construction.
	s        *session
	r        *request
	want     mcp.Filter
	identity json.RawMessage // see request.identity
	who      *identity.Identity

	// Owned by the subscription's goroutine.
	upstreams *upstreamSet // over which it is split; nil before
}

// grant returns the client's current grant.
func (l *listener) grant() *policy.Grant { return l.s.router.Policies.For(l.who) }

// client returns for whom upstreams are asked for lists.
func (l *listener) client() lists.Client {
	return lists.Client{Caps: l.r.caps, Grant: l.grant(), Meta: l.identity}
}

func (l *listener) Tell(m *jsonrpc.Message) {
	l.r.told.Store(true)
	l.s.tell(m)
}

func (l *listener) Drop(reason string, m *jsonrpc.Message) { l.s.drop(reason, m) }

func (l *listener) End() { l.s.settle(l.r, l.r.over(l.upstreams)) }

func (l *listener) TaskName(at listen.Upstream, id string) string {
	return l.s.taskName(at.(*upstreamConn), id)
}

func (l *listener) Sees(at listen.Upstream, k catalog.Kind) bool {
	return l.grant().SeesAny(lists.KindOf(k), at.(*upstreamConn).up.Name)
}

func (l *listener) Note(at listen.Upstream, m *jsonrpc.Message) bool {
	u := at.(*upstreamConn)
	if k, ok := catalog.ChangedKind(m.Method); ok {
		u.lists.Changed(k, l.client())
		return true
	}
	switch m.Method {
	case mcp.MethodAcknowledged:
		u.noteAlive()
	case mcp.MethodResourceUpdated:
		return mayNotify(l.grant(), m)
	case mcp.MethodTask:
		id, ended := catalog.NotedTask(mcp.Read(m))
		if ended {
			l.s.tasks.End(u, l.s.taskName(u, id), true)
		}
		return l.s.mayUse(u, owners.OfTask, id) && l.s.mayTask(u, l.grant(), id)
	default:
		return mcp.MethodOf(m.Method).Name != "" || l.grant().MayMethod(m.Method)
	}
	return true
}

func (l *listener) Verify(at listen.Upstream, want [catalog.Kinds]bool) {
	for k := range catalog.Kinds {
		if want[min(k, catalog.Resources)] {
			at.(*upstreamConn).lists.Verify(k, l.client())
		}
	}
}

func (l *listener) Split(ctx context.Context) (listen.Split, bool) {
	set, before := l.s.upstreams.of(mcp.Modern).visibleTo(l.grant()), l.upstreams
	if set == before {
		return listen.Split{}, false
	}
	l.upstreams = set
	parts := l.split(ctx, set)
	return listen.Split{
		Parts: parts, Sole: set.only() != nil, None: len(set.conns) == 0 && set.complete,
		Same: l.grant() != nil && before != nil && set.equal(before),
	}, true
}

// split returns the filter of each upstream. All that may have a list listen for its changes. The
// owner of a resource or a task listens for that, or if it is unknown, all that may have it. Upstreams
// with unknown extensions get the members that the proxy does not know. A sole upstream gets the
// client's own filter.
func (l *listener) split(ctx context.Context, set *upstreamSet) map[listen.Upstream]mcp.Filter {
	if u := set.only(); u != nil {
		return map[listen.Upstream]mcp.Filter{u: forOnly(l.want, set)}
	}
	wants := make(map[listen.Upstream]mcp.Filter, len(set.conns))
	for _, u := range set.conns {
		var f mcp.Filter
		for k, wanted := range l.want.Lists {
			f.Lists[k] = wanted && u.lists.Says().Offers(catalog.Kind(k).Capability())
		}
		wants[u] = f
	}
	who := l.client()
	set.findOwners(ctx, who, l.want.URIs)
	for _, uri := range l.want.URIs {
		for _, u := range set.watchersOf(who.Caps, uri) {
			f := wants[u]
			f.URIs = append(f.URIs, uri)
			wants[u] = f
		}
	}
	for _, name := range l.want.Tasks {
		for u, id := range set.runnersOf(name) {
			if !l.s.mayTask(u, who.Grant, id) {
				continue
			}
			f := wants[u]
			f.Tasks = append(f.Tasks, id)
			wants[u] = f
		}
	}
	if unknown := l.want.Unknown(); unknown != nil {
		for _, u := range set.conns {
			if said := u.lists.Says(); said.Result == nil || said.IsExtended() {
				f := wants[u]
				f.As = f.On(unknown)
				wants[u] = f
			}
		}
	}
	maps.DeleteFunc(wants, func(_ listen.Upstream, f mcp.Filter) bool { return f.IsEmpty() })
	return wants
}

// ownersWithin bounds the time in which the upstreams of resources are found, which delays the
// acknowledgment.
const ownersWithin = 200 * time.Millisecond

// findOwners lists the resources of the upstreams if the owner of one is unknown.
func (set *upstreamSet) findOwners(ctx context.Context, who lists.Client, uris []string) {
	if slices.ContainsFunc(uris, func(uri string) bool { return set.ownerOf(who.Caps, uri) == nil }) {
		ctx, cancel := context.WithTimeout(ctx, ownersWithin)
		defer cancel()
		lists.Refresh(ctx, listsOf(set.conns), who, catalog.Resources, catalog.Templates)
	}
}

// watchersOf returns the upstreams that may send updates of a resource.
func (set *upstreamSet) watchersOf(caps catalog.Digest, uri string) []*upstreamConn {
	if u := set.ownerOf(caps, uri); u != nil {
		return []*upstreamConn{u}
	}
	return set.withResources()
}

// runnersOf returns the upstreams that may run a task, with their own ids of it.
func (set *upstreamSet) runnersOf(name string) map[*upstreamConn]string {
	if u, own := set.runner(name); u != nil {
		if !set.s.mayUse(u, owners.OfTask, own) {
			return nil
		}
		return map[*upstreamConn]string{u: own}
	}
	found := make(map[*upstreamConn]string)
	for _, u := range set.conns {
		if (u.lists.Says().Result == nil || u.lists.Says().DeclaresExtension(mcp.ExtensionTasks)) && set.s.mayUse(u, owners.OfTask, name) {
			found[u] = name
		}
	}
	return found
}

// forOnly returns the client's filter with a sole upstream's own ids of its tasks. The client may
// have other ids, from when there were several upstreams.
func forOnly(f mcp.Filter, set *upstreamSet) mcp.Filter {
	own := make([]string, 0, len(f.Tasks))
	for _, name := range f.Tasks {
		if u, id := set.runner(name); set.s.mayUse(u, owners.OfTask, id) {
			own = append(own, id)
		}
	}
	if !slices.Equal(own, f.Tasks) {
		f.Tasks = own
		f.As = f.On(f.As)
	}
	return f
}

// These implement [listen.Upstream].
