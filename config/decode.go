package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/config/forms"
	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// A field is a key, as the field of a struct declares it.
type field struct {
	key   string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
	rule  *rule // for its scalars; nil if it has only structs
	keys  *rule // for the keys of a map with free keys
}

var fieldCache sync.Map // reflect.Type to []field

// fieldsOf returns the keys of a struct, with those of embedded structs.
func fieldsOf(t reflect.Type) []field {
	if all, ok := fieldCache.Load(t); ok {
		return all.([]field)
	}
	var all []field
	for _, sf := range reflect.VisibleFields(t) {
		key, ok := sf.Tag.Lookup("key")
		if !ok {
			continue
		}
		f := field{key: key, index: sf.Index, typ: sf.Type, tag: sf.Tag}
		if scalar := scalarOf(sf.Type); scalar.Kind() != reflect.Struct || f.has("is") {
			r := ruleOf(scalar, sf.Tag)
			f.rule = &r
		}
		if f.has("keys") {
			r := rules[sf.Tag.Get("keys")]
			f.keys = &r
		}
		all = append(all, f)
	}
	fieldCache.Store(t, all)
	return all
}

// scalarOf returns the type of the values in a pointer, a list or a map.
func scalarOf(t reflect.Type) reflect.Type {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind()) {
		t = t.Elem()
	}
	return t
}

// keysOf returns the names of the keys of a struct.
func keysOf(t reflect.Type) (keys []string) {
	for _, f := range fieldsOf(t) {
		keys = append(keys, f.key)
	}
	return keys
}

func (f field) has(tag string) bool { return f.tag.Get(tag) != "" }

// named reports whether structs of a type are members of a map by name: they have a field Name without a key.
func named(t reflect.Type) bool {
	sf, ok := t.FieldByName("Name")
	return ok && sf.Tag.Get("key") == ""
}

// setDefaults sets the fields of a struct to the defaults in their tags, at all depths.
func setDefaults(to reflect.Value) {
	for _, f := range fieldsOf(to.Type()) {
		at := to.FieldByIndex(f.index)
		if at.Kind() == reflect.Struct {
			setDefaults(at)
		}
		if standard, ok := f.tag.Lookup("default"); ok {
			at.Set(reflect.ValueOf(f.standard(standard)))
		}
	}
}

func (f field) standard(text string) any {
	if f.typ.Kind() == reflect.Slice {
		return strings.Split(text, ",")
	}
	value, ok := f.rule.parse(text)
	if !ok {
		panic("config: default of " + f.key)
	}
	return value
}

// A value is a node of a file, and the reader that collects its mistakes.
type value struct {
	*reader
	node *tree.Node
}

// get returns the member with a key, which must be there.
func (v value) get(key string) value { return value{v.reader, v.node.Get(key)} }

func (v value) wrong(format string, args ...any) { v.fail(v.source, v.node.At, format, args...) }

func (v value) caution(format string, args ...any) { v.warn(v.source, v.node.At, format, args...) }

// misplaced refuses a key that means nothing beside the others, if it is there. In an entry of another
// program it warns.
func (v value) misplaced(key, format string, args ...any) {
	at := v.node.Get(key)
	switch {
	case at == nil:
	case v.node.Foreign:
		value{v.reader, at}.caution(format, args...)
	default:
		value{v.reader, at}.wrong(format, args...)
	}
}

// isMap reports whether a value is an object, or null: in YAML a map is null if all its members are
// commented out.
func (v value) isMap() bool { return v.node.IsA(tree.Null | tree.Object) }

// decode reads a value into a field, and reports mistakes to the reader.
func (v value) decode(to reflect.Value, f field) {
	t := to.Type()
	switch {
	case f.has("empty") && v.node.Empty():
		v.wrong("is empty: %s", f.tag.Get("empty"))
	case f.has("or") && v.node.Kind == tree.Text:
		list := reflect.MakeSlice(t, 1, 1)
		v.scalar(list.Index(0), *f.rule)
		to.Set(list)
	case t.Kind() == reflect.Pointer:
		to.Set(reflect.New(t.Elem()))
		v.decode(to.Elem(), f)
	case t.Kind() == reflect.Map:
		v.object(to, f)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Struct:
		v.list(to, f)
	case t.Kind() == reflect.Slice && named(t.Elem()):
		v.members(to)
	case t.Kind() == reflect.Slice:
		v.items(to, f)
	case t.Kind() != reflect.Struct:
		v.scalar(to, *f.rule)
	case f.rule != nil && v.node.Kind&f.rule.kinds != 0:
		if word, ok := v.text(*f.rule); ok {
			to.Addr().Interface().(interface{ set(string) }).set(word.(string))
		}
	default:
		v.structure(to)
	}
}

// structure reads the keys of a struct.
func (v value) structure(to reflect.Value) {
	if !v.isMap() {
		v.wrong("must be a map, not %s", v.node.Kind)
		return
	}
	var names []string
	known := make(map[string]field)
	for _, f := range fieldsOf(to.Type()) {
		if v.node.Foreign || !f.has("foreign") {
			known[f.key] = f
			names = append(names, f.key)
		}
	}
	for _, m := range v.node.Members {
		if f, ok := known[m.Key]; ok {
			value{v.reader, m.Value}.decode(to.FieldByIndex(f.index), f)
		} else {
			value{v.reader, m.Value}.unknown(v.node, m.Key, names)
		}
	}
	for _, f := range fieldsOf(to.Type()) {
		if f.has("needed") && !v.node.Has(f.key) {
			v.wrong("needs %s", f.key)
		}
	}
	if c, ok := to.Addr().Interface().(interface{ check(v value) }); ok {
		c.check(v)
	}
}

