package pool

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Causes of an end, as in [jsonrpc.ErrorData].
const (
	causeStartFailed = "start failed"
	causeHostStopped = "host stopped"
	causeRefused     = "initialize refused"
	causeLost        = "connection lost" // of a server that does not say more
	causeLinkLost    = "link lost"
	causeWrongEra    = "wrong era"
	causeSlow        = "client does not read"
)

// A question is a request of the server that is not answered.
type question struct {
	seq     int64      // of the newest call when it came
	related jsonrpc.ID // the call that it surely belongs to; zero if the server did not say
	task    string     // the task that it belongs to, likewise
}

// isOurEnd reports whether an error is the one connection-closed error.
func isOurEnd(e json.RawMessage) bool {
	return e != nil && member(json.RawMessage(member(e, "data")), "reason") == `"`+jsonrpc.ReasonClosed+`"`
}

// member returns the JSON text of a member of an object, "" if it has none that
// can be read.
func member(object json.RawMessage, key string) string {
	value, err := jsonrpc.Member(object, key)
	if err != nil {
		return ""
	}
	return string(value)
}

func closed(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}
