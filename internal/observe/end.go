package observe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An End is how something ended.
type End struct {
	At      time.Time // zero if nobody has looked at the clock
	Took    time.Duration
	Outcome Outcome
	Code    int    // of the JSON-RPC error that a call or a request was answered with; zero for none
	Cause   string // of what did not end well: one of few words, fit for a label; "" for none
	Event   string // as in the error that the client got, and in the log; "" for none
}

// An Outcome is how something ended, in one word.
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

// Outcomes are all outcomes.
var Outcomes = [...]Outcome{OK, Failed, ToolFailed, Cancelled, Closed, Timeout, Overloaded, InvalidResponse}

// outcomes are the outcomes of our own errors, by reason.
var outcomes = map[string]Outcome{
	jsonrpc.ReasonClosed:          Closed,
	jsonrpc.ReasonTimeout:         Timeout,
	jsonrpc.ReasonOverloaded:      Overloaded,
	jsonrpc.ReasonInvalidResponse: InvalidResponse,
	jsonrpc.ReasonScope:           Failed,
}

// IsOurs reports whether a reason is one of ours. The data of other errors is a server's own, and may hold anything.
func IsOurs(reason string) bool { return outcomes[reason] != "" }

// Other is the catch-all value of the semantic conventions for MCP.
const Other = "_OTHER"

// MethodOf is the method of a [Request] or [Call] in these conventions.
func MethodOf(method string) string {
	if method == "other" {
		return Other
	}
	return method
}

// RequestError is the error.type of a client's call in these conventions: "" for success, the label of a JSON-RPC code,
// tool_error for a tool that reports a failure, else the outcome.
func (e End) RequestError(label func(code int) string) string {
	if e.Code != 0 {
		return label(e.Code)
	}
	return e.Outcome.word()
}

// CallError is the error.type of a request to an upstream. If the upstream has not answered, the error is ours, and
// its code says nothing.
func (e End) CallError(label func(code int) string) string {
	if e.Outcome == Failed {
		return e.RequestError(label)
	}
	return e.Outcome.word()
}

// SessionError is the error.type of a session or a server: the class of its cause.
func (e End) SessionError() string {
	if e.Outcome == OK {
		return ""
	}
	return cmp.Or(e.Cause, e.Outcome.word())
}

// word returns an outcome as an error.type.
func (o Outcome) word() string {
	switch o {
	case OK:
		return ""
	case Failed:
		return Other
	}
	return string(o)
}

// EndOf returns the end of a request that began at that time and ends now. A nil answer means cancelled.
func EndOf(began time.Time, answer *jsonrpc.Message) End {
	now := time.Now()
	return EndAt(now, now.Sub(began), answer)
}

// EndAt is EndOf for a request that ended at that time, after took.
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
		e.Cause = told.Data.Cause.Kind.String()
	}
	if jsonrpc.IsEvent(told.Data.Event) {
		e.Event = told.Data.Event
	}
}

// SaysFailed reports whether a result has isError: true, as only results of tools have. Most results are decided by a
// search for these letters: inside a string the quotes would be escaped. A result is parsed only if they are found with
// true behind them.
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

// The search begins at the only capital of the key: quotes are everywhere, capitals are not.
var startOfKey, endOfKey = []byte(`"is`), []byte(`Error"`)
