package session

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// BenchmarkModernResult makes sequential calls in the modern era with results of 64 KiB of text, or
// of small members.
func BenchmarkModernResult(b *testing.B) {
	text := `{"content":[{"type":"text","text":"` + strings.Repeat(`a line of \"text\"\n`, 64<<10/19) + `"}]`
	members := `{"content":[],"structuredContent":{"rows":[` + strings.Repeat(`{"id":12345,"name":"row"},`, 64<<10/26) + `{}]}`
	for name, result := range map[string]string{
		"text": text + `,"resultType":"complete"}`, "members": members + `,"resultType":"complete"}`, "absent": text + `}`,
	} {
		b.Run(name, func(b *testing.B) { benchmarkResult(b, json.RawMessage(result)) })
	}
}

func benchmarkResult(b *testing.B, result json.RawMessage) {
	p := &Router{Upstreams: []Upstream{{Name: "files"}}, Dial: DialFunc(
		func(context.Context, string, string, mcp.Era) (jsonrpc.Conn, error) {
			ours, theirs := jsonrpc.Pipe()
			go serveResult(ours, result)
			return theirs, nil
		})}
	client, theirs := jsonrpc.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(context.Background(), identity.Nobody, "", theirs) }()
	params := mcp.SetMeta(json.RawMessage(`{"name":"echo","arguments":{}}`), claim...)
	b.SetBytes(int64(len(result)))
	b.ReportAllocs()
	for b.Loop() {
		client.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "tools/call", params))
		if m, err := client.Recv(); err != nil || m.Error != nil {
			b.Fatal(m, err)
		}
	}
	client.Close()
	<-ended
}

// serveResult answers everything with one result.
func serveResult(c *jsonrpc.PipeConn, result json.RawMessage) {
	defer c.Close()
	for {
		m, err := c.Recv()
		if err != nil {
			return
		}
		c.Send(jsonrpc.NewResult(m.ID, result))
	}
}
