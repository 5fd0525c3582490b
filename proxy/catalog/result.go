package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// What a result of the modern era may be: its resultType. The last one is of the tasks
// extension.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// ErrResultType is why a result is not usable.
var ErrResultType = errors.New("unexpected resultType")

// ResultType returns the resultType of a result, "" if it has none.
func ResultType(result json.RawMessage) (string, error) {
	if len(result) == 0 || result[0] != '{' {
		return "", errors.New("result is not an object")
	}
	raw, err := glance(result, "resultType")
	if raw == nil || err != nil {
		return "", err
	}
	kind, ok := jsonrpc.Unquote(raw)
	if !ok || kind == "" {
		return "", ErrResultType
	}
	return kind, nil
}

// Completed adds to a complete result what it must say and does not: its resultType, if
// kind, which was read from it, is "", and how it may be kept. Nothing is known of that,
// so that it may not be kept.
func Completed(method, kind string, result json.RawMessage) json.RawMessage {
	var absent, wrong []jsonrpc.Value
	if kind == "" {
		absent = append(absent, jsonrpc.Value{Key: "resultType", Text: json.RawMessage(`"` + ResultComplete + `"`)})
	}
	if mcp.MethodOf(method).Cacheable {
		for _, h := range hints {
			switch raw, err := glance(result, h.key); {
			case err == nil && raw == nil:
				absent = append(absent, jsonrpc.Value{Key: h.key, Text: h.none})
			case err != nil || !h.valid(raw):
				wrong = append(wrong, jsonrpc.Value{Key: h.key, Text: h.none})
			}
		}
	}
	if wrong != nil {
		result = jsonrpc.Set(result, wrong...)
	}
	return appended(result, absent)
}

// hints are what a complete result says of its caching (2026-07-28
// server/utilities/caching), and what is said for one that does not.
var hints = []struct {
	key   string
	valid func(raw json.RawMessage) bool
	none  json.RawMessage
}{
	{"ttlMs", isTTL, json.RawMessage(`0`)},
	{"cacheScope", isScope, json.RawMessage(`"private"`)},
}

func isTTL(raw json.RawMessage) bool {
	ms, err := strconv.ParseFloat(string(raw), 64)
	return err == nil && ms >= 0
}

func isScope(raw json.RawMessage) bool {
	scope, _ := jsonrpc.Unquote(raw)
	return scope == "public" || scope == "private"
}

// appended returns object with new members at its end.
func appended(object json.RawMessage, values []jsonrpc.Value) json.RawMessage {
	if len(values) == 0 {
		return object
	}
	head := bytes.TrimRight(object[:bytes.LastIndexByte(object, '}')], space)
	out := append(make([]byte, 0, len(object)+64*len(values)), head...)
	for _, v := range values {
		if len(out) > 1 { // more than the opening brace
			out = append(out, ',')
		}
		out = append(append(append(out, jsonrpc.Quote(v.Key)...), ':'), v.Text...)
	}
	return append(out, '}')
}

// glance is [jsonrpc.Member] for a long result. It reads little of it if the key occurs
// once or not at all; then it does not see a key that differs only in case. The result
// is valid JSON, and the key has a capital. Without glance a result of 64 KiB costs
// three to ten times as much (BenchmarkModernResult in proxy/session).
func glance(object json.RawMessage, key string) (json.RawMessage, error) {
	name := []byte(`"` + key + `"`)
	at, n := occurrences(object, name)
	switch {
	case bytes.Contains(object, escapedASCII): // the key may be written otherwise
	case n == 0:
		return nil, nil
	case n == 1 && isMember(object, at):
		if value := scalarBehind(object[at+len(name):]); value != nil {
			return value, nil
		}
	}
	return jsonrpc.Member(object, key)
}

// occurrences returns where name occurs first in text, and how often it occurs. It
// searches for the rest of name from its capital on: capitals are rare, quotes are not.
func occurrences(text, name []byte) (first, n int) {
	head := bytes.IndexFunc(name, unicode.IsUpper)
	for from := 0; ; {
		i := bytes.Index(text[from:], name[head:])
		if i < 0 {
			return first, n
		}
		at := from + i - head
		if at >= 0 && bytes.HasPrefix(text[at:], name) {
			if n++; n == 1 {
				first = at
			}
		}
		from += i + 1
	}
}

// isMember reports whether the text at a place of an object, which could be a name, is
// the name of one of its members. It reads from there to the nearer end.
func isMember(object []byte, at int) bool {
	if object[at-1] == '\\' {
		return false // in a string
	}
	if at < len(object)/2 {
		return nesting(object[:at]) == 1
	}
	return nesting(object[at:]) == -1
}

// nesting returns by how much deeper JSON text is at its end than at its beginning.
// Both are outside of strings.
func nesting(text []byte) (depth int) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			i += lengthOfString(text[i:]) - 1
		}
	}
	return depth
}

// lengthOfString returns the length of the string that text begins with, quotes
// included.
func lengthOfString(text []byte) int {
	end := 0
	for {
		n := bytes.IndexByte(text[end+1:], '"')
		if n < 0 {
			return len(text)
		}
		end += 1 + n
		plain := bytes.TrimRight(text[1:end], `\`)
		if (end-1-len(plain))%2 == 0 {
			return end + 1
		}
	}
}

const space = " \t\r\n"

// scalarBehind returns the value behind the name of a member; nil if there is none or
// it is an object or an array.
func scalarBehind(rest []byte) json.RawMessage {
	rest = bytes.TrimLeft(rest, space)
	if rest[0] != ':' {
		return nil
	}
	switch rest = bytes.TrimLeft(rest[1:], space); rest[0] {
	case '{', '[':
		return nil
	case '"':
		n := lengthOfString(rest)
		return json.RawMessage(rest[:n:n])
	}
	n := bytes.IndexAny(rest, ",}"+space)
	return json.RawMessage(rest[:n:n])
}
