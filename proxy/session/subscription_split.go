package session

import (
	"context"
	"maps"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// split says which upstream is to listen for what: for a list, all that could have
// it; for a resource or a task, who has it, or all that may if nobody knows. The
// only upstream gets the client's own filter.
func (sub *subscription) split(ctx context.Context, set *upstreamSet) map[*upstreamConn]catalog.Filter {
	if u := set.only(); u != nil {
		return map[*upstreamConn]catalog.Filter{u: forOnly(sub.want, set)}
	}
	wants := make(map[*upstreamConn]catalog.Filter, len(set.conns))
	for _, u := range set.conns {
		var f catalog.Filter
		for k, wanted := range sub.want.Lists {
			f.Lists[k] = wanted && u.offers(catalog.Kind(k).Capability())
		}
		wants[u] = f
	}
	who := asker{sub.c.view, sub.identity}
	set.findOwners(ctx, who, sub.want.URIs)
	for _, uri := range sub.want.URIs {
		for _, u := range set.watchersOf(who.view, uri) {
			f := wants[u]
			f.URIs = append(f.URIs, uri)
			wants[u] = f
		}
	}
	for _, name := range sub.want.Tasks {
		for u, id := range set.runnersOf(name) {
			f := wants[u]
			f.Tasks = append(f.Tasks, id)
			wants[u] = f
		}
	}
	maps.DeleteFunc(wants, func(_ *upstreamConn, f catalog.Filter) bool { return f.IsEmpty() })
	return wants
}

// findOwners makes the upstreams list their resources if nobody is known to have
// one of these.
func (set *upstreamSet) findOwners(ctx context.Context, who asker, uris []string) {
	if slices.ContainsFunc(uris, func(uri string) bool { return set.ownerOf(who.view, uri) == nil }) {
		ctx, cancel := context.WithTimeout(ctx, ownersWithin)
		defer cancel()
		set.refresh(ctx, who, all, catalog.Resources, catalog.Templates)
	}
}

// watchersOf returns the upstreams that may know of changes of a resource.
func (set *upstreamSet) watchersOf(w *view, uri string) []*upstreamConn {
	if u := set.ownerOf(w, uri); u != nil {
		return []*upstreamConn{u}
	}
	return set.withResources()
}

// runnersOf returns the upstreams that may run a task, and what they call it.
func (set *upstreamSet) runnersOf(name string) map[*upstreamConn]string {
	if u, own := set.runner(name); u != nil {
		return map[*upstreamConn]string{u: own}
	}
	found := make(map[*upstreamConn]string)
	for _, u := range set.conns {
		if u.unknown() || u.declaresTasks() {
			found[u] = name
		}
	}
	return found
}

// forOnly returns the client's filter with what the only upstream calls its tasks, some
// of which may have been given when there were several.
func forOnly(f catalog.Filter, set *upstreamSet) catalog.Filter {
	own := make([]string, len(f.Tasks))
	for i, name := range f.Tasks {
		_, own[i] = set.runner(name)
	}
	if !slices.Equal(own, f.Tasks) {
		f.Tasks = own
		f.As = f.On(f.As)
	}
	return f
}
