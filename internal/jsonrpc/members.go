package jsonrpc

import (
	"encoding/json"
	"slices"
)

// A Value is a member of an object that is to be set.
type Value struct {
	Key  string
	Text json.RawMessage // nil takes the member out
}

// Set returns object with members set: replaced where they stand, appended in the
// order given where there are none, taken out where their Text is nil. The texts
// of all other keys and values stay as they are, and object is not written to. What
// is no object, nil say, counts as {}. Of a key that occurs twice, which [Find]
// refuses, the first occurrence is replaced and the others go.
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

// nameOf returns the name of a member, as it is written.
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
