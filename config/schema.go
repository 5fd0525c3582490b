package config

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// anyName stands for the names that a map may have, where only keys are noted.
const anyName = "NAME"

// keys are all keys that a file may have, with what they take: what the readers of files
// would read.
type keys struct{ root shape }

// A shape is what may stand at one place of a file.
type shape struct {
	takes   []leaf            // a scalar
	members map[string]*shape // or a map with these keys; anyName: with any
	items   *shape            // or a list
}

// A leaf is one kind of scalar.
type leaf struct {
	what  string // completes "must be"
	words []string
	kinds kind
}

// step is the next part of a path: the name of a member, or an item.
var step = regexp.MustCompile(`^\.?(\[0\]|"?[$A-Za-z]+"?)`)

// note adds what the key at a path takes.
func (k *keys) note(path string, l leaf) {
	s := &k.root
	for path != "" {
		m := step.FindStringSubmatch(path)
		path = path[len(m[0]):]
		s = s.below(strings.Trim(m[1], `"`))
	}
	s.takes = append(s.takes, l)
}

func (s *shape) below(name string) *shape {
	if name == "[0]" {
		if s.items == nil {
			s.items = new(shape)
		}
		return s.items
	}
	if s.members == nil {
		s.members = make(map[string]*shape)
	}
	if s.members[name] == nil {
		s.members[name] = new(shape)
	}
	return s.members[name]
}

// below is the value of a key of v, or of an item, where only keys are noted.
func (v value) below(key string) value { return value{v.reader, &node{kind: object}, key} }

// allKeys runs the readers of files over none.
func allKeys() *keys {
	k := new(keys)
	l := &loader{reader: reader{keys: k}}
	value{&l.reader, &node{kind: object}, ""}.strict(l.fields(make(map[string]any)))
	return k
}

// Schema returns the JSON Schema of a configuration file, for editors. It is as strict as
// [Load] about keys, and less so about values.
func Schema() []byte {
	schema := allKeys().root.schema("")
	schema.Schema, schema.Title = "https://json-schema.org/draft/2020-12/schema", "mcp-proxy"
	schema.Properties["$schema"] = &jsonschema.Schema{Type: "string"}
	schema.Properties["mcpServers"] = &jsonschema.Schema{Type: "object", Description: "servers as other programs write them"}
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic(err) // it is of our own making
	}
	return append(text, '\n')
}

// schema is what may stand at a path.
func (s *shape) schema(path string) *jsonschema.Schema {
	var all []*jsonschema.Schema
	for _, l := range s.takes {
		all = append(all, l.schemas()...)
	}
	if s.items != nil {
		all = append(all, &jsonschema.Schema{Types: []string{"array", "null"}, Items: s.items.schema(path + "[]")})
	}
	if s.members != nil {
		all = append(all, s.object(path))
	}
	one := &jsonschema.Schema{AnyOf: all}
	if len(all) == 1 {
		one = all[0]
	}
	one.Description = described(path)
	return one
}

// object is that of a map. In YAML an empty one is null.
func (s *shape) object(path string) *jsonschema.Schema {
	o := &jsonschema.Schema{Types: []string{"object", "null"}}
	if path == "" {
		o = &jsonschema.Schema{Type: "object"}
	}
	if any := s.members[anyName]; any != nil {
		o.AdditionalProperties = any.schema(join(path, anyName))
		return o
	}
	o.Properties = make(map[string]*jsonschema.Schema)
	o.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	for name, m := range s.members {
		o.Properties[name] = m.schema(join(path, name))
	}
	return o
}

// schemas are those of a scalar. Any may be text with a variable in it.
func (l leaf) schemas() (all []*jsonschema.Schema) {
	if l.words != nil {
		one := &jsonschema.Schema{}
		for _, w := range l.words {
			one.Enum = append(one.Enum, w)
		}
		return []*jsonschema.Schema{one, variable()}
	}
	var types []string
	for k, name := range map[kind]string{boolean: "boolean", number: "number", text: "string"} {
		if l.kinds&k != 0 {
			types = append(types, name)
		}
	}
	slices.Sort(types)
	all = []*jsonschema.Schema{{Types: types}}
	if len(types) == 1 {
		all[0] = &jsonschema.Schema{Type: types[0]}
	}
	if l.kinds&text == 0 {
		all = append(all, variable())
	}
	return all
}

func variable() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `\$\{`, Description: "made of variables"}
}

// described is what the reference says about the key at a path. Links prove who we are as
// upstreams do.
func described(path string) string {
	if rest, ok := strings.CutPrefix(path, "links.NAME.auth."); ok {
		path = "upstreams.NAME.auth." + rest
	}
	for _, g := range reference {
		for _, a := range g.keys {
			for _, key := range a.keys {
				if under(g.at, key) == path {
					return plainText(a)
				}
			}
		}
	}
	return ""
}

func under(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

var markdownLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// plainText is a text of the reference without Markdown.
func plainText(a about) string {
	text := markdownLink.ReplaceAllString(a.text, "$1")
	if a.standard != "" {
		text += " (default: " + a.standard + ")"
	}
	return strings.ReplaceAll(text, "`", "")
}
