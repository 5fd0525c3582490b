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

// The delimiters of a header value in base64 (2026-07-28 basic/transports/streamable-http, "Value
// Encoding").
const (
	sentinelPrefix = "=?base64?"
	sentinelSuffix = "?="
)

// EncodeHeader returns the header value for a value: plain if that is safe, else in base64 between
// the delimiters. An empty value is not safe, because a header without a value may be dropped or
// count as absent. A tab is not, because peers differ.
func EncodeHeader(value string) string {
	if value != "" && isPlain(value) && value == trimOWS(value) && strings.IndexByte(value, '\t') < 0 &&
		!(strings.HasPrefix(value, sentinelPrefix) && strings.HasSuffix(value, sentinelSuffix)) {
		return value
	}
	return sentinelPrefix + base64.StdEncoding.EncodeToString([]byte(value)) + sentinelSuffix
}

// DecodeHeader is the inverse of [EncodeHeader]. It ignores white space around the value. It
// returns false if the header has an illegal character, or if the text between the delimiters is
// not strict base64.
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

// HeaderMismatch returns the error -32020 for a header that is missing, duplicate, or different
// from the body.
func HeaderMismatch(header string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: CodeHeaderMismatch, Message: "Header mismatch: " + header + " is missing, comes twice, or is not what the body says"}
}

// trimOWS trims the optional white space of RFC 9110.
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// isPlain reports whether all characters of s are legal in a header value.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return true
}

// A Mirror is a parameter of a tool that a header of tools/call repeats.
type Mirror struct {
	Header string   // "Mcp-Param-Region"; case does not matter
	Path   []string // the keys from the arguments to the value
	Type   string   // "string", "integer" or "boolean"
}

// Value returns the header value for the arguments of a call. It returns false if the header must
// be left out, because the argument is absent, null, or of a type that a header cannot carry.
func (m Mirror) Value(arguments json.RawMessage) (string, bool) {
	raw, err := at(arguments, m.Path)
	text, ok := scalar(raw)
	return EncodeHeader(text), ok && err == nil
}

// Agrees reports whether the values of a received header match the arguments: one equal value,
// where integers compare numerically, or none if there is nothing to repeat. Duplicate arguments
// match nothing.
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

// at returns the value that path leads to, nil if there is none. It returns an error if a key of
// the path occurs twice.
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

// scalar returns the text of a string, a number or a boolean; false for other values. An integer
// has no fraction and no exponent.
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

// maxSafe is the largest integer that all peers represent exactly.
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

// isNumber reports whether text is a JSON number. [strconv.ParseFloat] also accepts others, such as
// "0x1p4" and "inf".
func isNumber(text string) bool {
	return json.Valid([]byte(text)) && (text[0] == '-' || '0' <= text[0] && text[0] <= '9')
}

func sameInteger(a, b string) bool {
	n, ok := integer(a)
	m, both := integer(b)
	return ok && both && n == m
}

// The annotation, and the depth of schemas up to which the search goes. Each level reads everything
// below it once more.
const (
	annotation     = "x-mcp-header"
	maxSchemaDepth = 64

	// maxMirrors bounds the mirrored parameters of a tool, because servers limit the number of
	// headers.
	maxMirrors = 128
)

// Mirrors returns the parameters that an inputSchema wants repeated in headers, usually none. It
// returns an error for an invalid annotation (2026-07-28 server/tools, "x-mcp-header"); over HTTP
// such a tool must be left out.
func Mirrors(inputSchema json.RawMessage) ([]Mirror, error) {
	// A key may have \u escapes, which are as rare as the annotation itself.
	if !bytes.Contains(inputSchema, []byte(annotation)) && !bytes.Contains(inputSchema, []byte(`\u`)) {
		return nil, nil
	}
	var s search
	s.schema(inputSchema, []string{}, 0)
	return s.found, s.err
}

// A search walks through a schema.
type search struct {
	found []Mirror
	err   error // the first fault
}

func (s *search) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// schema searches a schema and everything below it. The path has the keys of properties from the root; it is nil if
// the schema is not reached only through properties.
func (s *search) schema(schema json.RawMessage, path []string, depth int) {
	if s.err != nil || len(schema) == 0 || schema[0] != '{' {
		return
	}
	if depth++; depth > maxSchemaDepth {
		s.fail("schema nested too deeply")
		return
	}
	var name, kind json.RawMessage
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
			s.properties(value, path, depth)
		case "patternProperties", "$defs", "definitions", "dependentSchemas":
			s.each(value, func(_ string, value json.RawMessage) { s.schema(value, nil, depth) }) // names, not keywords
		case "default", "const", "enum", "examples", "example": // are data
		default:
			s.value(value, depth)
		}
	})
	switch {
	case err != nil:
		s.fail("schema is not JSON")
	case name != nil:
		s.add(name, kind, path)
	}
}

// properties searches the schemas of an object's members.
func (s *search) properties(schemas json.RawMessage, path []string, depth int) {
	s.each(schemas, func(key string, value json.RawMessage) {
		var below []string
		if path != nil {
			below = append(slices.Clip(path), key)
		}
		s.schema(value, below, depth)
	})
}

// each calls fn for the members of an object. Other values have none.
func (s *search) each(object json.RawMessage, fn func(key string, value json.RawMessage)) {
	if len(object) == 0 || object[0] != '{' {
		return
	}
	if jsonrpc.Each(object, fn) != nil {
		s.fail("schema is not JSON")
	}
}

// value searches the value of any other keyword: a schema, schemas, or neither.
func (s *search) value(value json.RawMessage, depth int) {
	if len(value) == 0 || value[0] != '[' {
		s.schema(value, nil, depth)
		return
	}
	elements, _ := jsonrpc.Elements(value)
	for _, e := range elements {
		s.schema(e, nil, depth)
	}
}

// add adds an annotated parameter of the given type.
func (s *search) add(name, kind json.RawMessage, path []string) {
	header, ok := jsonrpc.Unquote(name)
	typ, _ := jsonrpc.Unquote(kind)
	m := Mirror{Header: "Mcp-Param-" + header, Path: path, Type: typ}
	switch {
	case !ok || !IsToken(header):
		s.fail("%s is not a header name", annotation)
	case len(path) == 0:
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

// IsToken reports whether s is a token of RFC 9110, as names of headers are.
func IsToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('0' <= c && c <= '9' || 'a' <= c|' ' && c|' ' <= 'z') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
