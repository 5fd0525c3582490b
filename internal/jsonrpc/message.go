package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Message is one JSON-RPC 2.0 request, notification or response.
//
//	request       ID, Method, Params
//	notification      Method, Params
//	response      ID, Result or Error
//	batch         Batch, and nothing else
//
// The raw members alias the bytes given to [Decode] and are never written to.
type Message struct {
	ID     ID              // zero in a notification, and in an error for an unidentified request
	Method string          // "" in a response
	Params json.RawMessage // nil if absent
	Result json.RawMessage // nil in an error response
	Error  json.RawMessage // nil in a result response

	// Extra is the rest of the envelope, members that JSON-RPC does not define, as they came:
	// `,"x":1,"y":[]`. Nil if there are none.
	Extra []byte

	// Batch has the elements of an array, which only protocol version 2025-03-26 allows. It is nil
	// in a single message.
	Batch []*Message

	// Unusable is why an element of an array is no message. Then nothing else is set. Who receives the
	// array handles it; it never travels.
	Unusable *InvalidError

	// Related is the id, on the Conn that carries this message, of the request that the message
	// belongs to; zero if unknown. It never travels to a client or a server.
	Related ID

	// Notes are the findings of an earlier reader of Params, for later readers. They never travel,
	// and have no meaning in this package.
	Notes any

	// Headers are the params that the sender repeated in headers of a request, by lower-case name:
	// "mcp-param-region". They are nil if the transport has no headers, and empty if the sender
	// repeated nothing. They never travel.
	Headers map[string][]string

	// From is the sender of the message, if the front end identifies the sender of each message.
	// Nil means the identity of the session. It never travels.
	From *identity.Identity

	// Trace is the trace context of the HTTP request that carried the message; nil if it had none,
	// or if traces are off. It never travels.
	Trace *TraceContext

	// Forwarded are headers of the HTTP request that carried the message, for upstreams; nil for
	// none. They never appear in the text of the message.
	Forwarded *Forwarded

	// Orphan is set in a request about something that another process had which is gone. Only a
	// server that outlives our processes may still know it. It never travels.
	Orphan bool

	// Refused is set in an error with which a policy answered, so that a front end can use its HTTP
	// status. It never travels.
	Refused *identity.Refusal
}

// A TraceContext says which trace a message is part of, in the header formats of W3C Trace Context
// and W3C Baggage. Its content is not validated.
type TraceContext struct{ Parent, State, Baggage string }

// NewRequest returns a request.
func NewRequest(id ID, method string, params json.RawMessage) *Message {
	return &Message{ID: id, Method: method, Params: params}
}

// NewNotification returns a notification.
func NewNotification(method string, params json.RawMessage) *Message {
	return &Message{Method: method, Params: params}
}

// NewResult returns the response that answers id with a result.
func NewResult(id ID, result json.RawMessage) *Message {
	return &Message{ID: id, Result: result}
}

// NewError returns the response that answers id with err. For a zero id it omits the member,
// because the commonest client rejects an id of null.
func NewError(id ID, err *Error) *Message {
	return &Message{ID: id, Error: err.Raw()}
}

// Failure returns a response with err, without an id.
func Failure(err *Error) *Message { return &Message{Error: err.Raw()} }

// IsRequest reports whether m is a request.
func (m *Message) IsRequest() bool { return m.Method != "" && !m.ID.IsZero() }

// IsNotification reports whether m is a notification.
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID.IsZero() }

// IsResponse reports whether m is a result or an error.
func (m *Message) IsResponse() bool { return m.Result != nil || m.Error != nil }

// Each yields the elements of an array, or m itself if it is none.
func (m *Message) Each(yield func(*Message) bool) {
	if m.Batch == nil {
		yield(m)
		return
	}
	for _, e := range m.Batch {
		if !yield(e) {
			return
		}
	}
}

// Append appends the JSON text of m to b and returns the longer slice. The text has no raw newline,
// so it is a line of the stdio framing.
func (m *Message) Append(b []byte) []byte {
	if m.Batch != nil {
		b = append(b, '[')
		for i, e := range m.Batch {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.Append(b)
		}
		return append(b, ']')
	}
	value, b := m.AppendHead(b)
	return append(appendLine(b, value), '}')
}

// Text returns the JSON text of m, like Append.
func (m *Message) Text() []byte {
	var buf [256]byte
	value, head := m.AppendHead(buf[:0])
	if value == nil || hasBreak(value) {
		return m.Append(make([]byte, 0, m.Size()))
	}
	return bytes.Join([][]byte{head, value, {'}'}}, nil) // which does not zero the memory first
}

// AppendHead is Append up to the value of the largest member: params, result or error, which comes last, so
// that [DecodeOwn] can take it unread. After the value, which may have raw newlines, '}' ends the text. An
// array has neither: then AppendHead appends nothing.
func (m *Message) AppendHead(b []byte) (value json.RawMessage, head []byte) {
	if m.Batch != nil {
		return nil, b
	}
	b = append(b, `{"jsonrpc":"2.0"`...)
	if !m.ID.IsZero() {
		b = append(append(b, `,"id":`...), m.ID.raw...)
	}
	if m.Method != "" {
		b = append(b, `,"method":`...)
		b, _ = jsontext.AppendQuote(b, m.Method) // as in Quote
	}
	b = appendLine(b, m.Extra)
	switch {
	case m.Params != nil:
		return m.Params, append(b, `,"params":`...)
	case m.Result != nil:
		return m.Result, append(b, `,"result":`...)
	case m.Error != nil:
		return m.Error, append(b, `,"error":`...)
	}
	return nil, b
}

// Size returns the approximate memory of m in bytes, for bounds on queues.
func (m *Message) Size() int {
	n := 128 + len(m.Params) + len(m.Result) + len(m.Error) + len(m.Extra)
	for _, e := range m.Batch {
		n += e.Size()
	}
	return n
}

// Len returns the length of the JSON text of m. It is the length of what Append appends, unless the
// method needs escapes.
func (m *Message) Len() int {
	if m.Batch != nil {
		n := 1 + max(len(m.Batch), 1)
		for _, e := range m.Batch {
			n += e.Len()
		}
		return n
	}
	n := len(`{"jsonrpc":"2.0"}`) + len(m.Extra)
	if !m.ID.IsZero() {
		n += len(`,"id":`) + len(m.ID.raw)
	}
	if m.Method != "" {
		n += len(`,"method":""`) + len(m.Method)
	}
	switch {
	case m.Params != nil:
		n += len(`,"params":`) + len(m.Params)
	case m.Result != nil:
		n += len(`,"result":`) + len(m.Result)
	case m.Error != nil:
		n += len(`,"error":`) + len(m.Error)
	}
	return n
}

// appendLine appends JSON text with its line breaks replaced by spaces. JSON does not allow line
// breaks in strings, and elsewhere they have no meaning.
func appendLine(b, text []byte) []byte {
	if !hasBreak(text) {
		return append(b, text...)
	}
	for {
		i := bytes.IndexAny(text, "\n\r")
		if i < 0 {
			return append(b, text...)
		}
		b = append(append(b, text[:i]...), ' ')
		text = text[i+1:]
	}
}

// hasBreak reports whether text has line breaks. Two calls of IndexByte are many times as fast as
// one IndexAny.
func hasBreak(text []byte) bool {
	return bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0
}
