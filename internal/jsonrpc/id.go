package jsonrpc

import (
	"math"
	"strconv"
	"strings"
)

// An ID is a request id as it was on the wire: the JSON text of a string or an integer. IDs are
// comparable. 1, "1" and 1.0 are three different ids, so each comes back to its sender exactly as
// it was sent. The zero ID means "none".
type ID struct{ raw string }

// IntID returns the id whose JSON text is n.
func IntID(n int64) ID { return ID{strconv.FormatInt(n, 10)} }

// ParseID parses an id from its JSON text, which must be a valid JSON value. It rejects what MCP
// rejects: null, fractions, booleans, arrays and objects (2025-11-25 basic/index: "IDs MUST be a
// string or integer, MUST NOT be null").
func ParseID(text []byte) (ID, bool) {
	if len(text) == 0 {
		return ID{}, false
	}
	switch c := text[0]; {
	case c == '"':
		return ID{string(text)}, true
	case c == '-' || '0' <= c && c <= '9':
		return ID{string(text)}, isInteger(string(text))
	}
	return ID{}, false
}

// isInteger reports whether a JSON number has an integral value: 1, 1.0 and 1e2 do, 1.5 and 1e-2 do
// not.
func isInteger(number string) bool {
	if !strings.ContainsAny(number, ".eE") {
		return true
	}
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && f == math.Trunc(f)
}

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id.raw == "" }

// String returns the JSON text of the id, "" for none.
func (id ID) String() string { return id.raw }

// Raw returns the JSON text of the id, as bytes to splice.
func (id ID) Raw() []byte { return []byte(id.raw) }

// Answered returns the integer id that a response answers. Like the SDKs, it accepts a server that
// turns ids into strings.
func (id ID) Answered() (int64, bool) { return ID{strings.Trim(id.raw, `"`)}.Int() }

// Int returns the integer value of a number id. It accepts 5.0 for 5.
func (id ID) Int() (int64, bool) {
	if n, err := strconv.ParseInt(id.raw, 10, 64); err == nil {
		return n, true
	}
	if id.raw == "" || id.raw[0] == '"' {
		return 0, false
	}
	f, err := strconv.ParseFloat(id.raw, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}
