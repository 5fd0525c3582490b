package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Member is a member of the params of a message that decides the route of the message, or that
// differs from hop to hop.
type Member byte

// The members. The row of its method says which of them a message may have.
const (
	Key          Member = iota // the member that Method.Key names
	InMeta                     // _meta
	Cursor                     // of a list
	Task                       // of a request that asks to become a task
	Arguments                  // of a tool; headers may repeat some of them
	Responses                  // inputResponses: the answers to questions in a result
	RequestState               // requestState, likewise
	Status                     // of the task that a notification is about
	ParamToken                 // progressToken of a method that we do not know; null is none

	RefType // of Key, if that is a reference
	RefName
	RefURI

	Token // of _meta; a token of null is none
	RelatedTask
	Version
	ClientInfo
	Capabilities
	LogLevel
	Subscription

	RelatedTaskID // of RelatedTask

	members
)

// MaxRouted bounds the values that decide a route: names, URIs, task ids, cursors and progress
// tokens, in bytes of JSON text. Longer ones are not read: they have the fault [ErrTooLong].
const MaxRouted = 8 << 10

// ErrTooLong is the fault of a member that is longer than [MaxRouted].
var ErrTooLong = errors.New("is longer than 8 KiB")

// Keys of members that are not in params itself.
var (
	metaKeys = []string{"progressToken", KeyRelatedTask, KeyVersion, KeyClientInfo, KeyCapabilities, KeyLogLevel, KeySubscription}
	refKeys  = []string{"type", "name", "uri"}
	taskKeys = []string{"taskId"}
)

// Notes are the positions of members in the params of a message. They are found in one pass when
// the message arrives, and alias the params.
type Notes struct {
	Method *Method

	params json.RawMessage
	at     [members]jsonrpc.Span
	faults map[Member]error // nil for none
	broken error            // params are not JSON
}

// Read returns the notes that a message came with, or reads its params. The owner of a message may
// store the notes in [jsonrpc.Message.Notes].
func Read(m *jsonrpc.Message) *Notes {
	if n, ok := m.Notes.(*Notes); ok && isSame(n.params, m.Params) {
		return n
	}
	return ReadParams(m.Method, m.Params)
}

// isSame reports whether a and b are the same bytes in the same place.
func isSame(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// ReadParams reads the params of a method.
func ReadParams(method string, params json.RawMessage) *Notes {
	n := &Notes{Method: MethodOf(method), params: params}
	n.find(jsonrpc.Span{}, n.Method.keys, func(i int) Member { return n.Method.reads[i] })
	if n.Method.Owner == ByRef {
		n.findIn(Key, refKeys, RefType)
	}
	n.findIn(InMeta, metaKeys, Token)
	for _, token := range []Member{Token, ParamToken} {
		if string(n.Raw(token)) == "null" {
			n.at[token] = jsonrpc.Span{}
		}
	}
	n.findIn(RelatedTask, taskKeys, RelatedTaskID)
	return n
}

// findIn notes the members of the member of. first is the Member of the first key.
func (n *Notes) findIn(of Member, keys []string, first Member) {
	if n.Has(of) && n.faults[of] == nil {
		n.find(n.at[of], keys, func(i int) Member { return first + Member(i) })
	}
}

// find notes the positions of the values of keys among the members of the object that in covers.
func (n *Notes) find(in jsonrpc.Span, keys []string, member func(i int) Member) {
	err := jsonrpc.Search(n.params, in, keys, func(i int, value jsonrpc.Span, bad error) {
		m := member(i)
		if bad == nil && n.Method.routesBy(m) && IsTooLong(value.Of(n.params)) {
			bad = fmt.Errorf("%q %w", keys[i], ErrTooLong)
		}
		if bad == nil {
			n.at[m] = value
			return
		}
		if n.faults == nil {
			n.faults = make(map[Member]error)
		}
		n.faults[m] = bad
	})
	if err != nil {
		n.broken = err
	}
}

// IsTooLong reports whether a value is longer than [MaxRouted], not counting quotes.
func IsTooLong(value json.RawMessage) bool { return len(value) > MaxRouted+len(`""`) }

// At returns the position of a member in params, the zero Span if it is absent.
func (n *Notes) At(m Member) jsonrpc.Span { return n.at[m] }

// Has reports whether a member is present.
func (n *Notes) Has(m Member) bool { return !n.at[m].IsZero() }

// Raw returns the JSON text of a member, nil if it is absent.
func (n *Notes) Raw(m Member) json.RawMessage { return n.at[m].Of(n.params) }

// Text returns the value of a member, false if it is not a string.
func (n *Notes) Text(m Member) (string, bool) { return jsonrpc.Unquote(n.Raw(m)) }

// ID returns the value of a member that is an id, false if it is none, or is ambiguous.
func (n *Notes) ID(m Member) (jsonrpc.ID, bool) {
	if n.Err(m) != nil {
		return jsonrpc.ID{}, false
	}
	return jsonrpc.ParseID(n.Raw(m))
}

// Err returns the first fault of these members: a duplicate or a key in another case, which other
// readers of the params could read differently, or excessive length.
func (n *Notes) Err(of ...Member) error {
	if n.broken != nil {
		return n.broken
	}
	for _, m := range of {
		if err := n.faults[m]; err != nil {
			return err
		}
	}
	return nil
}

// MayHave reports whether JSON text may have a key, literally or with escapes for a letter or a slash.
func MayHave(text json.RawMessage, key []byte) bool {
	return bytes.Contains(text, key) || bytes.Contains(text, escapedASCII) || bytes.Contains(text, escapedSlash)
}

var (
	escapedASCII = []byte(`\u00`)
	escapedSlash = []byte(`\/`)
)

// Missing returns the error for a member that must be a string.
func Missing(key string) error { return fmt.Errorf("%q is missing or not a string", key) }

// Claim returns what the message says in _meta about its version and its sender. It returns an
// error if that is ambiguous.
func (n *Notes) Claim() (Meta, error) {
	version, _ := n.Text(Version)
	return Meta{Claimed: n.Has(Version), Version: version, Capabilities: n.Raw(Capabilities),
		ClientInfo: n.Raw(ClientInfo), LogLevel: n.Raw(LogLevel)}, n.Err(InMeta, Version, Capabilities, ClientInfo, LogLevel)
}

// KeyOf returns the member of params that says what a message is about; false if it is not a
// string, or is ambiguous.
func KeyOf(m *jsonrpc.Message) (string, bool) {
	notes := Read(m)
	key, ok := notes.Text(Key)
	return key, ok && notes.Err(Key) == nil
}
