package jsonrpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Error codes of JSON-RPC 2.0 and of MCP that the proxy itself sends.
const (
	CodeParseError       = -32700
	CodeInvalidRequest   = -32600
	CodeMethodNotFound   = -32601
	CodeInvalidParams    = -32602
	CodeInternalError    = -32603
	CodeConnectionClosed = -32000 // the client's own connection is ending
	CodeResourceNotFound = -32002
	CodeRequestCancelled = -32800 // ends a cancelled POST of the 2025 era
)

// An Error is the error member of a response that the proxy makes itself.
// Errors of upstreams are forwarded as bytes and never become an Error.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Raw returns the JSON text of e.
func (e *Error) Raw() json.RawMessage {
	text, err := json.Marshal(e)
	if err != nil { // Data is one of our own structs: this is a broken invariant
		panic(fmt.Sprintf("jsonrpc: marshal error object: %v", err))
	}
	return text
}

// Reasons in [ErrorData].
const (
	ReasonClosed          = "connection_closed"
	ReasonTimeout         = "timeout"
	ReasonOverloaded      = "overloaded"
	ReasonInvalidResponse = "invalid_response"
)

// ErrorData is the data of every error that the proxy makes because of the
// state of a connection. Cause is short and structured ("signal: killed",
// "exit status 3", "link lost"): never stderr, a path, a URL or a Go error.
type ErrorData struct {
	Reason    string `json:"reason"`
	Upstream  string `json:"upstream,omitempty"`
	Cause     string `json:"cause,omitempty"`
	Phase     Phase  `json:"phase"`
	Retryable bool   `json:"retryable"`
}

// A Phase tells how far a request had come when it failed.
type Phase string

// A request that was not sent had no effect and may be sent again; one in
// flight may have run.
const (
	NotSent  Phase = "not_sent"
	InFlight Phase = "in_flight"
)

// ConnectionClosed returns the one connection-closed error. The code is
// [CodeInternalError] when one upstream of a living client is gone, and
// [CodeConnectionClosed] when the receiver's own connection ends; upstream and
// cause may then be "".
func ConnectionClosed(code int, upstream, cause string, phase Phase) *Error {
	return &Error{code, "Connection closed", ErrorData{ReasonClosed, upstream, cause, phase, phase == NotSent}}
}

// TimedOut returns the error of a request that its upstream did not answer in
// time. A timeout is not a close.
func TimedOut(upstream string) *Error {
	return &Error{CodeInternalError, "Request timed out", ErrorData{ReasonTimeout, upstream, "", InFlight, false}}
}

// Overloaded returns the error of a request for which there was no room.
func Overloaded(upstream string) *Error {
	return &Error{CodeInternalError, "Too many requests in flight", ErrorData{ReasonOverloaded, upstream, "", NotSent, true}}
}

// InvalidResponse returns the error of a request whose reply was unusable.
func InvalidResponse(upstream, cause string) *Error {
	return &Error{CodeInternalError, "Invalid response from upstream", ErrorData{ReasonInvalidResponse, upstream, cause, InFlight, false}}
}

// ErrClosed is what every end of a connection is: errors.Is(err, ErrClosed)
// holds for an end on this side and on the other, and the wrapped cause is for
// the log alone.
var ErrClosed = errors.New("connection closed")

// A ClosedError is the end of a connection to an upstream, with what the other
// side of a link needs to say about it. It satisfies errors.Is(err, ErrClosed).
type ClosedError struct {
	Cause string // short and structured, as in [ErrorData]

	// Delivered is false only if nothing that was sent here ever reached the
	// upstream, so that its requests are [NotSent].
	Delivered bool

	Err error // what happened, for the log; may be nil
}

// Error implements error.
func (e *ClosedError) Error() string {
	if e.Err == nil {
		return "connection closed: " + e.Cause
	}
	return "connection closed: " + e.Cause + ": " + e.Err.Error()
}

// Is makes a ClosedError an [ErrClosed].
func (e *ClosedError) Is(target error) bool { return target == ErrClosed }

// Unwrap returns what happened.
func (e *ClosedError) Unwrap() error { return e.Err }

// CauseOtherEra is the cause of a stream that ended, before its initialize was
// answered, because its upstream turned out to speak the other era. A stream that
// is opened now will be translated, so whoever opened it opens it once more.
const CauseOtherEra = "speaks another era"

// Closed returns an error that is [ErrClosed] and wraps cause. A cause that is
// an ErrClosed already is returned as it is, so that an end is wrapped once.
func Closed(cause error) error {
	if cause == nil {
		return ErrClosed
	}
	if errors.Is(cause, ErrClosed) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrClosed, cause)
}

// CauseOf returns what an end says beside being [ErrClosed], for a log.
func CauseOf(end error) string {
	return strings.TrimPrefix(end.Error(), ErrClosed.Error()+": ")
}

// An InvalidError is one message that cannot be used. It costs that message
// only: the Conn whose Recv returned it goes on.
type InvalidError struct {
	Code   int    // CodeParseError or CodeInvalidRequest
	Reason string // for people: what is wrong, never content
	ID     ID     // the id of the message, zero if it cannot be read
	Reply  bool   // whether the message is, as far as can be told, a response
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Reason }

// Wire returns the error object that tells the sender.
func (e *InvalidError) Wire() *Error {
	if e.Code == CodeParseError {
		return &Error{Code: e.Code, Message: "Parse error: " + e.Reason}
	}
	return &Error{Code: e.Code, Message: "Invalid request: " + e.Reason}
}
