package config

import (
	"bytes"
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strconv"
)

// Bounds of a file. They fit a configuration a hundred times as large as usual, but not
// endless nesting or aliases of aliases.
const (
	maxBytes = 1 << 20
	maxNodes = 20_000
	maxDepth = 64
)

var (
	errTooLarge = errors.New("is larger than 1MiB")
	errTooMany  = errors.New("has too many values (aliases count each time they are used)")
	errTooDeep  = errors.New("is nested too deep")
	errNotUTF8  = errors.New("is not UTF-8 text")
)

// A kind is what a node is; kinds are bits, so that a key can take several.
type kind uint8

const (
	null kind = 1 << iota
	boolean
	number
	text
	list
	object
)

// String names a kind in an error line.
func (k kind) String() string {
	switch k {
	case null:
		return "empty"
	case boolean:
		return "true or false"
	case number:
		return "a number"
	case text:
		return "a string"
	case list:
		return "a list"
	default:
		return "a map"
	}
}

// A node is one value of a file, the same for all formats.
type node struct {
	kind    kind
	text    string   // of scalars, as written
	items   []*node  // of lists
	members []member // of objects, in the order of the file
}

type member struct {
	key     string
	value   *node
	written string // the key in the file, if it is another one that means the same
}

// name is the key as it stands in the file.
func (m member) name() string { return cmp.Or(m.written, m.key) }

func (n *node) has(key string) bool { return n.get(key) != nil }

// get returns the value of a key; nil if it is not there, or n is nil.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for _, m := range n.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// set makes value that of key. It goes where an older one was, else to the end.
func (n *node) set(key string, value *node) {
	for i, m := range n.members {
		if m.key == key {
			n.members[i].value = value
			return
		}
	}
	n.members = append(n.members, member{key: key, value: value})
}

// drop removes a key.
func (n *node) drop(key string) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool { return m.key == key })
}

// fields returns the members of an object; nil if n is nil.
func (n *node) fields() []member {
	if n == nil {
		return nil
	}
	return n.members
}

// isA reports whether n is there and of one of kinds.
func (n *node) isA(kinds kind) bool { return n != nil && n.kind&kinds != 0 }

// is reports whether n is the scalar that is written so.
func (n *node) is(text string) bool { return n != nil && n.text == text && n.isA(^(list | object)) }

// all returns the items of a list; nil if n is nil.
func (n *node) all() []*node {
	if n == nil {
		return nil
	}
	return n.items
}

// texts replaces each string in n by what change makes of it.
func (n *node) texts(change func(string) string) {
	if n.kind == text {
		n.text = change(n.text)
	}
	for _, item := range n.items {
		item.texts(change)
	}
	for _, m := range n.members {
		m.value.texts(change)
	}
}

// A budget bounds the tree while it is built.
type budget struct{ nodes int }

// spend counts one node at depth.
func (b *budget) spend(depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	if b.nodes++; b.nodes > maxNodes {
		return errTooMany
	}
	return nil
}

// dropDuplicates keeps the first of members with the same key, at every level,
// and names the others.
func dropDuplicates(n *node, at string, report func(key string)) {
	for i, item := range n.items {
		dropDuplicates(item, index(at, i), report)
	}
	seen := make(map[string]bool, len(n.members))
	unique := n.members[:0:0]
	for _, m := range n.members {
		key := join(at, m.key)
		if seen[m.key] {
			report(key)
			continue
		}
		seen[m.key] = true
		unique = append(unique, m)
		dropDuplicates(m.value, key, report)
	}
	n.members = unique
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// join extends the path of a key. Unusual keys are quoted, so that a path stays
// on one line and its dots mean one thing.
func join(at, key string) string {
	if !plainKey.MatchString(key) {
		key = strconv.Quote(key)
	}
	if at == "" {
		return key
	}
	return at + "." + key
}

func index(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// line is the number of the line that holds the offset, counted from 1.
func line(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), len(data))], []byte("\n"))
}
