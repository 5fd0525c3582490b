package session

import (
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestUnaware(t *testing.T) {
	closed := func(at jsonrpc.Phase) json.RawMessage {
		return jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "a", jsonrpc.CauseStartFailed, at).Raw()
	}
	for _, tt := range []struct {
		err  json.RawMessage
		want bool
	}{
		{json.RawMessage(`{"code":-32002,"message":"not here"}`), true},
		{json.RawMessage(`{"code":-32602,"message":"not here","data":{"uri":"x:y"}}`), true},
		{json.RawMessage(`{"code":-32601,"message":"what"}`), true},
		{json.RawMessage(`{"code":0,"message":"Unknown resource"}`), true},
		{closed(jsonrpc.NotSent), true},
		{closed(jsonrpc.InFlight), false},
		{jsonrpc.TimedOut("a").Raw(), false},
		{jsonrpc.Overloaded("a").Raw(), false},
		{json.RawMessage(`{"code":-32603,"message":"db down"}`), false},
		{json.RawMessage(`{"code":-32603,"message":"db down","data":"not_sent"}`), false},
		{json.RawMessage(`{"code":-32603,"message":"db down","data":{"phase":"not_sent"}}`), false},
		{json.RawMessage(`{"code":-32021,"message":"missing","data":{"requiredCapabilities":{}}}`), false},
		{json.RawMessage(`{"code":-32042,"message":"go there"}`), false},
		{json.RawMessage(`{"code":-32602,"CODE":1,"message":"odd"}`), false},
	} {
		if got := lacksResource(tt.err); got != tt.want {
			t.Errorf("%s: %t", tt.err, got)
		}
	}
}
