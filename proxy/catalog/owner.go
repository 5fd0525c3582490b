package catalog

import (
	"slices"
	"strings"
)

// An Offer is what one upstream lists of a kind, and the prefix of the names in it.
type Offer struct {
	Prefix string
	Table  *Table // nil: it has not listed yet
}

// Owner looks an exposed name up in the offers of all upstreams, of those for which may is
// true: it gets the index of an offer and the upstream's own name; nil is true for all.
// Owner returns the index of the offer, -1 for none, and the upstream's own name. A bare
// name that exactly one upstream offers is found, too: apps and prompts mention bare names,
// and clients know them from when there was one upstream. What begins with a prefix is of the
// upstream with that prefix alone: no other can take its calls with a tool of such a name.
func Owner(offers []Offer, name string, may func(i int, original string) bool) (i int, original string) {
	taken := prefixed(offers, name)
	for i := range offers {
		if taken && offers[i].Prefix == "" {
			continue
		}
		if original, ok := offers[i].Table.resolve(offers[i].Prefix, name); ok && (may == nil || may(i, original)) {
			return i, original
		}
	}
	for i := range offers {
		if offers[i].Table == nil {
			return -1, "" // it may offer the bare name, too
		}
	}
	return BareOwner(offers, name, may), name
}

// begins reports whether a name begins with the prefix of an offer.
func (o *Offer) begins(name string) bool { return o.Prefix != "" && strings.HasPrefix(name, o.Prefix) }

// prefixed reports whether a name begins with the prefix of any.
func prefixed(offers []Offer, name string) bool {
	return slices.ContainsFunc(offers, func(o Offer) bool { return o.begins(name) })
}

// BareOwner returns the index of the one offer that has an upstream's own name; -1 if none
// or several have it. May is as for [Owner].
func BareOwner(offers []Offer, name string, may func(i int, original string) bool) int {
	only := -1
	taken := prefixed(offers, name)
	for i := range offers {
		if taken && !offers[i].begins(name) {
			continue
		}
		if offers[i].Table.Has(name) && (may == nil || may(i, name)) {
			if only >= 0 {
				return -1
			}
			only = i
		}
	}
	return only
}

// Former returns the upstream's own name for one that a client knows from when there were
// several upstreams. Any other name is the upstream's own already.
func (t *Table) Former(upstream, name string) string {
	if original, ok := t.resolve(upstream+separator, name); ok && !t.Has(name) {
		return original
	}
	return name
}

// MayBeFormer reports whether it is worth to ask Former for a name.
func MayBeFormer(upstream, name string) bool { return strings.HasPrefix(name, upstream+separator) }

// OwnerOfURI returns the index of the upstream that lists a resource or a template with
// this very URI, else of one with a template that matches it; -1 for none.
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
