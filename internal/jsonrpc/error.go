package jsonrpc

import (
	"encoding/json"
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

// An Error is the error member of a response that the proxy creates. Errors of upstreams are
// forwarded as bytes and never become an Error.
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
	ReasonScope           = "insufficient_scope"
)

// ErrorData is the data member of every error that the proxy creates because of the state of a
// connection. Cause is short and structured ("signal: killed", "exit status 3", "link lost"): never
// stderr, a path, a URL or a Go error.
type ErrorData struct {
	Reason    string `json:"reason"`
	Upstream  string `json:"upstream,omitempty"`
	Cause     Cause  `json:"cause,omitzero"`
	Phase     Phase  `json:"phase"`
	Retryable bool   `json:"retryable"`
	Event     string `json:"event,omitempty"` // id of the end, as in the log line about it
}

// ReadErrorData returns the data of an error that a proxy created, this one or another on the
// route. It returns the zero ErrorData for any other error.
func ReadErrorData(text json.RawMessage) ErrorData {
	var in [1]Span
	var at [6]Span
	if Find(text, Span{}, in[:], "data") != nil || in[0].IsZero() ||
		Find(text, in[0], at[:], "reason", "upstream", "cause", "phase", "retryable", "event") != nil {
		return ErrorData{}
	}
	said := func(i int) string {
		s, _ := Unquote(at[i].Of(text))
		return s
	}
	return ErrorData{said(0), said(1), ParseCause(said(2)), Phase(said(3)), string(at[4].Of(text)) == "true", said(5)}
}

// WhatOf returns the part of such an error's message that says what happened.
func WhatOf(text json.RawMessage) string {
	raw, _ := Member(text, "message")
	message, _ := Unquote(raw)
	return strings.TrimPrefix(message, closedPrefix)
}

// WhatClosed is WhatOf for an error with that message and data; ok reports whether it is the
// connection-closed error.
func WhatClosed(message string, data json.RawMessage) (what string, ok bool) {
	raw, _ := Member(data, "reason")
	reason, _ := Unquote(raw)
	return strings.TrimPrefix(message, closedPrefix), reason == ReasonClosed
}

// IsClosed reports whether an error is the connection-closed error.
func IsClosed(text json.RawMessage) bool { return ReadErrorData(text).Reason == ReasonClosed }

// A Phase says how far a request had got when it failed.
type Phase string

// A request that was not sent had no effect and may be sent again. A request in flight may have
// run.
const (
	NotSent  Phase = "not_sent"
	InFlight Phase = "in_flight"
)

// ConnectionClosed returns the connection-closed error. The code is [CodeInternalError] when one
// upstream of a living client is gone, and [CodeConnectionClosed] when the receiver's own
// connection ends; upstream and cause may then be zero. If the end of the upstream's connection is
// known, [ClosedError.Wire] says more.
func ConnectionClosed(code int, upstream string, cause Cause, phase Phase) *Error {
	return (&ClosedError{Cause: cause}).Wire(code, upstream, phase)
}

// TimedOut returns the error for a request that its upstream did not answer in time. A timeout is
// not a close.
func TimedOut(upstream string) *Error {
	return &Error{CodeInternalError, "Request timed out", ErrorData{Reason: ReasonTimeout, Upstream: upstream, Phase: InFlight}}
}

// Overloaded returns the error for a request that found no room.
func Overloaded(upstream string) *Error {
	return &Error{CodeInternalError, "Too many requests in flight", ErrorData{Reason: ReasonOverloaded, Upstream: upstream, Phase: NotSent, Retryable: true}}
}

// InvalidResponse returns the error for a request whose response was unusable.
func InvalidResponse(upstream, why string) *Error {
	return &Error{CodeInternalError, "Invalid response from upstream", ErrorData{Reason: ReasonInvalidResponse, Upstream: upstream, Cause: OtherCause(why), Phase: InFlight}}
}

// InsufficientScope returns the error for a request whose sender lacks some of the scopes that it
// needs. all are those that a new token needs (RFC 6750 3.1).
func InsufficientScope(all []string) *Error {
	return &Error{CodeInternalError, "Insufficient scope: this needs " + strings.Join(all, " "),
		struct {
			ErrorData
			Scopes []string `json:"scopes"`
		}{ErrorData{Reason: ReasonScope, Phase: NotSent}, all}}
}

// An InvalidError is one unusable message. The Conn whose Recv returned it continues.
type InvalidError struct {
	Code   int    // CodeParseError or CodeInvalidRequest
	Reason string // for people: what is wrong, without content of the message
	ID     ID     // of the message; zero if it cannot be read
	Reply  bool   // whether the message seems to be a response
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Reason }

// Wire returns the error object for the sender.
func (e *InvalidError) Wire() *Error {
	if e.Code == CodeParseError {
		return &Error{Code: e.Code, Message: "Parse error: " + e.Reason}
	}
	return &Error{Code: e.Code, Message: "Invalid request: " + e.Reason}
}

// Answer returns the error that answers the message. It has the message's id, unless that may be
// another one's, or inUse says that a request with it is in flight.
func (e *InvalidError) Answer(inUse bool) *Message {
	if inUse || e.Reply || e.Code == CodeParseError {
		return Failure(e.Wire())
	}
	return NewError(e.ID, e.Wire())
}

// InvalidParams returns the error for unusable params.
func InvalidParams(reason string) *Error {
	return &Error{Code: CodeInvalidParams, Message: "Invalid params: " + reason}
}

// MethodNotFound returns the error for an unknown method.
func MethodNotFound(method string) *Error {
	return &Error{Code: CodeMethodNotFound, Message: "Method not found: " + method}
}
