package observe

import (
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Tap wraps a Conn, so that operators can look at its messages from then on.
type Tap func(Point, jsonrpc.Conn) jsonrpc.Conn

// Conn returns c, wrapped unless t is nil.
func (t Tap) Conn(at Point, c jsonrpc.Conn) jsonrpc.Conn {
	if t == nil {
		return c
	}
	return t(at, c)
}

// A Point is where messages pass.
type Point struct {
	Side     Side
	Session  string // as in the log
	Upstream string // on its side

	// Who returns the sender of a message, or, of a nil message, whose session this is. Nil if that
	// is not known.
	Who func(m *jsonrpc.Message) (client, principal string)

	// Away is whether messages received here leave the proxy, as at the other end of a link.
	Away bool
}

// A Passed is a message as a tap shows it: one line of JSON. A client's request passes twice: from the client, and to
// the upstream that answers it.
type Passed struct {
	Time time.Time `json:"time"`
	Side Side      `json:"side"`
	Way  Way       `json:"way"`

	Session   string `json:"session"`            // as in the log
	Client    string `json:"client,omitzero"`    // what the client calls itself, as far as is known
	Principal string `json:"principal,omitzero"` // whose message it is; a host does not know
	Upstream  string `json:"upstream,omitzero"`  // on its side; on that of the client the one that an error is about

	Kind   Kind            `json:"kind"`
	Method string          `json:"method,omitzero"` // of a response that of its request, if the tap has seen that
	ID     json.RawMessage `json:"id,omitempty"`    // as it stands in the message: the proxy has other ids on each side
	Tool   string          `json:"tool,omitzero"`   // that is called, by its name on that side; of a response that of its request
	Bytes  int             `json:"bytes"`           // of the message as JSON
	TookMs float64         `json:"tookMs,omitzero"` // of a response: since its request passed
	Error  *PassedError    `json:"error,omitempty"` // of a response that is no success

	// Of is the id of the request on this side that the message belongs to, if known. It is there only with
	// Message.
	Of json.RawMessage `json:"of,omitempty"`

	// Message is the message itself, if requested: unchanged in a recording, else without what looks like a
	// secret.
	Message json.RawMessage `json:"message,omitempty"`
}

// A Side is where a message passes.
type Side string

// A Way is where a message goes.
type Way string

// A Kind is what a message is.
type Kind string

// The sides, ways and kinds.
const (
	SideClient   Side = "client"   // between a client and its session
	SideUpstream Side = "upstream" // between a session and an upstream

	In  Way = "in" // to the proxy
	Out Way = "out"

	KindRequest      Kind = "request"
	KindResponse     Kind = "response"
	KindNotification Kind = "notification"
)

// A PassedError is an error as a tap shows it.
type PassedError struct {
	Code   int    `json:"code,omitzero"`   // of JSON-RPC; absent for the result of a tool that says isError
	Reason string `json:"reason,omitzero"` // tool_error for that; else of an error that the proxy has made, as in its data
	Event  string `json:"event,omitzero"`  // likewise
}

// LeftOut takes the place of lines that were dropped, because of the rate or a slow reader.
type LeftOut struct {
	LeftOut int `json:"leftOut"` // lines
}

// A Recording is the first line of a recording. Then comes a line for each message, and last a RecordingEnd. Without
// that the recording is incomplete.
type Recording struct {
	Recording int       `json:"recording"` // the version of the form: 1
	Version   string    `json:"version"`   // of mcp-proxy
	Began     time.Time `json:"began"`
}

// A RecordingEnd is the last line of a recording.
type RecordingEnd struct {
	End      bool   `json:"end"`            // true: nothing is missing before it
	Messages int    `json:"messages"`       // lines before it, without the first
	Error    string `json:"error,omitzero"` // why it is not whole
}
