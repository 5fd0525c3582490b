package observe

import (
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Tap wraps a Conn, so that operators can watch its messages from then on.
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
	Side     string // SideClient or SideUpstream
	Session  string // as in the log
	Upstream string // "" on the side of clients

	// Who returns the client and principal that sent a message, or, for a nil message, those of the session. Nil if
	// they are not known.
	Who func(m *jsonrpc.Message) (client, principal string)

	// Away says that messages received here leave the proxy, as at the other end of a link.
	Away bool
}

// A Passed is a message as a tap shows it: one line of JSON. A client's request passes twice: from the client, and to
// the upstream.
type Passed struct {
	Time time.Time `json:"time"`
	Side string    `json:"side"`
	Way  string    `json:"way"`

	Session   string `json:"session"`            // as in the log
	Client    string `json:"client,omitzero"`    // the client's name for itself, if known
	Principal string `json:"principal,omitzero"` // of the sender; not known on a host
	Upstream  string `json:"upstream,omitzero"`  // on its side; on the side of clients the upstream that an error is about

	Kind   string          `json:"kind"`
	Method string          `json:"method,omitzero"` // of a response: of its request, if the tap has seen that
	ID     json.RawMessage `json:"id,omitempty"`    // as in the message: each side has its own ids
	Tool   string          `json:"tool,omitzero"`   // the called tool by its name on that side; of a response: of its request
	Bytes  int             `json:"bytes"`           // of the message as JSON
	TookMs float64         `json:"tookMs,omitzero"` // of a response: since its request passed
	Error  *PassedError    `json:"error,omitempty"` // of a response that reports a failure

	// Of is the id of the request on this side that the message belongs to, if known. It comes only with Message.
	Of json.RawMessage `json:"of,omitempty"`

	// Message is the message itself, if requested. A recording has it unchanged; else everything that looks like a
	// secret is redacted.
	Message json.RawMessage `json:"message,omitempty"`
}

// The sides, ways and kinds of a [Passed].
const (
	SideClient   = "client"   // between a client and its session
	SideUpstream = "upstream" // between a session and an upstream

	In  = "in" // to the proxy
	Out = "out"

	KindRequest      = "request"
	KindResponse     = "response"
	KindNotification = "notification"
)

// A PassedError is an error as a tap shows it.
type PassedError struct {
	Code   int    `json:"code,omitzero"`   // of JSON-RPC; absent if the result of a tool says isError
	Reason string `json:"reason,omitzero"` // tool_error for such a result; else the data.reason of an error of the proxy
	Event  string `json:"event,omitzero"`  // the data.event of an error of the proxy
}

// LeftOut replaces lines that were dropped because of the rate or a slow reader.
type LeftOut struct {
	LeftOut int `json:"leftOut"` // lines
}

// A Recording is the first line of a recording. A line for each message follows, and last a RecordingEnd. A recording
// without a RecordingEnd is incomplete.
type Recording struct {
	Recording int       `json:"recording"` // the version of the form: 1
	Version   string    `json:"version"`   // of mcp-proxy
	Began     time.Time `json:"began"`
}

// A RecordingEnd is the last line of a recording.
type RecordingEnd struct {
	End      bool   `json:"end"`            // true if no message is missing
	Messages int    `json:"messages"`       // lines between the first and this one
	Error    string `json:"error,omitzero"` // why messages are missing
}
