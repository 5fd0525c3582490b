package session

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// BenchmarkCall is one call after another of a tool that one of two upstreams has.
func BenchmarkCall(b *testing.B) {
	p := &Router{Upstreams: []Upstream{{Name: "files"}, {Name: "docs"}}, Dialer: DialFunc(
		func(_ context.Context, name, _ string, _ mcp.Era) (jsonrpc.Conn, error) {
			ours, theirs := jsonrpc.Pipe()
			go serveEcho(ours, name)
			return theirs, nil
		})}
	client, theirs := jsonrpc.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(context.Background(), identity.Nobody, "", theirs) }()
	ask := func(method, params string) {
		client.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), method, json.RawMessage(params)))
		if m, err := client.Recv(); err != nil || m.Error != nil {
			b.Fatal(m, err)
		}
	}
	ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
	ask("tools/list", `{}`)
	b.ReportAllocs()
	for b.Loop() {
		ask("tools/call", `{"name":"docs__echo","arguments":{"x":1}}`)
	}
	client.Close()
	<-ended
}

func serveEcho(c *jsonrpc.PipeConn, name string) {
	defer c.Close()
	answer := echo(name)
	for {
		m, err := c.Recv()
		if err != nil {
			return
		}
		answer(&party{conn: c}, m)
	}
}
