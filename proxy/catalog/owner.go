package catalog

import (
	"slices"
	"strings"
)

// An Offer is one list of one upstream, and the prefix of its names.
type Offer struct {
	Prefix string
	Table  *Table // nil: not listed yet
}

// Owner finds an exposed name in the offers of all upstreams. It returns the index of the offer, -1
// for none, and the upstream's own name. It skips offers for which may returns false; may gets the
// index of an offer and the upstream's own name, and nil allows all. Owner also finds a bare name
// that exactly one upstream offers, because apps and prompts mention bare names, and clients may
// know them from when there was one upstream. A name that begins with a prefix belongs only to the
// upstream with that prefix, so that no other upstream can take its calls by a tool with such a
// name.
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

// prefixed reports whether a name begins with the prefix of any offer.
func prefixed(offers []Offer, name string) bool {
	return slices.ContainsFunc(offers, func(o Offer) bool { return o.begins(name) })
}

// BareOwner returns the index of the only offer that lists a bare name; -1 if none or several do.
// may is as in [Owner].
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

// Former returns the upstream's own name for a name that a client knows from when there were
// several upstreams. It returns other names unchanged.
func (t *Table) Former(upstream, name string) string {
	if original, ok := t.resolve(upstream+separator, name); ok && !t.Has(name) {
		return original
	}
	return name
}

// MayBeFormer reports whether Former could change the name.
func MayBeFormer(upstream, name string) bool { return strings.HasPrefix(name, upstream+separator) }

// OwnerOfURI returns the index of the upstream that lists a resource or a template with exactly
// this URI, else of one with a matching template; -1 for none.
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
