package session

import (
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A Resolution is where a name leads, as far as any session has seen what upstreams list. What a
// client may is another question.
type Resolution struct {
	Upstream string // "" for nowhere
	Original string // its own name there
	Exposed  string // the name that clients see
	By       Rule
	Listed   bool // by the upstream
	Known    bool // what the upstream lists is: else nobody has asked it yet
	Hidden   bool // by the upstream's tools.allow and tools.deny

	// Others are upstreams that have the same bare name, so that it leads nowhere.
	Others []string

	// Names are those that clients see of what upstreams list, if none lists this one.
	Names []string

	Complete bool // there are no upstreams that are not known yet
}

// A Rule is why a name leads somewhere.
type Rule string

// Rules.
const (
	BySole      Rule = "sole"     // there is no other upstream, and its names are bare
	ByPrefix    Rule = "prefix"   // the name begins with that of the upstream
	ByBareName  Rule = "bare"     // no other upstream has the name
	ByPolicy    Rule = "policy"   // it is how policies call it; clients see another name
	ByURI       Rule = "uri"      // the upstream lists the URI
	ByTemplate  Rule = "template" // the upstream lists a template that matches
	ByNobody    Rule = "nobody"   // no upstream is known to have it
	BySeveral   Rule = "several"  // more than one has it
	ByAskingAll Rule = "asked"    // a resource that nobody lists: upstreams are asked in turn
)

// Resolve returns where a name of a kind leads now, or a URI. Templates are among resources.
func (p *Router) Resolve(k catalog.Kind, name string) Resolution {
	f := finder{p.current(), p.memory.lastTables(), k}
	var l Resolution
	if k.IsNamed() {
		if l = f.named(name); !l.Listed {
			l.Names = f.names()
		}
	} else {
		l = f.uri(name)
	}
	l.Complete = f.complete
	return l
}

// A finder looks names up in the tables that sessions remember.
type finder struct {
	*configured
	tables map[tableKey]*catalog.Table
	kind   catalog.Kind
}

// lastTables returns the tables last seen by any session.
func (m *memory) lastTables() map[tableKey]*catalog.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.tables)
}

// offers returns what the upstreams list of a kind to clients with the same capabilities.
func (f *finder) offers(k catalog.Kind, caps catalog.Digest) (all []catalog.Offer) {
	for i, u := range f.upstreams {
		all = append(all, catalog.Offer{Prefix: f.prefixes[i], Table: f.tables[tableKey{u.Name, k, caps}]})
	}
	return all
}

// capabilities are those with which lists were seen, those of the legacy era first.
func (f *finder) capabilities() []catalog.Digest {
	all := make(map[catalog.Digest]bool)
	for k := range f.tables {
		all[k.caps] = true
	}
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b catalog.Digest) int { return slices.Compare(a[:], b[:]) })
	if len(sorted) == 0 {
		return []catalog.Digest{{}}
	}
	return sorted
}

// names returns what clients call all that is known to be listed.
func (f *finder) names() (all []string) {
	for i, u := range f.upstreams {
		for k, t := range f.tables {
			if k.upstream != u.Name || k.kind != f.kind {
				continue
			}
			for _, e := range t.Entries {
				if f.kind != catalog.Tools || u.allows(e.Name) {
					all = append(all, catalog.Exposed(f.prefixes[i], e.Name))
				}
			}
		}
	}
	return all
}

func (f *finder) named(name string) Resolution {
	if f.complete && len(f.upstreams) == 1 && f.prefixes[0] == "" {
		for _, caps := range f.capabilities() {
			if former := f.offers(f.kind, caps)[0].Table.Former(f.upstreams[0].Name, name); former != name {
				return f.to(0, former, BySole)
			}
		}
		return f.to(0, name, BySole)
	}
	for _, caps := range f.capabilities() {
		if i, original := catalog.Owner(f.offers(f.kind, caps), name, nil); i >= 0 {
			by := ByPrefix
			if original == name {
				by = ByBareName
			}
			return f.to(i, original, by)
		}
	}
	if prefix := catalog.Longest(f.prefixes, name); prefix != "" {
		return f.to(slices.Index(f.prefixes, prefix), strings.TrimPrefix(name, prefix), ByPrefix)
	}
	for i, u := range f.upstreams {
		if original, ok := strings.CutPrefix(name, policy.Name(u.Name, "")); ok {
			return f.to(i, original, ByPolicy)
		}
	}
	return f.bare(name)
}

// bare looks for a name that several upstreams have.
func (f *finder) bare(name string) Resolution {
	l := Resolution{By: ByNobody}
	for i, u := range f.upstreams {
		if listed, _ := f.listed(i, name); listed {
			l.Others = append(l.Others, u.Name)
		}
	}
	if len(l.Others) > 1 {
		l.By = BySeveral
	}
	return l
}

func (f *finder) uri(uri string) Resolution {
	for _, caps := range f.capabilities() {
		resources, templates := f.offers(catalog.Resources, caps), f.offers(catalog.Templates, caps)
		i := catalog.OwnerOfURI(resources, templates, uri)
		if i < 0 {
			continue
		}
		by := ByTemplate
		if resources[i].Table.Has(uri) {
			by = ByURI
		}
		return Resolution{Upstream: f.upstreams[i].Name, Original: uri, Exposed: uri, By: by, Listed: true, Known: true}
	}
	if f.complete && len(f.upstreams) == 1 {
		return Resolution{Upstream: f.upstreams[0].Name, Original: uri, Exposed: uri, By: BySole}
	}
	return Resolution{Original: uri, Exposed: uri, By: ByAskingAll}
}

// to is a lead to the i-th upstream.
func (f *finder) to(i int, original string, by Rule) Resolution {
	u := &f.upstreams[i]
	l := Resolution{Upstream: u.Name, Original: original, Exposed: catalog.Exposed(f.prefixes[i], original), By: by}
	l.Listed, l.Known = f.listed(i, original)
	l.Hidden = f.kind == catalog.Tools && !u.allows(original)
	return l
}

// listed reports whether the i-th upstream lists a name, and whether anybody knows.
func (f *finder) listed(i int, name string) (listed, known bool) {
	for k, t := range f.tables {
		if k.upstream == f.upstreams[i].Name && k.kind == f.kind {
			known = true
			listed = listed || t.Has(name)
		}
	}
	return listed, known
}
