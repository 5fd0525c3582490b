package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// What stands around a header value that is written in base64 (2026-07-28
// basic/transports/streamable-http, "Value Encoding").
const (
	sentinelPrefix = "=?base64?"
	sentinelSuffix = "?="
)

// EncodeHeader returns value as a header carries it: plain if that is safe, else in
// base64 between the sentinels. An empty value is not safe, since a header without
// one is dropped on the way or taken for none, and nor is a tab: peers differ.
func EncodeHeader(value string) string {
	if value != "" && isPlain(value) && value == trimOWS(value) && strings.IndexByte(value, '\t') < 0 &&
		!(strings.HasPrefix(value, sentinelPrefix) && strings.HasSuffix(value, sentinelSuffix)) {
		return value
	}
	return sentinelPrefix + base64.StdEncoding.EncodeToString([]byte(value)) + sentinelSuffix
}

// DecodeHeader returns what [EncodeHeader] made a header value of, without the
// white space around it. It is false if a character may not stand in a header, or
// if there is no strict base64 between the sentinels.
func DecodeHeader(header string) (string, bool) {
	header = trimOWS(header)
	if !isPlain(header) {
		return "", false
	}
	text, found := strings.CutPrefix(header, sentinelPrefix)
	if !found {
		return header, true
	}
	if text, found = strings.CutSuffix(text, sentinelSuffix); !found {
		return header, true
	}
	value, err := base64.StdEncoding.Strict().DecodeString(text)
	return string(value), err == nil
}

// HeaderMismatch returns the error -32020, for a header that is missing, comes twice
// or is not what the body says.
func HeaderMismatch(header string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: CodeHeaderMismatch, Message: "Header mismatch: " + header + " is missing, comes twice, or is not what the body says"}
}

// trimOWS trims what RFC 9110 calls optional white space.
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// isPlain reports whether all characters of s may stand in a header's value.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return true
}

// A Mirror is a parameter of a tool that a header of a tools/call repeats.
type Mirror struct {
	Header string   // "Mcp-Param-Region"; case does not matter
	Path   []string // the keys that lead from the arguments to the value
	Type   string   // "string", "integer" or "boolean"
}

// Value returns what the header says for the arguments of a call. It is false if
// there is nothing to repeat, and the header must be left out: the value is
// absent, null, or of no type that a header could carry.
func (m Mirror) Value(arguments json.RawMessage) (string, bool) {
	raw, err := at(arguments, m.Path)
	text, ok := scalar(raw)
	return EncodeHeader(text), ok && err == nil
}

// Agrees reports whether the values of the header, as they were received, are
// what the arguments demand: one that says the same, integers numerically, or none
// if there is nothing to repeat. What stands twice in the arguments agrees with
// nothing.
func (m Mirror) Agrees(header []string, arguments json.RawMessage) bool {
	raw, err := at(arguments, m.Path)
	if err != nil {
		return false
	}
	want, ok := scalar(raw)
	if !ok || len(header) != 1 {
		return !ok && len(header) == 0
	}
	got, ok := DecodeHeader(header[0])
	return ok && (got == want || raw[0] != '"' && sameInteger(got, want))
}

// at returns the value that path leads to, nil if there is none. It is an error
// if one of its keys stands twice.
func at(value json.RawMessage, path []string) (json.RawMessage, error) {
	for _, key := range path {
		if len(value) == 0 || value[0] != '{' {
			return nil, nil
		}
		var found json.RawMessage
		var twice bool
		err := jsonrpc.Each(value, func(k string, v json.RawMessage) {
			if k == key {
				twice, found = found != nil, v
			}
		})
		if err != nil || twice {
			return nil, errors.Join(err, errors.New("duplicate key"))
		}
		value = found
	}
	return value, nil
}

// scalar returns the text of a string, a number, or a boolean; false for anything
// else. An integer is written without fraction and exponent.
func scalar(raw json.RawMessage) (string, bool) {
	switch {
	case len(raw) == 0 || raw[0] == 'n' || raw[0] == '{' || raw[0] == '[':
		return "", false
	case raw[0] == '"':
		return jsonrpc.Unquote(raw)
	}
	if n, ok := integer(string(raw)); ok {
		return strconv.FormatInt(n, 10), true
	}
	return string(raw), true
}

// maxSafe is the largest integer that is exact to everybody.
const maxSafe = 1<<53 - 1

