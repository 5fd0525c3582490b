package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// maxArguments bounds the bytes of arguments read from stdin.
const maxArguments = 64 << 20

// toolArguments returns the arguments of a call as a JSON object. words are one JSON object, "-" for
// one on stdin, or any number of key=value, typed by the tool's inputSchema, and key:=JSON.
func toolArguments(words []string, schema json.RawMessage, stdin io.Reader) (json.RawMessage, error) {
	switch {
	case len(words) == 0:
		return json.RawMessage(`{}`), nil
	case len(words) == 1 && words[0] == "-":
		text, err := io.ReadAll(io.LimitReader(stdin, maxArguments))
		if err != nil {
			return nil, err
		}
		return wholeObject(bytes.TrimPrefix(text, []byte("\ufeff"))) // the byte order mark that PowerShell writes
	case len(words) == 1 && strings.HasPrefix(strings.TrimSpace(words[0]), "{"):
		return wholeObject([]byte(words[0]))
	}
	a := arguments{schema: readSchema(schema, schema), values: make(map[string][][]byte)}
	for _, w := range words {
		if err := a.add(w); err != nil {
			return nil, err
		}
	}
	return a.object(), nil
}

// wholeObject checks that a text is one JSON object, and returns its bytes: decoding would change big numbers.
func wholeObject(text []byte) (json.RawMessage, error) {
	text = bytes.TrimSpace(text)
	if !json.Valid(text) || len(text) == 0 || text[0] != '{' {
		return nil, errors.New("the arguments are not one JSON object")
	}
	return text, nil
}

// arguments are the values of key=value, in the order of the first of each key.
type arguments struct {
	schema *schema
	keys   []string
	values map[string][][]byte
}

func (a *arguments) add(word string) error {
	key, value, found := strings.Cut(word, "=")
	if !found || key == "" || key == ":" {
		return fmt.Errorf("%q is neither key=value nor a JSON object", word)
	}
	if !utf8.ValidString(word) {
		return fmt.Errorf("%q is not UTF-8", word)
	}
	if raw, isJSON := strings.CutSuffix(key, ":"); isJSON && !a.schema.has(key) {
		if !json.Valid([]byte(value)) {
			return fmt.Errorf("%s: %q is not JSON", raw, value)
		}
		return a.put(raw, json.RawMessage(value))
	}
	of, err := a.schema.of(key)
	if err != nil {
		return err
	}
	typed, err := of.value(value)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return a.put(key, typed)
}

func (a *arguments) put(key string, value json.RawMessage) error {
	if _, again := a.values[key]; !again {
		a.keys = append(a.keys, key)
	} else if of, err := a.schema.of(key); err != nil || of.items == nil {
		return fmt.Errorf("%s is given twice, but is not an array", key)
	}
	a.values[key] = append(a.values[key], value)
	return nil
}

// object returns all arguments as JSON. The values of a key for an array are its elements.
func (a *arguments) object() json.RawMessage {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, key := range a.keys {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(quote(key))
		out.WriteByte(':')
		out.Write(a.valueOf(key))
	}
	out.WriteByte('}')
	return out.Bytes()
}

// quote returns a text as a JSON string.
func quote(text string) json.RawMessage {
	quoted, _ := json.Marshal(text) // a string does not fail
	return quoted
}

func (a *arguments) valueOf(key string) []byte {
	values := a.values[key]
	of, err := a.schema.of(key)
	if err != nil {
		return values[0]
	}
	whole := len(values) == 1 && (values[0][0] == '[' || string(values[0]) == "null" && slices.Contains(of.types, "null"))
	if of.items == nil || whole {
		return values[0]
	}
	return slices.Concat([]byte{'['}, bytes.Join(values, []byte{','}), []byte{']'})
}

// A schema is the part of a JSON Schema that decides how the text of one value is read.
type schema struct {
	types      []string // allowed types; none: any
	properties map[string]json.RawMessage
	closed     bool    // other properties are not allowed
	items      *schema // of an array; nil if it is none
	root       json.RawMessage
	partial    bool // it has more parts than are read
}

// maxDepth bounds how deep references of schemas are followed.
const maxDepth = 16

// maxSchemas bounds the schemas that are read for one value: references can multiply at each step.
const maxSchemas = 1000

