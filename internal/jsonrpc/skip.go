package jsonrpc

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// A skipper finds the ends of values in JSON text. Most bytes of a message are in strings that
// nobody here reads, so it looks at eight of them at a time, where a tokenizer looks at one.
//
// It only knows JSON as it usually is: where its methods return -1, the text is wrong or unusual,
// and jsontext decides. What it accepts jsontext accepts, too, as the same values.
type skipper []byte

// skipDepth bounds the levels below an object that a skipper follows.
const skipDepth = 64

// A member is the position of a member of an object, of its name with the quotes, and of its value.
type member struct{ name, value Span }

// object appends the members of the object that is all of s. ok is false if jsontext must decide.
func (s skipper) object(members []member) (_ []member, ok bool) {
	at := s.space(0)
	if !s.has(at, '{') {
		return nil, false
	}
	if at = s.space(at + 1); s.has(at, '}') {
		return members, s.space(at+1) == len(s)
	}
	for {
		name := Span{at, s.string(at)}
		value := Span{s.space(s.after(name.End, ':')), 0}
		value.End = s.value(value.Start, skipDepth)
		if value.End < 0 {
			return nil, false
		}
		members = append(members, member{name, value})
		at = s.space(value.End)
		if s.has(at, '}') {
			return members, s.space(at+1) == len(s)
		}
		at = s.space(s.after(at, ','))
	}
}

// value returns the end of the value at a position.
func (s skipper) value(at, depth int) int {
	if at < 0 || at >= len(s) || depth == 0 {
		return -1
	}
	switch c := s[at]; c {
	case '"':
		return s.string(at)
	case '{':
		return s.list(at, '}', func(at int) int {
			return s.value(s.space(s.after(s.string(at), ':')), depth-1)
		})
	case '[':
		return s.list(at, ']', func(at int) int { return s.value(at, depth-1) })
	case 't':
		return s.literal(at, "true")
	case 'f':
		return s.literal(at, "false")
	case 'n':
		return s.literal(at, "null")
	}
	return s.number(at)
}

// list returns the end of the object or array at a position. element returns the end of one of its
// elements.
func (s skipper) list(at int, end byte, element func(at int) int) int {
	if at = s.space(at + 1); s.has(at, end) {
		return at + 1
	}
	for {
		if at = s.space(element(at)); s.has(at, end) {
			return at + 1
		}
		if at = s.space(s.after(at, ',')); at < 0 {
			return -1
		}
	}
}

func (s skipper) has(at int, c byte) bool { return uint(at) < uint(len(s)) && s[at] == c }

// after returns the position after c, which must be at a position or behind white space there.
func (s skipper) after(at int, c byte) int {
	if at = s.space(at); s.has(at, c) {
		return at + 1
	}
	return -1
}

// space returns the end of the white space at a position.
func (s skipper) space(at int) int {
	for uint(at) < uint(len(s)) && (s[at] == ' ' || s[at] == '\n' || s[at] == '\t' || s[at] == '\r') {
		at++
	}
	return at
}

func (s skipper) literal(at int, text string) int {
	if bytes.HasPrefix(s[at:], []byte(text)) {
		return at + len(text)
	}
	return -1
}

// number returns the end of the number at a position: -1.5e+3.
func (s skipper) number(at int) int {
	if s.has(at, '-') {
		at++
	}
	if s.has(at, '0') {
		at++
	} else if at = s.digits(at); at < 0 {
		return -1
	}
	if s.has(at, '.') {
		if at = s.digits(at + 1); at < 0 {
			return -1
		}
	}
	if !s.has(at, 'e') && !s.has(at, 'E') {
		return at
	}
	if at++; s.has(at, '+') || s.has(at, '-') {
		at++
	}
	return s.digits(at)
}

// digits returns the end of the digits at a position, of which there must be one.
func (s skipper) digits(at int) int {
	start := at
	for uint(at) < uint(len(s)) && '0' <= s[at] && s[at] <= '9' {
		at++
	}
	if at == start {
		return -1
	}
	return at
}

// string returns the end of the string at a position, behind its quote.
func (s skipper) string(at int) int {
	if !s.has(at, '"') {
		return -1
	}
	for at++; ; {
		for at+8 <= len(s) {
			if stop := stops(binary.LittleEndian.Uint64(s[at:])); stop != 0 {
				at += bits.TrailingZeros64(stop) / 8
				break
			}
			at += 8 // does not depend on stop, so the processor need not wait for that
		}
		switch {
		case at >= len(s), s[at] < ' ':
			return -1
		case s[at] == '"':
			return at + 1
		case s[at] != '\\':
			at++
		default:
			if at = s.escape(at); at < 0 {
				return -1
			}
		}
	}
}

// stops has the highest bit of the first byte set that is a quote, a backslash or a control
// character, if one of the eight bytes is. Bits of later bytes mean nothing then.
func stops(eight uint64) uint64 {
	const each, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := eight^'"'*each, eight^'\\'*each
	return ((quote-each)&^quote | (backslash-each)&^backslash | (eight-' '*each)&^eight) & high
}

// escape returns the end of the escape at a position: \n or \u00e9.
func (s skipper) escape(at int) int {
	if at+1 >= len(s) {
		return -1
	}
	switch s[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return at + 2
	case 'u':
		if at+6 > len(s) {
			return -1
		}
		for _, c := range s[at+2 : at+6] {
			if (c < '0' || '9' < c) && (c|' ' < 'a' || 'f' < c|' ') {
				return -1
			}
		}
		return at + 6
	}
	return -1
}
