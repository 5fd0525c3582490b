package eras

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	benchModernCall = `{"name":"echo","arguments":{"text":"0123456789012345678901234567890123456789"},"_meta":{"progressToken":7,` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"client","version":"1.0.0"},` +
		`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{}}}}`
	benchWelcome = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"server","version":"1.0.0"}}`
)

// BenchmarkModernCall is the round trip of a call without questions, over Pipes, with and without a
// bridge between client and server; one at a time, and 64.
func BenchmarkModernCall(b *testing.B) {
	for _, size := range []int{100, 64 << 10} {
		result := []byte(`{"content":[{"type":"text","text":"` + strings.Repeat("x", size) + `"}]}`)
		for _, atOnce := range []int{1, 64} {
			name := fmt.Sprintf("%dB/%d", size, atOnce)
			b.Run(name+"/direct", func(b *testing.B) {
				client, server := jsonrpc.Pipe()
				go serveLegacy(server, result)
				defer client.Close()
				callModern(b, client, atOnce)
			})
			b.Run(name+"/bridge", func(b *testing.B) {
				client, far := jsonrpc.Pipe()
				bridge := &Bridge{Open: func(context.Context, string, string, mcp.Era) jsonrpc.Conn {
					near, server := jsonrpc.Pipe()
					go serveLegacy(server, result)
					return near
				}}
				done := make(chan error)
				go func() { done <- bridge.Modern(context.Background(), "up", "key", far) }()
				callModern(b, client, atOnce)
				client.Close()
				<-done
				bridge.Stop(context.Background())
			})
		}
	}
}

// serveLegacy is a server that answers everything with result.
func serveLegacy(c jsonrpc.Conn, result []byte) {
	var batch, answers []*jsonrpc.Message
	for {
		var err error
		if batch, err = jsonrpc.RecvAll(c, batch[:0]); err != nil {
			return
		}
		answers = answers[:0]
		for _, m := range batch {
			switch {
			case m.Method == "initialize":
				answers = append(answers, jsonrpc.NewResult(m.ID, []byte(benchWelcome)))
			case m.IsRequest():
				answers = append(answers, jsonrpc.NewResult(m.ID, result))
			}
		}
		jsonrpc.SendAll(c, answers)
	}
}

func callModern(b *testing.B, c jsonrpc.Conn, atOnce int) {
	b.Helper()
	next := int64(1)
	call := func() {
		c.Send(jsonrpc.NewRequest(jsonrpc.IntID(next), "tools/call", []byte(benchModernCall)))
		next++
	}
	answer := func() {
		if m, err := c.Recv(); err != nil || m.Result == nil {
			b.Fatal("a call failed")
		}
	}
	call()
	answer()
	b.ReportAllocs()
	b.ResetTimer()
	for range min(atOnce, b.N) {
		call()
	}
	for i := range b.N {
		answer()
		if i+atOnce < b.N {
			call()
		}
	}
	b.StopTimer()
}
