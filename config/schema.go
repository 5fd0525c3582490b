package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// A jsonSchema has the keywords that Schema uses. (google/jsonschema-go, which the tests validate with, also infers and
// validates: that is 0.1 MB of a program, and allocates 80 KiB when it starts.)
type jsonSchema struct {
	Type                 any                    `json:"type,omitempty"` // a name, or several
	Properties           map[string]*jsonSchema `json:"properties,omitempty"`
	Items                *jsonSchema            `json:"items,omitempty"`
	Schema               string                 `json:"$schema,omitempty"`
	Title                string                 `json:"title,omitempty"`
	Description          string                 `json:"description,omitempty"`
	Enum                 []string               `json:"enum,omitempty"`
	Pattern              string                 `json:"pattern,omitempty"`
	AdditionalProperties any                    `json:"additionalProperties,omitempty"` // false, or a schema
	AnyOf                []*jsonSchema          `json:"anyOf,omitempty"`
}

// Schema returns the JSON Schema of a configuration file, for editors. It is as strict as
// [Load] about keys, and less strict about values.
func Schema() []byte {
	schema := structSchema(reflect.TypeFor[Config]())
	schema.Type = "object"
	schema.Schema, schema.Title = "https://json-schema.org/draft/2020-12/schema", "mcp-proxy"
	schema.Properties["$schema"] = &jsonSchema{Type: "string"}
	schema.Properties["mcpServers"] = &jsonSchema{Type: "object", Description: "servers as other programs write them"}
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic(err) // the schema is ours
	}
	return append(text, '\n')
}

// structSchema returns the schema of a map with the keys of a struct. It may be null: in YAML an empty map is.
func structSchema(t reflect.Type) *jsonSchema {
	o := &jsonSchema{
		Type: []string{"object", "null"}, Properties: make(map[string]*jsonSchema),
		AdditionalProperties: false,
	}
	for _, f := range fieldsOf(t) {
		if !f.has("foreign") {
			o.Properties[f.key] = f.schema(f.typ)
			o.Properties[f.key].Description = f.describe()
		}
	}
	return o
}

// schema returns the schema of a value of a type.
func (f field) schema(t reflect.Type) *jsonSchema {
	var all []*jsonSchema
	if f.rule != nil && (t.Kind() != reflect.Map && t.Kind() != reflect.Slice || f.has("or")) {
		all = f.rule.schemas()
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return f.schema(t.Elem())
	case t.Kind() == reflect.Map:
		all = append(all, &jsonSchema{Type: []string{"object", "null"}, AdditionalProperties: f.schema(t.Elem())})
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && named(t.Elem()):
		all = append(all, &jsonSchema{Type: []string{"object", "null"}, AdditionalProperties: structSchema(t.Elem())})
	case t.Kind() == reflect.Slice:
		item := f
		item.tag = ""
		all = append(all, &jsonSchema{Type: []string{"array", "null"}, Items: item.schema(t.Elem())})
	case t.Kind() == reflect.Struct:
		all = append(all, structSchema(t))
	}
	if len(all) == 1 {
		return all[0]
	}
	return &jsonSchema{AnyOf: all}
}

// schemas returns the alternatives for a scalar. A string with a variable is always one.
func (r rule) schemas() (all []*jsonSchema) {
	variable := &jsonSchema{Type: "string", Pattern: `\$\{`, Description: "made of variables"}
	if r.words != nil {
		return []*jsonSchema{{Enum: r.words}, variable}
	}
	var types []string
	for kind, name := range map[tree.Kind]string{tree.Boolean: "boolean", tree.Number: "number", tree.Text: "string"} {
		if r.kinds&kind != 0 {
			types = append(types, name)
		}
	}
	slices.Sort(types)
	all = []*jsonSchema{{Type: types}}
	if len(types) == 1 {
		all[0] = &jsonSchema{Type: types[0]}
	}
	if r.kinds&tree.Text == 0 {
		all = append(all, variable)
	}
	return all
}

var markdownLink = lazyregexp.New(`\[([^\]]*)\]\([^)]*\)`)

// describe returns the doc of a key without Markdown.
func (f field) describe() string {
	text := markdownLink.ReplaceAllString(f.tag.Get("doc"), "$1")
	if standard := f.shown(); standard != "" && text != "" {
		text += " (default: " + standard + ")"
	}
	return strings.ReplaceAll(strings.ReplaceAll(code(text), "`", ""), `\"`, `"`)
}

var quoted = lazyregexp.New(`(^|[\s(/\[])'([^']+)'`)

// code returns the text of a tag as Markdown.
func code(text string) string { return quoted.ReplaceAllString(text, "$1`$2`") }

// shown returns the default of a key for people; "" for none.
func (f field) shown() string {
	standard, ok := f.tag.Lookup("default")
	list := f.typ.Kind() == reflect.Slice
	switch {
	case f.has("shown"):
		return strings.TrimSpace(f.tag.Get("shown"))
	case ok && list:
		return "'[" + strings.ReplaceAll(standard, ",", ", ") + "]'"
	case ok:
		return "'" + standard + "'"
	case f.has("needed") || f.rule == nil:
		return ""
	case list:
		return "'[]'"
	case f.typ.Kind() == reflect.Map:
		return "'{}'"
	case f.typ.Kind() == reflect.Bool:
		return "'false'"
	}
	return ""
}
