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

// The values of resultType in the modern era. The last one belongs to the tasks extension.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// ErrResultType means that a result is unusable.
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

// IsUnknownMethod reports whether an error proves that the server does not know the method, so that
// nothing ran: method not found, or what python-sdk 1.x answers before any handler.
func IsUnknownMethod(text json.RawMessage) bool {
	var at [3]jsonrpc.Span
	if jsonrpc.Find(text, jsonrpc.Span{}, at[:], "code", "message", "data") != nil {
		return false
	}
	switch code, _ := strconv.Atoi(string(at[0].Of(text))); code {
	case jsonrpc.CodeMethodNotFound:
		return true
	case jsonrpc.CodeInvalidParams:
		message, _ := jsonrpc.Unquote(at[1].Of(text))
		data := at[2].Of(text)
		return message == "Invalid request parameters" && (data == nil || string(data) == `""` || string(data) == "null")
	}
	return false
}

// Completed adds the required members that a complete result lacks: its resultType if kind, its
// current value, is "", and its caching. Without one it must not be cached.
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

// hints are the caching members of a complete result (2026-07-28 server/utilities/caching), and
// their defaults.
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

// appended returns object with members appended.
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

// glance is [jsonrpc.Member] for a long result, which must be valid JSON. The key must have a
// capital. If the key occurs at most once, glance reads little of the result, and does not notice a
// key that differs only in case. Without it a result of 64 KiB costs three to ten times as much
// (BenchmarkModernResult in proxy/session).
func glance(object json.RawMessage, key string) (json.RawMessage, error) {
	name := []byte(`"` + key + `"`)
	at, n := occurrences(object, name)
	switch {
	case bytes.Contains(object, []byte(`\u00`)): // the key may have escapes
	case n == 0:
		return nil, nil
	case n == 1 && isMember(object, at):
		if value := scalarBehind(object[at+len(name):]); value != nil {
			return value, nil
		}
	}
	return jsonrpc.Member(object, key)
}

// occurrences returns the position of the first occurrence of name in text, and the number of
// occurrences. It searches for the rest of name from its capital on, because capitals are rare and
// quotes are not.
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

// isMember reports whether an occurrence of a name in an object is the name of one of its own
// members. It reads from there to the nearer end.
func isMember(object []byte, at int) bool {
	if object[at-1] == '\\' {
		return false // in a string
	}
	if at < len(object)/2 {
		return nesting(object[:at]) == 1
	}
	return nesting(object[at:]) == -1
}

// nesting returns the difference in depth between the end and the start of JSON text. Both must be
// outside of strings.
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

// lengthOfString returns the length of the string at the start of text, including quotes.
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

// scalarBehind returns the value after the name of a member; nil if there is none or it is an
// object or an array.
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