// unknown refuses an unknown key of an object. In an entry of another program it warns, once for
// each key, unless the key may be a misspelt one that restricts the server, or without which there is none.
func (v value) unknown(of *tree.Node, key string, known []string) {
	folded := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
	guarded := Nearest(key, forms.Restricting)
	switch {
	case key == "replay":
		v.wrong(noReplay)
	case of.Foreign && guarded != "":
		v.wrong("unknown key; did you mean %s?", guarded)
	case of.Foreign && isSlip(of, key, known):
		v.wrong("unknown key%s", DidYouMean(key, known))
	case of.Foreign && v.ignored[key]:
	case of.Foreign:
		v.ignored[key] = true
		if slices.Contains(forms.Own, key) {
			known = nil
		}
		v.caution("unknown key, ignored here and in all entries%s", DidYouMean(key, known))
	case folded >= 0:
		v.wrong("unknown key; it is written %s", known[folded])
	default:
		v.wrong("unknown key%s", DidYouMean(key, known))
	}
}

// members reads a map of structs by name, in the order of the file.
func (v value) members(to reflect.Value) {
	if !v.isMap() {
		v.wrong("must be a map, not %s", v.node.Kind)
	}
	for _, m := range v.node.Members {
		item := value{v.reader, m.Value}
		if !tree.IsName(m.Key) {
			item.wrong("is not %s", nameRule)
		}
		item.add(to).FieldByName("Name").SetString(m.Key)
		item.structure(to.Index(to.Len() - 1))
	}
}

// items reads a list of structs. With a rule an entry may also be a word.
func (v value) items(to reflect.Value, f field) {
	if !v.node.IsA(tree.Null | tree.List) {
		v.wrong("must be a list, not %s", v.node.Kind)
	}
	for _, item := range v.node.Items {
		item := value{v.reader, item}
		item.decode(item.add(to), f)
	}
}

// add appends a struct with its defaults and its path, and returns it.
func (v value) add(to reflect.Value) reflect.Value {
	to.Set(reflect.Append(to, reflect.Zero(to.Type().Elem())))
	item := to.Index(to.Len() - 1)
	setDefaults(item)
	item.FieldByName("Key").SetString(v.node.At)
	return item
}

// list reads a list of scalars.
func (v value) list(to reflect.Value, f field) {
	if !v.node.IsA(tree.Null | tree.List) {
		v.wrong("must be a list, not %s", v.node.Kind)
		return
	}
	if f.has("min") && len(v.node.Items) == 0 {
		v.wrong("must not be empty")
		return
	}
	if v.node.Kind == tree.Null {
		to.SetZero()
		return
	}
	all := reflect.MakeSlice(to.Type(), 0, len(v.node.Items))
	for _, item := range v.node.Items {
		one := reflect.New(to.Type().Elem()).Elem()
		if (value{v.reader, item}).scalar(one, *f.rule) {
			all = reflect.Append(all, one)
		}
	}
	to.Set(all)
}

// object reads a map with free keys, which the rule of the field checks.
func (v value) object(to reflect.Value, f field) {
	if !v.isMap() {
		v.wrong("must be a map, not %s", v.node.Kind)
		return
	}
	all := reflect.MakeMap(to.Type())
	for _, m := range v.node.Members {
		item := value{v.reader, m.Value}
		if _, ok := f.keys.parse(m.Key); !ok {
			item.wrong("is not %s", f.keys.what)
			continue
		}
		if why := whySetByUs(m.Key); why != "" && f.tag.Get("keys") == "headerName" {
			item.wrong("%s", why)
			continue
		}
		problems := len(v.problems)
		one := reflect.New(to.Type().Elem()).Elem()
		if item.decode(one, f); len(v.problems) == problems {
			all.SetMapIndex(reflect.ValueOf(m.Key), one)
		}
	}
	to.Set(all)
	if f.tag.Get("keys") == "headerName" {
		v.duplicateHeaders(all.Interface().(map[string]string))
	}
}

// duplicateHeaders refuses names of headers that differ only in case: a request can have only one
// of them.
func (v value) duplicateHeaders(all map[string]string) {
	seen := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		lower := strings.ToLower(name)
		if first, ok := seen[lower]; ok {
			v.get(name).wrong("is the same header as %s", first)
		}
		seen[lower] = name
	}
}

// scalar reads one scalar.
func (v value) scalar(to reflect.Value, r rule) bool {
	typed, ok := v.text(r)
	if !ok {
		return false
	}
	if s, isText := typed.(string); isText && r.path {
		typed = v.resolve(s)
	}
	to.Set(reflect.ValueOf(typed))
	return true
}

// text returns the value that a rule reads from a scalar. A string with variables is allowed for every
// kind.
func (v value) text(r rule) (typed any, ok bool) {
	n := v.node
	if n.Kind&r.kinds == 0 && !(n.Kind == tree.Text && varies(n.Text)) {
		v.refuse(r)
		return nil, false
	}
	in := n.Text
	if n.Kind == tree.Text {
		expanded, wrong := v.expand(in)
		for _, w := range wrong {
			v.wrong("%s", w)
		}
		if len(wrong) > 0 {
			return nil, false
		}
		in = expanded
	}
	if typed, ok = r.parse(in); !ok {
		v.refuse(r)
	}
	return typed, ok
}

func (v value) refuse(r rule) {
	if r.secret && v.node.Kind == tree.Text {
		v.wrong("must be %s", r.what)
		return
	}
	v.wrong("must be %s, not %s", r.what, v.node.Describe())
}

// noReplay is the mistake for the key replay, which upstreams once had.
const noReplay = "is a command now: write command: mcp-proxy, args: [replay, FILE]"
