package jsonrpc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits bound one inbound message. The zero value means the defaults.
type Limits struct {
	Message int // bytes of one message; zero means 16 MiB
	Depth   int // levels of arrays and objects; zero means 1000, at most 10,000
	ID      int // bytes of an id's JSON text; zero means 1 KiB
}

// Peers parse recursively, so a deeper message could crash one.
const (
	defaultMaxMessage = 16 << 20
	defaultMaxDepth   = 1000
	defaultMaxID      = 1 << 10 // ids are kept until the answer, and compared
	maxMethod         = 1 << 10 // likewise
)

// maxBatch bounds the messages of a batch, because a decoded small message takes many times the
// memory of its text.
const maxBatch = 1024

// MaxMessage returns the bound in bytes on one message.
func (l Limits) MaxMessage() int { return cmp.Or(max(l.Message, 0), defaultMaxMessage) }

// Oversize says for people that a message is larger than MaxMessage, and which key of the
// configuration sets that.
func (l Limits) Oversize() string {
	size, unit := float64(l.MaxMessage())/(1<<20), "MiB"
	if size < 1 {
		size, unit = size*(1<<10), "KiB"
	}
	return fmt.Sprintf("message over the limit of %.4g %s (limits.message)", size, unit)
}

// envelopeKeys are in the order of the offsets in decodeSingle.
var envelopeKeys = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// Decode decodes data within the default [Limits].
func Decode(data []byte) (*Message, error) { return Limits{}.Decode(data) }

// Decode reads one message or one batch. A batch has only Batch set, and an element of it that is
// unusable only Unusable. The message aliases data, which must not be written to afterwards. The error is
// always an [*InvalidError]. Decode does not check the size of data; its callers bound what they
// read.
func (l Limits) Decode(data []byte) (*Message, error) {
	data = bytes.Trim(data, space)
	switch {
	case len(data) == 0:
		return nil, unparsable(data, "empty message")
	case !utf8.Valid(data):
		return nil, unparsable(data, "invalid UTF-8")
	case deeper(data, cmp.Or(max(l.Depth, 0), defaultMaxDepth)):
		id, reply := scanID(data)
		return nil, &InvalidError{CodeInvalidRequest, "nested too deeply", id, reply}
	case data[0] == '[':
		return l.decodeBatch(data)
	case data[0] == '{':
		return l.decodeSingle(data)
	}
	if err := valid(data); err != nil {
		return nil, unparsable(data, err.Error())
	}
	return nil, &InvalidError{Code: CodeInvalidRequest, Reason: "not a JSON object"}
}

// DecodeOwn decodes what [Message.Append] wrote, where the content need not be checked again. It
// reads the head of the envelope and takes the value at the end unread. It passes everything that
// does not start as Append starts to [Decode].
func DecodeOwn(data []byte) (*Message, error) {
	m := &Message{}
	rest, ok := bytes.CutPrefix(data, []byte(`{"jsonrpc":"2.0"`))
	if !ok || len(rest) == 0 || rest[len(rest)-1] != '}' {
		return Decode(data)
	}
	if after, found := bytes.CutPrefix(rest, []byte(`,"id":`)); found {
		n := scalarEnd(after)
		m.ID, rest = ID{string(after[:n])}, after[n:]
	}
	if after, found := bytes.CutPrefix(rest, []byte(`,"method":`)); found {
		n := scalarEnd(after)
		m.Method, _ = Unquote(after[:n])
		rest = after[n:]
	}
	value := func(key string) (json.RawMessage, bool) {
		after, found := bytes.CutPrefix(rest, []byte(key))
		return json.RawMessage(after[:max(len(after)-1, 0):max(len(after)-1, 0)]), found
	}
	if v, found := value(`,"params":`); found {
		m.Params = v
	} else if v, found := value(`,"result":`); found {
		m.Result = v
	} else if v, found := value(`,"error":`); found {
		m.Error = v
	} else if len(rest) != 1 { // members that JSON-RPC does not define
		return Decode(data)
	}
	return m, nil
}

