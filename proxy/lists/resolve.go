package lists

import (
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A Named is an upstream and the prefix of its exposed names.
type Named struct {
	Name   string
	Prefix string                 // with the separator; "" for bare names
	Allows func(tool string) bool // whether clients may see a tool
}

// Resolve returns the current target of a name of a kind, or of a URI, by what sessions remember and
// the catalog knows. Templates count as resources. Complete says that there are no other upstreams.
func Resolve(m *Memory, c *Catalog, upstreams []Named, complete bool, k catalog.Kind, name string) catalog.Resolution {
	f := finder{upstreams, complete, m.all(), k}
	for _, u := range upstreams {
		for key, e := range c.All(u.Name) {
			for k, l := range e.Lists {
				at := tableKey{u.Name, catalog.Kind(k), key.Caps}
				if key.Era == mcp.Legacy {
					at.caps = catalog.Digest{}
				}
				if l != nil && f.tables[at] == nil {
					put(&f.tables, at, l.Table)
				}
			}
		}
	}
	var l catalog.Resolution
	if k.IsNamed() {
		if l = f.named(name); !l.Listed {
			l.Names = f.names()
		}
	} else {
		l = f.uri(name)
	}
	l.Complete = complete
	return l
}

// A finder finds names in the tables that sessions remember.
type finder struct {
	upstreams []Named
	complete  bool // there are no others
	tables    map[tableKey]*catalog.Table
	kind      catalog.Kind
}

// offers returns the lists of a kind of all upstreams, for clients with certain capabilities.
func (f *finder) offers(k catalog.Kind, caps catalog.Digest) (all []catalog.Offer) {
	for _, u := range f.upstreams {
		all = append(all, catalog.Offer{Prefix: u.Prefix, Table: f.tables[tableKey{u.Name, k, caps}]})
	}
	return all
}

// capabilities returns the capabilities for which there are lists, those of the legacy era first.
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

// names returns the exposed names of everything that is known to be listed.
func (f *finder) names() (all []string) {
	for _, u := range f.upstreams {
		for k, t := range f.tables {
			if k.upstream != u.Name || k.kind != f.kind {
				continue
			}
			for _, e := range t.Entries {
				if f.kind != catalog.Tools || u.Allows(e.Name) {
					all = append(all, catalog.Exposed(u.Prefix, e.Name))
				}
			}
		}
	}
	return all
}

func (f *finder) named(name string) catalog.Resolution {
	if f.complete && len(f.upstreams) == 1 && f.upstreams[0].Prefix == "" {
		for _, caps := range f.capabilities() {
			if former := f.offers(f.kind, caps)[0].Table.Former(f.upstreams[0].Name, name); former != name {
				return f.to(0, former, catalog.BySole)
			}
		}
		return f.to(0, name, catalog.BySole)
	}
	for _, caps := range f.capabilities() {
		if i, original := catalog.Owner(f.offers(f.kind, caps), name, nil); i >= 0 {
			if original != name {
				return f.to(i, original, catalog.ByPrefix)
			}
			if !f.unsure(i, name) {
				return f.to(i, original, catalog.ByBareName)
			}
		}
	}
	var prefixes []string
	for _, u := range f.upstreams {
		prefixes = append(prefixes, u.Prefix)
	}
	if prefix := catalog.Longest(prefixes, name); prefix != "" {
		return f.to(slices.Index(prefixes, prefix), strings.TrimPrefix(name, prefix), catalog.ByPrefix)
	}
	for i, u := range f.upstreams {
		if original, ok := strings.CutPrefix(name, policy.Name(u.Name, "")); ok {
			return f.to(i, original, catalog.ByPolicy)
		}
	}
	return f.bare(name)
}

// unsure reports whether a name that the i-th upstream lists could also be one with the prefix of an upstream that is not
// known yet. Sessions leave such a name alone.
func (f *finder) unsure(i int, name string) bool {
	return !f.complete && catalog.MayHavePrefix(name, f.upstreams[i].Prefix)
}

// bare finds a name without a prefix while some upstream has no list: a call of it goes to the only
// upstream that has one with the name, once the others have been asked.
func (f *finder) bare(name string) catalog.Resolution {
	var having []int
	for i := range f.upstreams {
		if listed, _ := f.listed(i, name); listed && !f.unsure(i, name) {
			having = append(having, i)
		}
	}
	switch len(having) {
	case 0:
		return catalog.Resolution{By: catalog.ByNobody}
	case 1:
		return f.to(having[0], name, catalog.ByBareName)
	}
	l := catalog.Resolution{By: catalog.BySeveral}
	for _, i := range having {
		l.Others = append(l.Others, f.upstreams[i].Name)
	}
	return l
}

func (f *finder) uri(uri string) catalog.Resolution {
	for _, caps := range f.capabilities() {
		resources, templates := f.offers(catalog.Resources, caps), f.offers(catalog.Templates, caps)
		i := catalog.OwnerOfURI(resources, templates, uri)
		if i < 0 {
			continue
		}
		by := catalog.ByTemplate
		if resources[i].Table.Has(uri) {
			by = catalog.ByURI
		}
		return catalog.Resolution{Upstream: f.upstreams[i].Name, Original: uri, Exposed: uri, By: by, Listed: true, Known: true}
	}
	if f.complete && len(f.upstreams) == 1 {
		return catalog.Resolution{Upstream: f.upstreams[0].Name, Original: uri, Exposed: uri, By: catalog.BySole}
	}
	return catalog.Resolution{Original: uri, Exposed: uri, By: catalog.ByAskingAll}
}

// to returns the resolution to the i-th upstream.
func (f *finder) to(i int, original string, by catalog.Rule) catalog.Resolution {
	u := &f.upstreams[i]
	l := catalog.Resolution{Upstream: u.Name, Original: original, Exposed: catalog.Exposed(u.Prefix, original), By: by}
	l.Listed, l.Known = f.listed(i, original)
	l.Hidden = f.kind == catalog.Tools && !u.Allows(original)
	return l
}

// listed reports whether the i-th upstream lists a name, and whether its list is known.
func (f *finder) listed(i int, name string) (listed, known bool) {
	for k, t := range f.tables {
		if k.upstream == f.upstreams[i].Name && k.kind == f.kind {
			known = true
			listed = listed || t.Has(name)
		}
	}
	return listed, known
}
