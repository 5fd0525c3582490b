package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// A reader collects what is found while one file is read.
type reader struct {
	source   string // the file's name in error lines
	dir      string // what its relative paths count from
	problems Problems
	warnings []string
	ignored  map[string]bool // unknown keys of other programs' servers, each warned about once
	inputs   map[string]input
	files    []string // that were read, absolute
	keys     *keys    // set: nothing is read, and all keys are noted
}

// readFile reads a file that values come from.
func (r *reader) readFile(name string) ([]byte, error) {
	if abs, err := filepath.Abs(name); err == nil && !slices.Contains(r.files, abs) {
		r.files = append(r.files, abs)
	}
	return readFile(name)
}

func (r *reader) fail(source, key, format string, args ...any) {
	r.problems = append(r.problems, Problem{source, key, fmt.Sprintf(format, args...)})
}

func (r *reader) warn(source, key, format string, args ...any) {
	p := Problem{source, key, fmt.Sprintf(format, args...)}
	r.warnings = append(r.warnings, p.Error())
}

// A loader is the state of one Load.
type loader struct {
	reader
	cfg     Config // what the file says, but for upstreams and what viper layers
	entries []entry
}

// An entry is an upstream and what is known of it only while the file is read.
type entry struct {
	Upstream
	foreign bool // from mcpServers: its name may have to be made fit
}

// A value is one node and its place in the file.
type value struct {
	*reader
	node *node
	key  string
}

func (v value) wrong(format string, args ...any) { v.fail(v.source, v.key, format, args...) }

// fields maps the keys of an object to what reads their values.
type fields map[string]func(value)

// into stores what read gives.
func into[T any](p *T, read func(value) (T, bool)) func(value) {
	return func(v value) {
		if t, ok := read(v); ok {
			*p = t
		}
	}
}

// each calls f with every member, in the order of the file. Null is an empty
// object: in YAML that is what commenting out all members leaves.
func (v value) each(f func(key string, v value)) {
	if v.keys != nil {
		f(anyName, v.below(join(v.key, anyName)))
		return
	}
	switch v.node.kind {
	case null:
	case object:
		for _, m := range v.node.members {
			f(m.key, value{v.reader, m.value, join(v.key, m.name())})
		}
	default:
		v.wrong("must be a map, not %s", v.node.kind)
	}
}

// every calls f with each item of a list. Null is an empty list.
func (v value) every(f func(value)) {
	if v.keys != nil {
		f(v.below(index(v.key, 0)))
		return
	}
	if v.node.kind&(null|list) == 0 {
		v.wrong("must be a list, not %s", v.node.kind)
		return
	}
	for i, item := range v.node.items {
		f(value{v.reader, item, index(v.key, i)})
	}
}

// needs checks that keys are there. What is no map has been named already.
func (v value) needs(keys ...string) {
	for _, key := range keys {
		if v.node.kind&(null|object) != 0 && !v.node.has(key) {
			v.wrong("needs %s", key)
		}
	}
}

// pick reads one member alone.
func (v value) pick(key string, read func(value)) {
	for _, m := range v.node.members {
		if m.key == key {
			read(value{v.reader, m.value, join(v.key, m.name())})
		}
	}
}

// object reads the members that fields knows; unknown gets the others.
func (v value) object(known fields, unknown func(key string, v value)) {
	if v.keys != nil {
		for _, key := range slices.Sorted(maps.Keys(known)) {
			known[key](v.below(join(v.key, key)))
		}
		return
	}
	v.each(func(key string, v value) {
		if read, ok := known[key]; ok {
			read(v)
			return
		}
		unknown(key, v)
	})
}

// strict reads the members that fields knows; others are mistakes.
func (v value) strict(known fields) {
	v.object(known, func(key string, v value) {
		if !v.misspelt(key, known) {
			v.wrong("unknown key%s", DidYouMean(key, known.keys()))
		}
	})
}

func (f fields) keys() []string { return slices.Collect(maps.Keys(f)) }

// misspelt refuses a key that differs from a known one only in case.
func (v value) misspelt(key string, known fields) bool {
	for k := range known {
		if strings.EqualFold(k, key) {
			v.wrong("unknown key; it is written %s", k)
			return true
		}
	}
	return false
}

// A scalar says what a key takes and how its text is read.
type scalar[T any] struct {
	what   string   // completes "must be"
	words  []string // that it can be; nil: others
	kinds  kind     // besides text made of variables
	parse  func(string) (T, bool)
	secret bool // its text may be one: error lines do not repeat it
}

func (s scalar[T]) read(v value) (t T, ok bool) {
	if v.keys != nil {
		v.keys.note(v.key, leaf{s.what, s.words, s.kinds})
		return t, false
	}
	n := v.node
	variable := n.kind == text && varies(n.text)
	if n.kind&s.kinds == 0 && !variable {
		s.refuse(v)
		return t, false
	}
	in := n.text
	if n.kind == text {
		expanded, wrong := v.expand(in)
		for _, w := range wrong {
			v.wrong("%s", w)
		}
		if len(wrong) > 0 {
			return t, false
		}
		in = expanded
	}
	if t, ok = s.parse(in); !ok {
		s.refuse(v)
	}
	return t, ok
}

func (s scalar[T]) refuse(v value) {
	if s.secret && v.node.kind == text {
		v.wrong("must be %s", s.what)
		return
	}
	v.wrong("must be %s, not %s", s.what, v.node.describe())
}

// list reads a list of such scalars.
func (s scalar[T]) list(v value) ([]T, bool) {
	if v.keys != nil {
		s.read(v.below(index(v.key, 0)))
		return nil, false
	}
	switch v.node.kind {
	case null:
		return nil, true
	case list:
	default:
		v.wrong("must be a list, not %s", v.node.kind)
		return nil, false
	}
	all := make([]T, 0, len(v.node.items))
	for i, item := range v.node.items {
		if t, ok := s.read(value{v.reader, item, index(v.key, i)}); ok {
			all = append(all, t)
		}
	}
	return all, true
}

// some is list for one that must not be empty.
func (s scalar[T]) some(v value) ([]T, bool) {
	all, ok := s.list(v)
	if ok && len(v.node.items) == 0 {
		v.wrong("must not be empty")
		return nil, false
	}
	return all, ok
}

// mapped reads an object whose values are such scalars and whose keys pass
// valid; what names the keys in error lines.
func (s scalar[T]) mapped(what string, valid func(string) bool) func(value) (map[string]T, bool) {
	return func(v value) (map[string]T, bool) {
		all := make(map[string]T)
		v.each(func(key string, v value) {
			if !valid(key) {
				v.wrong("is not %s", what)
				return
			}
			if t, ok := s.read(v); ok {
				all[key] = t
			}
		})
		return all, true
	}
}

// describe names a node in an error line: as it stands in the file, before
// variables, so that no secret is shown.
func (n *node) describe() string {
	switch n.kind {
	case text:
		return quote(n.text)
	case number, boolean:
		return printable(n.text)
	default:
		return n.kind.String()
	}
}