// integer returns the value of a JSON number that is integral and exact.
func integer(text string) (int64, bool) {
	if !isNumber(text) {
		return 0, false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	return int64(f), err == nil && f == math.Trunc(f) && math.Abs(f) <= maxSafe
}

// isNumber reports whether text is made as a JSON number is. What
// [strconv.ParseFloat] takes beside it, "0x1p4" or "inf", is none.
func isNumber(text string) bool {
	return json.Valid([]byte(text)) && (text[0] == '-' || '0' <= text[0] && text[0] <= '9')
}

func sameInteger(a, b string) bool {
	n, ok := integer(a)
	m, both := integer(b)
	return ok && both && n == m
}

// The annotation, and how deep in a schema it is looked for: each level costs one
// more look at all that is below it.
const (
	annotation     = "x-mcp-header"
	maxSchemaDepth = 64

	// maxMirrors bounds the parameters of one tool that headers repeat: servers
	// take no more headers than that.
	maxMirrors = 128
)

// Mirrors returns the parameters that an inputSchema wants repeated in headers,
// usually none. The error says what is wrong with an annotation (2026-07-28
// server/tools, "x-mcp-header"); who serves the tool over HTTP must leave it out.
func Mirrors(inputSchema json.RawMessage) ([]Mirror, error) {
	// A key may be written with \u, which is as rare as the annotation itself.
	if !bytes.Contains(inputSchema, []byte(annotation)) && !bytes.Contains(inputSchema, []byte(`\u`)) {
		return nil, nil
	}
	var s search
	s.schema(inputSchema, place{reachable: true})
	return s.found, s.err
}

// A search walks through a schema.
type search struct {
	found []Mirror
	err   error // the first fault
}

// place is where in a schema a search is.
type place struct {
	path      []string // keys of properties from the root, if reachable
	reachable bool     // by a chain of properties alone
	depth     int
}

func (s *search) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// schema looks at one schema and all below it.
func (s *search) schema(schema json.RawMessage, here place) {
	if s.err != nil || len(schema) == 0 || schema[0] != '{' {
		return
	}
	if here.depth++; here.depth > maxSchemaDepth {
		s.fail("schema nested too deeply")
		return
	}
	var name, kind json.RawMessage
	below := place{depth: here.depth}
	err := jsonrpc.Each(schema, func(key string, value json.RawMessage) {
		switch key {
		case annotation:
			if name != nil {
				s.fail("%s is given twice", annotation)
			}
			name = value
		case "type":
			kind = value
		case "properties":
			s.properties(value, here)
		case "patternProperties", "$defs", "definitions", "dependentSchemas":
			s.named(value, below)
		case "default", "const", "enum", "examples", "example": // are data
		default:
			s.value(value, below)
		}
	})
	switch {
	case err != nil:
		s.fail("schema is not JSON")
	case name != nil:
		s.add(name, kind, here)
	}
}

// properties looks at the schemas of an object's members.
func (s *search) properties(schemas json.RawMessage, here place) {
	s.each(schemas, func(key string, value json.RawMessage) {
		below := here
		if here.reachable {
			below.path = append(slices.Clip(here.path), key)
		}
		s.schema(value, below)
	})
}

// named looks at schemas that have names which are no keywords.
func (s *search) named(schemas json.RawMessage, here place) {
	s.each(schemas, func(_ string, value json.RawMessage) { s.schema(value, here) })
}

// each calls fn for the members of an object; anything else has none.
func (s *search) each(object json.RawMessage, fn func(key string, value json.RawMessage)) {
	if len(object) == 0 || object[0] != '{' {
		return
	}
	if jsonrpc.Each(object, fn) != nil {
		s.fail("schema is not JSON")
	}
}

// value looks at the value of any other keyword: a schema, schemas, or neither.
func (s *search) value(value json.RawMessage, here place) {
	if len(value) == 0 || value[0] != '[' {
		s.schema(value, here)
		return
	}
	elements, _ := jsonrpc.Elements(value)
	for _, e := range elements {
		s.schema(e, here)
	}
}

// add takes an annotation with the type that stands beside it.
func (s *search) add(name, kind json.RawMessage, here place) {
	header, ok := jsonrpc.Unquote(name)
	typ, _ := jsonrpc.Unquote(kind)
	m := Mirror{Header: "Mcp-Param-" + header, Path: here.path, Type: typ}
	switch {
	case !ok || !IsToken(header):
		s.fail("%s is not a header name", annotation)
	case !here.reachable || len(here.path) == 0:
		s.fail("%s %q is not at a property that can be reached by properties alone", annotation, header)
	case typ != "string" && typ != "integer" && typ != "boolean":
		s.fail("%s %q is at a property that is not a string, integer or boolean", annotation, header)
	case len(s.found) >= maxMirrors:
		s.fail("more than %d parameters have %s", maxMirrors, annotation)
	case slices.ContainsFunc(s.found, func(o Mirror) bool { return strings.EqualFold(o.Header, m.Header) }):
		s.fail("%s %q is given twice", annotation, header)
	default:
		s.found = append(s.found, m)
	}
}

// IsToken reports whether s is a token of RFC 9110, as the name of a header is.
func IsToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('0' <= c && c <= '9' || 'a' <= c|' ' && c|' ' <= 'z') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
