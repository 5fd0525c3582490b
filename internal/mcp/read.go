package mcp

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Member is a value in the params of a message that decides where the message goes, or
// that differs from hop to hop.
type Member byte

// The members. Which of them a message may have says the row of its method.
const (
	Key          Member = iota // what the row calls that
	InMeta                     // _meta
	Cursor                     // of a list
	Task                       // a request that asks to become a task has it
	Arguments                  // of a tool, some of which headers may repeat
	Responses                  // inputResponses: of a request that was answered with questions
	RequestState               // requestState, likewise
	Status                     // of the task that a notification is about

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

// MaxRouted bounds what says where a message goes: names, URIs, ids of tasks, cursors and
// progress tokens, in bytes as they are written. What is longer is not read: it is a fault,
// [ErrTooLong].
const MaxRouted = 8 << 10

// ErrTooLong is the fault of a member that is longer than [MaxRouted].
var ErrTooLong = errors.New("is longer than 8 KiB")

// The keys of members, beside those in params themselves.
var (
	metaKeys = []string{"progressToken", KeyRelatedTask, KeyVersion, KeyClientInfo, KeyCapabilities, KeyLogLevel, KeySubscription}
	refKeys  = []string{"type", "name", "uri"}
	taskKeys = []string{"taskId"}
)

// Notes are what was found in the params of a message when it arrived, in one pass. They
// alias the params.
type Notes struct {
	Method *Method

	params json.RawMessage
	at     [members]jsonrpc.Span
	faults map[Member]error // nil for none
	broken error            // params are not JSON
}

// Read returns the notes that a message came with, or reads its params. Who owns a
// message may leave the notes with it, in [jsonrpc.Message.Notes].
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
	if string(n.Raw(Token)) == "null" {
		n.at[Token] = jsonrpc.Span{}
	}
	n.findIn(RelatedTask, taskKeys, RelatedTaskID)
	return n
}

// findIn notes the members of a member; first is that of the first key.
func (n *Notes) findIn(of Member, keys []string, first Member) {
	if n.Has(of) && n.faults[of] == nil {
		n.find(n.at[of], keys, func(i int) Member { return first + Member(i) })
	}
}

// find notes where the values of keys stand among the members of the object that in
// covers.
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

// IsTooLong reports whether a value that routes a message is longer than [MaxRouted]. Quotes
// do not count.
func IsTooLong(value json.RawMessage) bool { return len(value) > MaxRouted+len(`""`) }

// At returns where a member stands in params, the zero Span if it is absent.
func (n *Notes) At(m Member) jsonrpc.Span { return n.at[m] }

// Has reports whether a member is there.
func (n *Notes) Has(m Member) bool { return !n.at[m].IsZero() }

// Raw returns a member as it stands, nil if it is absent.
func (n *Notes) Raw(m Member) json.RawMessage { return n.at[m].Of(n.params) }

// Text returns the value of a member that is a string, false if it is none.
func (n *Notes) Text(m Member) (string, bool) { return jsonrpc.Unquote(n.Raw(m)) }

// ID returns the id that a member is. It is false if it is none, or ambiguous.
func (n *Notes) ID(m Member) (jsonrpc.ID, bool) {
	if n.Err(m) != nil {
		return jsonrpc.ID{}, false
	}
	return jsonrpc.ParseID(n.Raw(m))
}

// Err returns what is wrong with one of these members: it occurs twice, or in another
// case, so that another reader of params could read something else; or it is too long.
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

// Claim returns what the message says in _meta about its version and its sender. It is an
// error if two readers could read two things.
func (n *Notes) Claim() (Meta, error) {
	version, _ := n.Text(Version)
	return Meta{Claimed: n.Has(Version), Version: version, Capabilities: n.Raw(Capabilities),
		ClientInfo: n.Raw(ClientInfo), LogLevel: n.Raw(LogLevel)}, n.Err(InMeta, Version, Capabilities, ClientInfo, LogLevel)
}

// KeyOf returns the member of params that says what a message is about; false if it is no
// string, or can be read in two ways.
func KeyOf(m *jsonrpc.Message) (string, bool) {
	notes := Read(m)
	key, ok := notes.Text(Key)
	return key, ok && notes.Err(Key) == nil
}
