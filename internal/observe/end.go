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
	At      time.Time // zero if not measured
	Took    time.Duration
	Outcome Outcome
	Code    int    // of the JSON-RPC error that answered it; zero for none
	Cause   string // of a failure: one of a few words, fit for a label; "" for none
	Event   string // its id in the client's error and in the log; "" for none
}

// An Outcome is how something ended, in one word.
type Outcome string

// Outcomes.
const (
	OK              Outcome = "ok"
	Failed          Outcome = "error"      // a request: answered with an error; an upstream: failed to start, or died
	ToolFailed      Outcome = "tool_error" // answered with a tool's result that says isError
	Cancelled       Outcome = "cancelled"
	Closed          Outcome = "closed" // the connection was lost
	Timeout         Outcome = "timeout"
	Overloaded      Outcome = "overloaded"       // a limit was reached
	InvalidResponse Outcome = "invalid_response" // the answer was unusable
)

// Outcomes are all outcomes.
var Outcomes = [...]Outcome{OK, Failed, ToolFailed, Cancelled, Closed, Timeout, Overloaded, InvalidResponse}

// outcomes are the outcomes of the proxy's own errors by reason.
var outcomes = map[string]Outcome{
	jsonrpc.ReasonClosed:          Closed,
	jsonrpc.ReasonTimeout:         Timeout,
	jsonrpc.ReasonOverloaded:      Overloaded,
	jsonrpc.ReasonInvalidResponse: InvalidResponse,
	jsonrpc.ReasonScope:           Failed,
}

// IsOurs reports whether the proxy makes errors with that reason. The data of other errors is the server's, and can be
// anything.
func IsOurs(reason string) bool { return outcomes[reason] != "" }

// Other is the catch-all value of the semantic conventions for MCP.
const Other = "_OTHER"

// MethodOf returns the method of a [Request] or [Call] as these conventions name it.
func MethodOf(method string) string {
	if method == "other" {
		return Other
	}
	return method
}

// RequestError returns the error.type of a client's request in these conventions: "" for success, the label of a JSON-RPC
// code, tool_error for a tool that reports a failure, else the outcome.
func (e End) RequestError(label func(code int) string) string {
	if e.Code != 0 {
		return label(e.Code)
	}
	return e.Outcome.word()
}

// CallError returns the error.type of a call to an upstream. If the upstream has not answered, the proxy made the error,
// and its code says nothing.
func (e End) CallError(label func(code int) string) string {
	if e.Outcome == Failed {
		return e.RequestError(label)
	}
	return e.Outcome.word()
}

// SessionError returns the error.type of a session or a server: the class of its cause.
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

// EndOf returns the end of a request that began at that time and ends now. Without an answer it was cancelled.
func EndOf(began time.Time, answer *jsonrpc.Message) End {
	now := time.Now()
	return EndAt(now, now.Sub(began), answer)
}

// EndAt returns the end of a request that ended at that time, after took. Without an answer it was cancelled.
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
	_ = json.Unmarshal(with, &told) // an upstream's own error may have any data
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

// SaysFailed reports whether a result has isError: true, as only results of tools have. A search for these letters
// decides most results without parsing them: inside a string the quotes would be escaped. Only a result that has them
// with true behind them is parsed.
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
