package jsonrpc

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// Limits bound one inbound message. The zero value means the defaults.
type Limits struct {
	Message int // bytes of one message; zero means 16 MiB
	Depth   int // levels of arrays and objects; zero means 1000, at most 10,000
	ID      int // bytes of an id, as it is written; zero means 1 KiB
}

// Parsers of peers recurse, and a deeper message could kill one.
const (
	defaultMaxMessage = 16 << 20
	defaultMaxDepth   = 1000
	defaultMaxID      = 1 << 10 // an id is kept until the answer, and compared
	maxMethod         = 1 << 10 // likewise
)

// maxBatch bounds the messages of one batch: decoded, a small one takes many
// times the memory of its text.
const maxBatch = 1024

// MaxMessage returns the bound in bytes on one message.
func (l Limits) MaxMessage() int {
	if l.Message > 0 {
		return l.Message
	}
	return defaultMaxMessage
}

func (l Limits) maxDepth() int {
	if l.Depth > 0 {
		return l.Depth
	}
	return defaultMaxDepth
}

func (l Limits) maxID() int {
	if l.ID > 0 {
		return l.ID
	}
	return defaultMaxID
}

// Keys of the envelope, in the order of the offsets in Decode.
var envelopeKeys = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// Decode decodes data within the default [Limits].
func Decode(data []byte) (*Message, error) { return Limits{}.Decode(data) }

// Decode reads one message, or one batch, which then has only Batch set; its
// elements are decoded, and an element that cannot be used fails the whole. The
// message aliases data, which must not be written to afterwards. The error is
// always an [*InvalidError]. The size of data is not checked: who reads bytes
// must bound them before they are here.
func (l Limits) Decode(data []byte) (*Message, error) {
	data = bytes.Trim(data, space)
	switch {
	case len(data) == 0:
		return nil, unparsable(data, "empty message")
	case !utf8.Valid(data):
		return nil, unparsable(data, "invalid UTF-8")
	case deeper(data, l.maxDepth()):
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

// DecodeOwn decodes what [Message.Append] wrote, on the other side of a link,
// where its content need not be checked a second time: the head of the envelope
// is read, and the value at its end is taken as it stands. Whatever does not begin
// as Append begins is decoded with [Decode].
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

// scalarEnd returns where the string or number that text begins with ends.
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

// space is what JSON calls white space.
const space = " \t\r\n"

// unparsable returns the error for bytes that are not JSON, with what can still
// be found in them about the message that they should have been.
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
		if len(e) == 0 || e[0] != '{' {
			return nil, &InvalidError{Code: CodeInvalidRequest, Reason: "batch element is not an object"}
		}
		if batch[i], err = l.decodeSingle(e); err != nil {
			return nil, err
		}
	}
	return &Message{Batch: batch}, nil
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
	if len(get(1)) > l.maxID() {
		return nil, &InvalidError{Code: CodeInvalidRequest, Reason: `"id" is too long`, Reply: m.Result != nil || m.Error != nil}
	}
	return finish(m, get(0), get(1), get(2), strict)
}

// finish checks the envelope of m, whose other members are set.
func finish(m *Message, version, id, method json.RawMessage, strict error) (*Message, error) {
	var idOK bool
	m.ID, idOK = ParseID(id)
	if !idOK {
		m.ID = ID{}
	}
	// Servers in JavaScript that have no result to give leave "result" out.
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
	// An error that answers nothing known has an id of null or none.
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

// isVersion reports whether the value of "jsonrpc" is "2.0". That is most often
// written without escapes.
func isVersion(text json.RawMessage) bool {
	if string(text) == `"2.0"` {
		return true
	}
	v, ok := Unquote(text)
	return ok && v == "2.0"
}

// replyFault returns what is wrong with a response, "" for nothing.
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

// deeper reports whether data nests deeper than limit. The exact count is made
// only for data with enough brackets to be suspect.
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
