package eras

import (
	"context"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	benchCall   = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"0123456789012345678901234567890123456789"},"_meta":{"progressToken":7}}}`
	benchResult = `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","content":[{"type":"text","text":"PAYLOAD"}],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"server","version":"1.0.0"}}}}`
)

// BenchmarkLegacyCall is the round trip of a call without questions, over Pipes, with and without a
// bridge between client and server.
func BenchmarkLegacyCall(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"100B", 100}, {"64KiB", 64 << 10}} {
		result, err := jsonrpc.Decode([]byte(strings.Replace(benchResult, "PAYLOAD", strings.Repeat("x", size.bytes), 1)))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(size.name+"/direct", func(b *testing.B) {
			client, server := jsonrpc.Pipe()
			go serveCalls(server, result)
			defer client.Close()
			callAll(b, client)
		})
		b.Run(size.name+"/bridge", func(b *testing.B) {
			client, clientFar := jsonrpc.Pipe()
			server, serverFar := jsonrpc.Pipe()
			bridge := &Bridge{Open: func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return serverFar }}
			go serveCalls(server, result)
			done := make(chan error)
			go func() { done <- bridge.Legacy(context.Background(), "up", "key", clientFar) }()
			greet(b, client)
			callAll(b, client)
			client.Close()
			<-done
		})
	}
}

// serveCalls is a modern server that answers server/discover, and everything else with result.
func serveCalls(c jsonrpc.Conn, result *jsonrpc.Message) {
	for {
		m, err := c.Recv()
		if err != nil {
			return
		}
		answer := &jsonrpc.Message{ID: m.ID, Result: result.Result}
		if m.Method == "server/discover" {
			answer.Result = []byte(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
		}
		if c.Send(answer) != nil {
			return
		}
	}
}

func greet(b *testing.B, c jsonrpc.Conn) {
	b.Helper()
	hello := `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"roots":{}},"clientInfo":{"name":"client","version":"1.0.0"}}`
	if err := c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", []byte(hello))); err != nil {
		b.Fatal(err)
	}
	if m, err := c.Recv(); err != nil || m.Result == nil {
		b.Fatal("initialize failed")
	}
}

func callAll(b *testing.B, c jsonrpc.Conn) {
	b.Helper()
	call, err := jsonrpc.Decode([]byte(benchCall))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := c.Send(call); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
}
