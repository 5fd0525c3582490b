package session

import (
	"context"
	"maps"
	"slices"
)

// split says which upstream is to listen for what: for a list, all that could have
// it; for a resource or a task, who has it, or all that may if nobody knows. The
// only upstream gets the client's own filter.
func (sub *subscription) split(ctx context.Context, set *upstreamSet) map[*upstreamConn]filter {
	if u := set.only(); u != nil {
		return map[*upstreamConn]filter{u: sub.want.forOnly(set)}
	}
	wants := make(map[*upstreamConn]filter, len(set.conns))
	for _, u := range set.conns {
		var f filter
		for k, wanted := range sub.want.lists {
			f.lists[k] = wanted && u.offers(kindInfo[k].capability)
		}
		wants[u] = f
	}
	who := asker{sub.c.view, identityIn(sub.meta)}
	set.findOwners(ctx, who, sub.want.uris)
	for _, uri := range sub.want.uris {
		for _, u := range set.watchersOf(who.view, uri) {
			f := wants[u]
			f.uris = append(f.uris, uri)
			wants[u] = f
		}
	}
	for _, name := range sub.want.tasks {
		for u, id := range set.runnersOf(name) {
			f := wants[u]
			f.tasks = append(f.tasks, id)
			wants[u] = f
		}
	}
	maps.DeleteFunc(wants, func(_ *upstreamConn, f filter) bool { return f.isEmpty() })
	return wants
}

// findOwners makes the upstreams list their resources if nobody is known to have
// one of these.
func (set *upstreamSet) findOwners(ctx context.Context, who asker, uris []string) {
	if slices.ContainsFunc(uris, func(uri string) bool { return set.ownerOf(who.view, uri) == nil }) {
		ctx, cancel := context.WithTimeout(ctx, ownersWithin)
		defer cancel()
		set.refresh(ctx, who, all, resources, templates)
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
func (f filter) forOnly(set *upstreamSet) filter {
	own := make([]string, len(f.tasks))
	for i, name := range f.tasks {
		_, own[i] = set.runner(name)
	}
	if !slices.Equal(own, f.tasks) {
		f.tasks = own
		f.as = f.on(f.as)
	}
	return f
}
