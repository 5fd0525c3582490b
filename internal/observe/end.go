package observe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An End is how something has ended.
type End struct {
	At      time.Time // zero if nobody has looked at the clock
	Took    time.Duration
	Outcome Outcome
	Code    int    // of the JSON-RPC error that a call or a request was answered with; zero for none
	Cause   string // of what did not end well: one of few words, fit for a label; "" for none
	Event   string // as in the error that the client got, and in the log; "" for none
}

// An Outcome is one of few words for how something has ended.
type Outcome string

// Outcomes.
const (
	OK              Outcome = "ok"
	Failed          Outcome = "error"            // a call: answered with an error; an upstream: it did not start, or died
	ToolFailed      Outcome = "tool_error"       // a call of a tool: answered with a result that says that it failed
	Cancelled       Outcome = "cancelled"        // nobody waits for the answer any more
	Closed          Outcome = "closed"           // the connection was
	Timeout         Outcome = "timeout"          // there was no answer in time
	Overloaded      Outcome = "overloaded"       // there was no room
	InvalidResponse Outcome = "invalid_response" // the answer could not be used
)

// Outcomes are all there are.
var Outcomes = [...]Outcome{OK, Failed, ToolFailed, Cancelled, Closed, Timeout, Overloaded, InvalidResponse}

// outcomes are those of the errors that the proxy and hosts make, by their reasons.
var outcomes = map[string]Outcome{
	jsonrpc.ReasonClosed:          Closed,
	jsonrpc.ReasonTimeout:         Timeout,
	jsonrpc.ReasonOverloaded:      Overloaded,
	jsonrpc.ReasonInvalidResponse: InvalidResponse,
	jsonrpc.ReasonScope:           Failed,
}

// IsOurs reports whether a reason is one of those that the proxy and hosts give. The data of
// another error is a server's own, and may say anything.
func IsOurs(reason string) bool { return outcomes[reason] != "" }

// Other is what stands for all that has no word of its own, in the semantic conventions for
// MCP.
const Other = "_OTHER"

// MethodOf is the method of a [Call] or [Request] in their words.
func MethodOf(method string) string {
	if method == "other" {
		return Other
	}
	return method
}

// CallError is the error.type of a call of a client, by these conventions: "" where nothing
// went wrong, what label makes of the code of a JSON-RPC error, tool_error for a tool whose
// result says that it failed, and where there is no code the outcome.
func (e End) CallError(label func(code int) string) string {
	if e.Code != 0 {
		return label(e.Code)
	}
	return e.Outcome.word()
}

// RequestError is that of a request to an upstream. If that has not answered, the error is
// ours, and its code says nothing.
func (e End) RequestError(label func(code int) string) string {
	if e.Outcome == Failed {
		return e.CallError(label)
	}
	return e.Outcome.word()
}

// SessionError is that of a session, and of a server: the class of the cause of its end.
func (e End) SessionError() string {
	if e.Outcome == OK {
		return ""
	}
	return cmp.Or(e.Cause, e.Outcome.word())
}

// word is an outcome as an error.type.
func (o Outcome) word() string {
	switch o {
	case OK:
		return ""
	case Failed:
		return Other
	}
	return string(o)
}

// EndOf is how a request that began then has ended just now; a nil answer is that of a
// cancelled one.
func EndOf(began time.Time, answer *jsonrpc.Message) End {
	now := time.Now()
	return EndAt(now, now.Sub(began), answer)
}

// EndAt is EndOf of a request that has ended then, and took so long.
func EndAt(at time.Time, took time.Duration, answer *jsonrpc.Message) End {
	end := End{At: at, Took: took, Outcome: OK}
	switch {
	case answer == nil:
		end.Outcome = Cancelled
	case answer.Error != nil:
		end.failed(answer.Error)
	case SaysFailed(answer.Result):
		end.Outcome = ToolFailed
	}
	return end
}

func (e *End) failed(with json.RawMessage) {
	e.Outcome = Failed
	var told struct {
		Code int
		Data jsonrpc.ErrorData
	}
	_ = json.Unmarshal(with, &told) // one of an upstream's own may have any data
	e.Code = told.Code
	if !IsOurs(told.Data.Reason) {
		return
	}
	e.Outcome = outcomes[told.Data.Reason]
	if e.Outcome == Closed {
		e.Cause = jsonrpc.ClassOf(told.Data.Cause).String()
	}
	if jsonrpc.IsEvent(told.Data.Event) {
		e.Event = told.Data.Event
	}
}

// SaysFailed reports whether a result has the member isError, and that is true: results of
// tools alone have it. Nearly all are told apart by a search for these letters, since inside
// of a string the quotes would be escaped; only a result that has them, and true after
// them, is read.
func SaysFailed(result json.RawMessage) bool {
	for rest := []byte(result); ; {
		at := bytes.Index(rest, endOfKey)
		if at < 0 {
			return false
		}
		before := rest[:at]
		rest = bytes.TrimLeft(rest[at+len(endOfKey):], " \t\r\n:")
		if bytes.HasSuffix(before, startOfKey) && bytes.HasPrefix(rest, []byte("true")) {
			break
		}
	}
	value, err := jsonrpc.Member(result, "isError")
	return err == nil && string(value) == "true"
}

// The key is searched for from its only capital on: quotes are everywhere, capitals are not.
var startOfKey, endOfKey = []byte(`"is`), []byte(`Error"`)
