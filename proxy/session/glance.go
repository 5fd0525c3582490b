package session

import (
	"bytes"
	"encoding/json"
	"unicode"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// glance is [jsonrpc.Member] for a result, which is valid JSON, may be long and was
// read once before: it looks at little if the key stands there once, or not at all,
// and then does not see one that differs only in case. The key has a capital. It is worth
// its lines: without it a result of 64 KiB costs three to ten times as much
// (BenchmarkModernResult).
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

// occurrences returns where name stands first in text, and how often it does. It
// searches for it from its capital on: those are rare, quotes are not.
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

// isMember reports whether what stands at a place of an object, and could be a name,
// is that of a member of it. It reads from there to whichever end is nearer.
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