// scalarEnd returns the end of the string or number at the start of text.
func scalarEnd(text []byte) int {
	if text[0] != '"' {
		if i := bytes.IndexAny(text, ",}"); i >= 0 {
			return i
		}
		return len(text)
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// space is JSON's white space.
const space = " \t\r\n"

// unparsable returns the error for bytes that are not JSON, with whatever idScanner can find in
// them.
func unparsable(data []byte, reason string) error {
	id, reply := scanID(data)
	return &InvalidError{CodeParseError, reason, id, reply}
}

func (l Limits) decodeBatch(data []byte) (*Message, error) {
	elements, err := elements(data, maxBatch)
	switch {
	case err != nil:
		return nil, unparsable(data, err.Error())
	case len(elements) == 0:
		return nil, &InvalidError{Code: CodeInvalidRequest, Reason: "empty batch"}
	case len(elements) > maxBatch:
		return nil, &InvalidError{Code: CodeInvalidRequest, Reason: "too many messages in a batch"}
	}
	batch := make([]*Message, len(elements))
	for i, e := range elements {
		if batch[i], err = l.decodeElement(e); err != nil {
			bad, _ := errors.AsType[*InvalidError](err) // always ok
			batch[i] = &Message{Unusable: bad}
		}
	}
	return &Message{Batch: batch}, nil
}

func (l Limits) decodeElement(data []byte) (*Message, error) {
	if len(data) == 0 || data[0] != '{' {
		return nil, &InvalidError{Code: CodeInvalidRequest, Reason: "batch element is not an object"}
	}
	return l.decodeSingle(data)
}

func (l Limits) decodeSingle(data []byte) (*Message, error) {
	var at [6]Span
	m := &Message{}
	var strict error
	err := each(data, func(key []byte, member, value Span) {
		i, bad := match(key, envelopeKeys)
		switch {
		case bad != nil:
			strict = bad
		case i < 0:
			m.Extra = append(append(m.Extra, ','), member.Of(data)...)
		case !at[i].IsZero():
			strict = duplicateKey(envelopeKeys[i])
		default:
			at[i] = value
		}
	})
	if err != nil {
		return nil, unparsable(data, err.Error())
	}
	get := func(i int) json.RawMessage {
		if at[i].IsZero() {
			return nil
		}
		return at[i].Of(data)
	}
	m.Params, m.Result, m.Error = get(3), get(4), get(5)
	if len(get(1)) > cmp.Or(max(l.ID, 0), defaultMaxID) {
		return nil, &InvalidError{Code: CodeInvalidRequest, Reason: `"id" is too long`, Reply: m.Result != nil || m.Error != nil}
	}
	return finish(m, get(0), get(1), get(2), strict)
}

// finish checks the envelope of m, whose other members are already set.
func finish(m *Message, version, id, method json.RawMessage, strict error) (*Message, error) {
	var idOK bool
	m.ID, idOK = ParseID(id)
	if !idOK {
		m.ID = ID{}
	}
	// Some JavaScript servers omit "result" when they have none.
	empty := method == nil && m.Params == nil && idOK
	reply := method == nil && (m.Result != nil || m.Error != nil) || empty
	refuse := func(reason string) (*Message, error) {
		return nil, &InvalidError{CodeInvalidRequest, reason, m.ID, reply}
	}
	if strict != nil {
		return refuse(strict.Error())
	}
	if !isVersion(version) {
		return refuse(`"jsonrpc" is not "2.0"`)
	}
	// An error for an unidentified request has an id of null or none.
	if id != nil && !idOK && !(reply && m.Error != nil && string(id) == "null") {
		return refuse(`"id" is not a string or an integer`)
	}
	if reply {
		if reason := replyFault(m); reason != "" {
			return refuse(reason)
		}
		return m, nil
	}
	if len(method) > maxMethod {
		return refuse(`"method" is too long`)
	}
	if m.Method, idOK = Unquote(method); !idOK || m.Method == "" {
		return refuse(`"method" is not a string`)
	}
	if m.Result != nil || m.Error != nil {
		return refuse("both a request and a response")
	}
	if m.Params != nil && m.Params[0] != '{' && m.Params[0] != '[' && string(m.Params) != "null" {
		return refuse(`"params" is not an object`)
	}
	return m, nil
}

// isVersion reports whether the value of "jsonrpc" is "2.0". The usual case has no escapes.
func isVersion(text json.RawMessage) bool {
	if string(text) == `"2.0"` {
		return true
	}
	v, ok := Unquote(text)
	return ok && v == "2.0"
}

// replyFault returns what is wrong with a response, "" if nothing is.
func replyFault(m *Message) string {
	switch {
	case m.Params != nil:
		return `a response has "params"`
	case m.Result != nil && m.Error != nil:
		return `both "result" and "error"`
	case m.Result == nil && m.Error == nil:
		return `no "method", "result" or "error"`
	case m.Error != nil && m.Error[0] != '{':
		return `"error" is not an object`
	case m.ID.IsZero() && m.Error == nil:
		return `a result has no "id"`
	}
	return ""
}

// deeper reports whether data nests deeper than limit. It counts exactly only if there are enough
// brackets.
func deeper(data []byte, limit int) bool {
	if bytes.Count(data, []byte{'['})+bytes.Count(data, []byte{'{'}) <= limit {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
