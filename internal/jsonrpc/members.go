package jsonrpc

import (
	"encoding/json"
	"slices"
)

// A Value is a member of an object to set.
type Value struct {
	Key  string
	Text json.RawMessage // nil removes the member
}

// Set returns object with members set: existing ones replaced in place, new ones appended in the
// order given, those with a nil Text removed. All other keys and values keep their text, and object
// is not written to. Anything that is not an object, such as nil, counts as {}. If a key occurs
// twice, which [Find] rejects, Set replaces the first occurrence and removes the others.
func Set(object json.RawMessage, values ...Value) json.RawMessage {
	out := append(make([]byte, 0, len(object)+64*len(values)), '{')
	add := func(key, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	done := make([]bool, len(values))
	err := each(object, func(key []byte, member, value Span) {
		i := slices.IndexFunc(values, func(v Value) bool { return v.Key == string(key) })
		switch {
		case i < 0:
			add(nameOf(object, member), value.Of(object))
		case values[i].Text != nil && !done[i]:
			add(nameOf(object, member), values[i].Text)
			done[i] = true
		}
	})
	if err != nil {
		out = out[:1]
		clear(done)
	}
	for i, v := range values {
		if v.Text != nil && !done[i] {
			add(Quote(v.Key), v.Text)
		}
	}
	return append(out, '}')
}

// nameOf returns the name of a member, with its quotes and escapes.
func nameOf(object []byte, member Span) []byte {
	for i := member.Start + 1; ; i++ {
		switch object[i] {
		case '\\':
			i++
		case '"':
			return object[member.Start : i+1]
		}
	}
}