// readSchema reads a schema within the document root, which its references point into.
func readSchema(root, text json.RawMessage) *schema {
	left := maxSchemas
	s := parseSchema(root, text, maxDepth, &left)
	s.partial = left < 0
	return s
}

// parseSchema is readSchema for a part of a schema, while left is not negative.
func parseSchema(root, text json.RawMessage, depth int, left *int) *schema {
	s := &schema{root: root}
	if *left--; *left < 0 {
		return s
	}
	var in struct {
		Ref                  string `json:"$ref"`
		Type                 json.RawMessage
		Properties           map[string]json.RawMessage
		AdditionalProperties json.RawMessage
		Items                json.RawMessage
		Const                json.RawMessage
		Enum                 []json.RawMessage
		AnyOf, OneOf, AllOf  []json.RawMessage
	}
	if json.Unmarshal(text, &in) != nil || depth == 0 {
		return s
	}
	if in.Ref != "" {
		return parseSchema(root, pointed(root, in.Ref), depth-1, left)
	}
	s.properties = in.Properties
	s.closed = len(in.Properties) > 0 && (in.AdditionalProperties == nil || string(in.AdditionalProperties) == "false")
	s.typed(in.Type)
	for _, other := range slices.Concat(in.AnyOf, in.OneOf, in.AllOf) {
		o := parseSchema(root, other, depth-1, left)
		s.types = append(s.types, o.types...)
		if s.items == nil {
			s.items = o.items
		}
	}
	for _, v := range append(in.Enum, in.Const) {
		if len(s.types) == 0 && len(v) > 0 {
			s.types = append(s.types, typeOf(v))
		}
	}
	if slices.Contains(s.types, "array") && s.items == nil {
		s.items = parseSchema(root, in.Items, depth-1, left)
	}
	return s
}

// typed adds the types of the member "type": a string, or a list of strings.
func (s *schema) typed(text json.RawMessage) {
	var one string
	if json.Unmarshal(text, &one) == nil && one != "" {
		s.types = append(s.types, one)
		return
	}
	var several []string
	_ = json.Unmarshal(text, &several)
	s.types = append(s.types, several...)
}

// pointed returns the value that a reference such as "#/$defs/Color" points to; nil for none.
func pointed(root json.RawMessage, ref string) json.RawMessage {
	path, found := strings.CutPrefix(ref, "#/")
	if !found {
		return nil
	}
	at := root
	for key := range strings.SplitSeq(path, "/") {
		var object map[string]json.RawMessage
		if json.Unmarshal(at, &object) != nil {
			return nil
		}
		at = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(key)]
	}
	return at
}

// typeOf returns the type of a valid JSON value.
func typeOf(v json.RawMessage) string {
	switch v[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

func (s *schema) has(key string) bool {
	_, ok := s.properties[key]
	return ok
}

// of returns the schema of a property.
func (s *schema) of(key string) (*schema, error) {
	text, known := s.properties[key]
	if !known && s.closed {
		names := slices.Sorted(maps.Keys(s.properties))
		if near := config.DidYouMean(key, names); near != "" {
			return nil, fmt.Errorf("the tool takes no %s%s", key, near)
		}
		return nil, fmt.Errorf("the tool takes no %s, but %s; a JSON object goes as it is", key, strings.Join(names, ", "))
	}
	of := readSchema(s.root, text)
	if of.partial {
		return nil, fmt.Errorf("%s: its schema refers to too many others: give a JSON object, or %s:=JSON", key, key)
	}
	return of, nil
}

// value returns a text as JSON of one of the types. It is a string only if no other type fits.
func (s *schema) value(text string) (json.RawMessage, error) {
	raw := json.RawMessage(strings.TrimSpace(text))
	if json.Valid(raw) {
		is := typeOf(raw)
		for _, t := range s.types {
			if t == is && t != "string" || t == "integer" && is == "number" && isInteger(raw) {
				return raw, nil
			}
		}
	}
	if len(s.types) == 0 || slices.Contains(s.types, "string") {
		return quote(text), nil
	}
	if slices.Contains(s.types, "array") && s.items != nil {
		return s.items.value(text)
	}
	return nil, fmt.Errorf("%q is not of the type that the tool takes: %s", text, strings.Join(s.types, " or "))
}

func isInteger(number json.RawMessage) bool { return !bytes.ContainsAny(number, ".eE") }
