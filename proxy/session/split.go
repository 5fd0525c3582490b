package session

import (
	"context"
	"maps"
	"slices"
)

// split says which upstream is to listen for what: for a list, all that could have
// it; for a resource or a task, who has it, or all that may if nobody knows. The
// only upstream gets the client's own filter.
func (ln *listen) split(ctx context.Context, v *lineup) map[*leg]filter {
	if l := v.only(); l != nil {
		return map[*leg]filter{l: ln.want.forOnly(v)}
	}
	wants := make(map[*leg]filter, len(v.legs))
	for _, l := range v.legs {
		var f filter
		for k, wanted := range ln.want.lists {
			f.lists[k] = wanted && l.offers(kindInfo[k].capability)
		}
		wants[l] = f
	}
	who := asker{ln.c.view, identityIn(ln.meta)}
	v.findOwners(ctx, who, ln.want.uris)
	for _, uri := range ln.want.uris {
		for _, l := range v.watchersOf(who.view, uri) {
			f := wants[l]
			f.uris = append(f.uris, uri)
			wants[l] = f
		}
	}
	for _, name := range ln.want.tasks {
		for l, id := range v.runnersOf(name) {
			f := wants[l]
			f.tasks = append(f.tasks, id)
			wants[l] = f
		}
	}
	maps.DeleteFunc(wants, func(_ *leg, f filter) bool { return f.isEmpty() })
	return wants
}

// findOwners makes the upstreams list their resources if nobody is known to have
// one of these.
func (v *lineup) findOwners(ctx context.Context, who asker, uris []string) {
	if slices.ContainsFunc(uris, func(uri string) bool { return v.ownerOf(who.view, uri) == nil }) {
		ctx, cancel := context.WithTimeout(ctx, ownersWithin)
		defer cancel()
		v.refresh(ctx, who, all, resources, templates)
	}
}

// watchersOf returns the upstreams that may know of changes of a resource.
func (v *lineup) watchersOf(w *view, uri string) []*leg {
	if l := v.ownerOf(w, uri); l != nil {
		return []*leg{l}
	}
	return v.withResources()
}

// runnersOf returns the upstreams that may run a task, and what they call it.
func (v *lineup) runnersOf(name string) map[*leg]string {
	if l, own := v.runner(name); l != nil {
		return map[*leg]string{l: own}
	}
	found := make(map[*leg]string)
	for _, l := range v.legs {
		if l.unknown() || l.declaresTasks() {
			found[l] = name
		}
	}
	return found
}

// forOnly returns the client's filter with what the only upstream calls its tasks, some
// of which may have been given when there were several.
func (f filter) forOnly(v *lineup) filter {
	own := make([]string, len(f.tasks))
	for i, name := range f.tasks {
		_, own[i] = v.runner(name)
	}
	if !slices.Equal(own, f.tasks) {
		f.tasks = own
		f.as = f.on(f.as)
	}
	return f
}
