package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// A Span is the position of a value in a JSON text. The zero Span means "absent".
type Span struct{ Start, End int }

// IsZero reports whether the value is absent.
func (s Span) IsZero() bool { return s == Span{} }

// Of returns the bytes of doc that s covers; nil if the value is absent.
func (s Span) Of(doc []byte) json.RawMessage {
	if s.IsZero() {
		return nil
	}
	return json.RawMessage(doc[s.Start:s.End:s.End])
}

// An Edit replaces the bytes that a Span covers.
type Edit struct {
	Span
	With []byte
}

// Find sets out[i] to the position of the value of keys[i] among the members of the object that in
// covers (all of doc if in is zero), as offsets into doc. A value that is not an object has no
// members. It returns an error if one of the keys occurs twice, or if there is a key that differs
// from it only in case: all readers must agree on these keys.
func Find(doc []byte, in Span, out []Span, keys ...string) error {
	clear(out)
	var strict error
	err := Search(doc, in, keys, func(i int, value Span, bad error) {
		if bad != nil {
			strict = bad
			return
		}
		out[i] = value
	})
	return errors.Join(err, strict)
}

// Search is [Find] for callers that need to know which key is at fault. It calls found for each
// member that has one of keys, with the position of its value, or with why it is rejected.
func Search(doc []byte, in Span, keys []string, found func(i int, value Span, bad error)) error {
	if in.IsZero() {
		in.End = len(doc)
	}
	obj := bytes.TrimLeft(doc[in.Start:in.End], space)
	if len(obj) == 0 || obj[0] != '{' {
		return nil
	}
	base := in.End - len(obj)
	var seen uint64 // bits of keys, of which there are at most 64
	return each(obj, func(key []byte, _, value Span) {
		i, bad := match(key, keys)
		if i < 0 {
			return
		}
		if bad == nil && seen&(1<<i) != 0 {
			bad = duplicateKey(keys[i])
		}
		if bad == nil {
			seen |= 1 << i
		}
		found(i, Span{base + value.Start, base + value.End}, bad)
	})
}

// Member returns the value of one key of an object, nil if it is absent. It is as strict as [Find].
func Member(doc json.RawMessage, key string) (json.RawMessage, error) {
	var at [1]Span
	err := Find(doc, Span{}, at[:], key)
	return at[0].Of(doc), err
}

// Get is [Member] for callers to whom an ambiguous value is none.
func Get(doc json.RawMessage, key string) json.RawMessage {
	value, err := Member(doc, key)
	if err != nil {
		return nil
	}
	return value
}

// Replace returns doc with the edits made. It does not change doc, and returns it if there are no
// edits. Edits must not overlap. Those with a zero Span are ignored.
func Replace(doc json.RawMessage, edits ...Edit) json.RawMessage {
	edits = slices.DeleteFunc(edits, func(e Edit) bool { return e.IsZero() })
	if len(edits) == 0 {
		return doc
	}
	slices.SortFunc(edits, func(a, b Edit) int { return a.Start - b.Start })
	size := len(doc)
	for _, e := range edits {
		size += len(e.With)
	}
	out, from := make([]byte, 0, size), 0
	for _, e := range edits {
		out = append(append(out, doc[from:e.Start]...), e.With...)
		from = e.End
	}
	return append(out, doc[from:]...)
}

// Elements returns the elements of a JSON array, each aliasing doc.
func Elements(doc json.RawMessage) ([]json.RawMessage, error) { return elements(doc, len(doc)) }

// elements stops after limit+1 elements and does not look at the rest.
func elements(doc []byte, limit int) ([]json.RawMessage, error) {
	w := newWalker(doc)
	defer w.free()
	if tok, err := w.ReadToken(); err != nil || tok.Kind() != '[' {
		return nil, errors.Join(errors.New("not a JSON array"), syntax(err))
	}
	var elements []json.RawMessage
	for w.PeekKind() != ']' {
		s, err := w.value()
		if err != nil {
			return nil, err
		}
		if elements = append(elements, s.Of(doc)); len(elements) > limit {
			return elements, nil
		}
	}
	return elements, w.end(doc)
}

// Array returns a JSON array of elements.
func Array[T ~[]byte](elements []T) json.RawMessage {
	out := []byte{'['}
	for i, e := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']')
}

// Each calls fn for every member of a JSON object, in order, with the decoded key and the value,
// which aliases doc. It is not strict about keys.
func Each(doc json.RawMessage, fn func(key string, value json.RawMessage)) error {
	return each(doc, func(key []byte, _, value Span) { fn(string(key), value.Of(doc)) })
}

