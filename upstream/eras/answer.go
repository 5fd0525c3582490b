package eras

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// What a server hears of a request that nobody is asked.
var (
	errNoCall      = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "no call is in progress that the request could belong to"}
	errCannotAsk   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client cannot be asked during this request"}
	errNotNeeded   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the call has ended"}
	errNoInput     = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientSilent, jsonrpc.InFlight)
	errTooManyAsks = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "too many questions"}
)

// Reasons why a requestState is refused, in the data of the error.
const (
	stateInvalid = "request_state_invalid" // of another request
	stateExpired = "request_state_expired" // too old, of a program that has ended, forged, or another's
	stateUsed    = "request_state_used"
)

// refusedState returns the error for a requestState that is not accepted.
func refusedState(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: requestState is not valid here", Data: stateData{reason}}
}

type stateData struct {
	Reason string `json:"reason"`
}
