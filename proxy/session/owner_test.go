package session

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

func TestReadersAreBounded(t *testing.T) {
	var r readers
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	u := &upstreamConn{ctx: t.Context()}
	for n := range maxReaders {
		r.add(catalog.Digest{byte(n), byte(n >> 8)}, u)
	}
	if len(r.of) != maxReaders {
		t.Errorf("%d are remembered", len(r.of))
	}
	r.add(catalog.Digest{31: 1}, u)
	r.add(catalog.Digest{31: 2}, &upstreamConn{ctx: gone})
	if len(r.of) != 1 || r.of[catalog.Digest{31: 1}] != u {
		t.Errorf("%d are remembered", len(r.of))
	}
}

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