// Quote returns s as a JSON string.
func Quote(s string) json.RawMessage {
	text, _ := jsontext.AppendQuote(nil, s) // the error is for invalid UTF-8, which becomes U+FFFD
	return text
}

// Unquote returns the value of a JSON string; false if text is not one.
func Unquote(text json.RawMessage) (string, bool) {
	n := len(text)
	if n < 2 || text[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : n-1]), true
	}
	s, err := jsontext.AppendUnquote(nil, text)
	// A lone surrogate is an error to jsontext and U+FFFD to everybody else.
	return string(s), err == nil || len(s) > 0
}

// match returns the index of key among keys, -1 if it is none of them. It returns an error if only
// the case differs.
func match(key []byte, keys []string) (int, error) {
	for i, k := range keys {
		if string(key) == k {
			return i, nil
		}
	}
	for i, k := range keys {
		if bytes.EqualFold(key, []byte(k)) {
			return i, fmt.Errorf("key %q is not written that way", k)
		}
	}
	return -1, nil
}

func duplicateKey(key string) error { return fmt.Errorf("duplicate key %q", key) }

// each calls fn for every member of the object doc: the decoded key, the span of the whole member,
// and that of its value.
func each(doc []byte, fn func(key []byte, member, value Span)) error {
	var room [16]member
	members, ok := skipper(doc).object(room[:0])
	if !ok {
		var err error
		if members, err = tokenize(doc); err != nil {
			return err
		}
	}
	for _, m := range members {
		key := doc[m.name.Start+1 : m.name.End-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			text, _ := Unquote(m.name.Of(doc))
			key = []byte(text)
		}
		fn(key, Span{m.name.Start, m.value.End}, m.value)
	}
	return nil
}

// tokenize returns the members of an object that a skipper does not accept, or what is wrong with
// it.
func tokenize(doc []byte) (members []member, err error) {
	w := newWalker(doc)
	defer w.free()
	if tok, err := w.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, errors.Join(errors.New("not a JSON object"), syntax(err))
	}
	for w.PeekKind() != '}' {
		var m member
		if m.name, err = w.value(); err != nil {
			return nil, err
		}
		if m.value, err = w.value(); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, w.end(doc)
}

// valid returns why doc is not one JSON value, nil if it is.
func valid(doc []byte) error {
	w := newWalker(doc)
	defer w.free()
	if _, err := w.value(); err != nil {
		return err
	}
	return w.end(doc)
}

// isCutShort reports whether doc ends in the midst of a JSON value.
func isCutShort(doc []byte) bool {
	w := newWalker(doc)
	defer w.free()
	return errors.Is(w.SkipValue(), io.ErrUnexpectedEOF)
}

// A walker is a pooled tokenizer over bytes. It accepts duplicate names and invalid UTF-8, because
// deep inside a result everything passes; its users are strict where they must be.
type walker struct {
	jsontext.Decoder
	buf bytes.Buffer
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

// lenient is a variable, so that its slice is allocated once.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

func newWalker(doc []byte) *walker {
	w := walkers.Get().(*walker)
	w.buf = *bytes.NewBuffer(doc) // the tokenizer reads a Buffer in place
	w.Reset(&w.buf, lenient...)
	return w
}

func (w *walker) free() {
	w.buf = bytes.Buffer{} // do not keep the message alive
	w.Reset(&w.buf)
	walkers.Put(w)
}

// value reads one value or name and returns its position.
func (w *walker) value() (Span, error) {
	v, err := w.ReadValue()
	if err != nil {
		return Span{}, syntax(err)
	}
	end := int(w.InputOffset())
	return Span{end - len(v), end}, nil
}

// end reads the closing bracket, and checks that nothing follows it.
func (w *walker) end(doc []byte) error {
	if w.StackDepth() > 0 {
		if _, err := w.ReadToken(); err != nil {
			return syntax(err)
		}
	}
	if rest := doc[w.InputOffset():]; len(bytes.Trim(rest, space)) > 0 {
		return errors.New("data after the message")
	}
	return nil
}

// syntax makes a tokenizer's error short and removes content of the message.
func syntax(err error) error {
	if err == nil {
		return nil
	}
	var s *jsontext.SyntacticError
	if !errors.As(err, &s) {
		return errors.New("unexpected end of JSON")
	}
	reason, _, _ := strings.Cut(s.Err.Error(), " (")
	return fmt.Errorf("bad JSON at byte %d: %s", s.ByteOffset, strings.TrimPrefix(reason, "jsontext: "))
}
