// Package tree parses YAML, JSON and TOML into one ordered tree.
//
// The tree keeps what general decoders lose: the order of members, the case of
// keys, duplicate keys (a mistake), and scalars as they were written (010 is not
// 8, and a version 1.10 given as an argument is not 1.1). Each [Node] has its
// path in the file, so a mistake is reported there even after the node was moved.
//
// Input is bounded (size, depth, number of nodes), so that aliases cannot expand a
// small file into a big tree.
package tree

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// Bounds of a file. They allow a configuration a hundred times as large as usual, but no
// endless nesting and no aliases of aliases.
const (
	MaxBytes = 1 << 20
	maxNodes = 20_000
	maxDepth = 64
)

var (
	errTooLarge = errors.New("is larger than 1MiB")
	errTooMany  = errors.New("has too many values (aliases count each time they are used)")
	errTooDeep  = errors.New("is nested too deep")
	errNotUTF8  = errors.New("is not UTF-8 text")
)

// A Kind is the type of a node. Kinds are bits, so that a key can accept several.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = 1 << iota
	Boolean
	Number
	Text
	List
	Object
)

// String names a kind in an error line.
func (k Kind) String() string {
	switch k {
	case Null:
		return "empty"
	case Boolean:
		return "true or false"
	case Number:
		return "a number"
	case Text:
		return "a string"
	case List:
		return "a list"
	default:
		return "a map"
	}
}

// A Node is one value of a file of any format. Get, Has, Is, IsA, Each, All and Empty accept a nil
// Node, which is a missing one.
type Node struct {
	Kind    Kind
	Text    string   // of scalars, as written
	Items   []*Node  // of lists
	Members []Member // of objects, in the order of the file

	At      string // path in the file, such as upstreams.docs.args[0]
	Foreign bool   // another program's entry: it may have keys that mean nothing here
}

// A Member is a key of an object and its value.
type Member struct {
	Key   string
	Value *Node
}

// Get returns the value of a key; nil if there is none.
func (n *Node) Get(key string) *Node {
	if n != nil {
		for _, m := range n.Members {
			if m.Key == key {
				return m.Value
			}
		}
	}
	return nil
}

// Has reports whether an object has a key.
func (n *Node) Has(key string) bool { return n.Get(key) != nil }

// Set replaces the value of a key, or adds the key at the end.
func (n *Node) Set(key string, value *Node) {
	for i, m := range n.Members {
		if m.Key == key {
			n.Members[i].Value = value
			return
		}
	}
	n.Members = append(n.Members, Member{Key: key, Value: value})
}

// Take removes a key and returns its value; nil if there was none.
func (n *Node) Take(key string) *Node {
	value := n.Get(key)
	if value != nil {
		n.Members = slices.DeleteFunc(n.Members, func(m Member) bool { return m.Key == key })
	}
	return value
}

// IsA reports whether n is not nil and of one of kinds.
func (n *Node) IsA(kinds Kind) bool { return n != nil && n.Kind&kinds != 0 }

// Is reports whether n is a scalar that is written as text.
func (n *Node) Is(text string) bool { return n != nil && n.Text == text && !n.IsA(List|Object) }

// Each returns the members of an object; nil if n is nil.
func (n *Node) Each() []Member {
	if n == nil {
		return nil
	}
	return n.Members
}

// All returns the items of a list; nil if n is nil.
func (n *Node) All() []*Node {
	if n == nil {
		return nil
	}
	return n.Items
}

// Empty reports whether n is null, or a list or an object without elements.
func (n *Node) Empty() bool {
	return n.IsA(Null|List|Object) && len(n.Items)+len(n.Members) == 0
}

// Walk calls visit for n and all nodes below it.
func (n *Node) Walk(visit func(*Node)) {
	visit(n)
	for _, item := range n.Items {
		item.Walk(visit)
	}
	for _, m := range n.Members {
		m.Value.Walk(visit)
	}
}

// Describe returns a node for an error line, as written in the file. Variables are not expanded, so
// it shows no secret.
func (n *Node) Describe() string {
	switch n.Kind {
	case Text:
		return Quote(n.Text)
	case Number, Boolean:
		return Printable(n.Text)
	default:
		return n.Kind.String()
	}
}

// Parse reads one file into a tree. format is yaml, json or toml. An empty file is null.
// The first of members with the same key is kept; the paths of the others are duplicates.
func Parse(format string, data []byte) (root *Node, duplicates []string, err error) {
	if len(data) > MaxBytes {
		return nil, nil, errTooLarge
	}
	if !utf8.Valid(data) {
		return nil, nil, errNotUTF8
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the byte order mark that editors on Windows write
	switch format {
	case "json":
		root, err = parseJSON(data)
	case "toml":
		root, err = parseTOML(data)
	default:
		root, err = parseYAML(data)
	}
	if err != nil {
		return nil, nil, err
	}
	root.place("", func(key string) { duplicates = append(duplicates, key) })
	return root, duplicates, nil
}

// place sets the paths of all nodes, and removes duplicate keys.
func (n *Node) place(at string, duplicate func(key string)) {
	n.At = at
	for i, item := range n.Items {
		item.place(Index(at, i), duplicate)
	}
	seen := make(map[string]bool, len(n.Members))
	n.Members = slices.DeleteFunc(n.Members, func(m Member) bool {
		key := Join(at, m.Key)
		if seen[m.Key] {
			duplicate(key)
			return true
		}
		seen[m.Key] = true
		m.Value.place(key, duplicate)
		return false
	})
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

var plainKey = lazyregexp.New(`^[A-Za-z0-9_-]+$`)

// Join extends a path by a key. Unusual keys are quoted, so that a path is one line and its dots
// only separate keys.
func Join(at, key string) string {
	if !plainKey.MatchString(key) {
		key = strconv.Quote(key)
	}
	if at == "" {
		return key
	}
	return at + "." + key
}

// Index extends a path by the index of an item.
func Index(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// line returns the number of the line at an offset, counted from 1.
func line(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), len(data))], []byte("\n"))
}

// A Problem is one mistake in a configuration.
type Problem struct {
	Source  string `json:"source,omitzero"` // a file, environment variable or flag; may be empty
	Key     string `json:"key,omitzero"`    // path of the key in the file, such as upstreams.docs.url; may be empty
	Text    string `json:"text"`            // what is wrong
	Warning bool   `json:"-"`               // only a warning; never set in the error of config.Load
}

// Error returns one line, "source: key: text" without the empty ones.
func (p Problem) Error() string {
	var parts []string
	for _, s := range []string{p.Source, p.Key, p.Text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Problems are all mistakes in a configuration.
type Problems []Problem

// Error returns a line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is and errors.As find each problem.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// Quote quotes a text for an error line, and shortens it to 64 characters.
func Quote(s string) string {
	const most = 64
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strconv.Quote(s)
}

// Printable is Quote without the quotes.
func Printable(s string) string {
	q := Quote(s)
	return q[1 : len(q)-1]
}

// Reserved cannot name an upstream: its path /mcp/server-card has the server card.
const Reserved = "server-card"

// MaxName is the maximal length of the name of an upstream or a link, in bytes.
const MaxName = 32

// IsName reports whether s can name an upstream or a link.
func IsName(s string) bool {
	return len(s) <= MaxName && plainKey.MatchString(s) && !strings.Contains(s, "__")
}
