package catalog

import (
	"strings"
)

// An Offer is what one upstream lists of a kind, and the prefix of the names in it.
type Offer struct {
	Prefix string
	Table  *Table // nil: it has not listed yet
}

// Owner looks an exposed name up in the offers of all upstreams. A bare name that
// exactly one upstream offers resolves, too: apps and prompts mention those, and so do
// clients that were given it when there was but one. It returns which offer it is in, -1
// for none, and the upstream's own name.
func Owner(offers []Offer, name string) (i int, original string) {
	for i := range offers {
		if original, ok := offers[i].Table.resolve(offers[i].Prefix, name); ok {
			return i, original
		}
	}
	for i := range offers {
		if offers[i].Table == nil {
			return -1, "" // it may offer the bare name, too
		}
	}
	return BareOwner(offers, name), name
}

// BareOwner returns the one offer that is known to have a name of the upstream's own; -1
// if there are none or several.
func BareOwner(offers []Offer, name string) int {
	only := -1
	for i := range offers {
		if offers[i].Table.Has(name) {
			if only >= 0 {
				return -1
			}
			only = i
		}
	}
	return only
}

// Former returns the only upstream's own name for one that a client was given when
// there were several. Any other name is the upstream's own.
func (t *Table) Former(upstream, name string) string {
	if original, ok := t.resolve(upstream+separator, name); ok && !t.names[name] {
		return original
	}
	return name
}

// MayBeFormer reports whether a name may be one that Former knows.
func MayBeFormer(upstream, name string) bool { return strings.HasPrefix(name, upstream+separator) }

// OwnerOfURI returns which upstream lists a URI, or a template as such, or else has a
// template that matches it; -1 for none. The tables are those of all upstreams.
func OwnerOfURI(resources, templates []Offer, uri string) int {
	for _, offers := range [][]Offer{resources, templates} {
		for i := range offers {
			if offers[i].Table.Has(uri) {
				return i
			}
		}
	}
	for i := range templates {
		if templates[i].Table.covers(uri) {
			return i
		}
	}
	return -1
}
