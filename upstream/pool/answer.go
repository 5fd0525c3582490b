package pool

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// replyIfRoom answers a request of the server from here, unless it asks so much and reads so
// little that there is no room.
func replyIfRoom(server *peer.Peer, r *peer.Request, m *jsonrpc.Message) {
	if server.Roomy(1) {
		r.Respond(m)
	} else if r.Take() {
		r.Answer(nil)
	}
}

func failure(err *jsonrpc.Error) *jsonrpc.Message { return &jsonrpc.Message{Error: err.Raw()} }

// What a server hears of a request that nobody is asked.
var (
	errNoCall      = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "no call is in progress that the request could belong to"}
	errAmbiguous   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cannot attribute server request"}
	errCannotAsk   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client cannot be asked during this request"}
	errNotNeeded   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the call has ended"}
	errGone        = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientGone, jsonrpc.InFlight)
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
