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
	ID     ID              // zero in a notification, and in an error that answers nothing known
	Method string          // "" in a response
	Params json.RawMessage // nil if absent
	Result json.RawMessage // nil in an error response
	Error  json.RawMessage // nil in a result response

	// Extra is the rest of the envelope, members that JSON-RPC does not
	// define, as they came: `,"x":1,"y":[]`. Nil if there are none.
	Extra []byte

	// Batch holds the elements of an array, which exists in protocol version
	// 2025-03-26 alone. It is nil in a single message.
	Batch []*Message

	// Related is the id, on the Conn that carries this message, of the request
	// that this message belongs to; zero if unknown. It never travels to a
	// client or a server.
	Related ID

	// Notes are what a reader of Params has found in them, for the next one who has
	// this message. They never travel, and mean nothing here.
	Notes any

	// Headers are what the sender repeated of the params beside a request, by
	// names in lower case: "mcp-param-region". Nil if the transport has no room
	// for that; else, if nothing was repeated, empty. They never travel.
	Headers map[string][]string

	// From is who has sent a message, if the front end knows that of each; nil: whoever
	// the session is of. It never travels.
	From *identity.Identity

	// Trace is which trace the HTTP request was part of that brought a message; nil: it did
	// not say, or nobody wants to know. It never travels.
	Trace *TraceContext

	// Refused is set in an error that a policy has answered with: a front end with
	// statuses uses its own. It never travels.
	Refused *identity.Refusal
}

// A TraceContext says which trace a message is part of, as W3C Trace Context and W3C Baggage
// write it in headers. Nobody has checked what it holds.
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

// NewError returns the response that answers id with err. With a zero id the
// member is left out, since the commonest client refuses an id of null.
func NewError(id ID, err *Error) *Message {
	return &Message{ID: id, Error: err.Raw()}
}

// Failure returns a response with err, whose id is still to be set.
func Failure(err *Error) *Message { return &Message{Error: err.Raw()} }

// IsRequest reports whether m asks for a response.
func (m *Message) IsRequest() bool { return m.Method != "" && !m.ID.IsZero() }

// IsNotification reports whether m is a notification.
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID.IsZero() }

// IsResponse reports whether m is a result or an error.
func (m *Message) IsResponse() bool { return m.Result != nil || m.Error != nil }

// Append appends the JSON text of m to b and returns the longer slice. The text
// holds no raw newline, so that it is a line of the stdio framing.
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
	value, b := m.appendHead(b)
	return append(appendLine(b, value), '}')
}

// appendHead appends the text of m up to its largest member, which is params,
// result or error and stands last, so that [DecodeOwn] can take it unread.
func (m *Message) appendHead(b []byte) (value json.RawMessage, head []byte) {
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

// Size returns about how many bytes m occupies, for bounds on queues.
func (m *Message) Size() int {
	n := 128 + len(m.Params) + len(m.Result) + len(m.Error) + len(m.Extra)
	for _, e := range m.Batch {
		n += e.Size()
	}
	return n
}

// Len returns how many bytes the JSON text of m has: as many as Append appends, but for a
// method that has to be escaped.
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

// appendLine appends JSON text with its line breaks made spaces: inside strings
// JSON allows none, elsewhere they mean nothing.
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

// hasBreak reports whether text has line breaks. Twice IndexByte is many times as
// fast as once IndexAny.
func hasBreak(text []byte) bool {
	return bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0
}
