package session

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// BenchmarkCall makes sequential calls of a tool that one of two upstreams has.
func BenchmarkCall(b *testing.B) { benchmarkCall(b, nil, observe.Hooks{}) }

// BenchmarkHooks is BenchmarkCall with all hooks set.
func BenchmarkHooks(b *testing.B) {
	benchmarkCall(b, nil, observe.Hooks{
		RequestBegan: func(observe.Request) {},
		RequestEnded: func(observe.Request, observe.End) {},
		CallBegan:    func(observe.Call) {},
		CallEnded:    func(observe.Call, observe.End) {},
	})
}

// BenchmarkPolicies is BenchmarkCall for a client with rules, and with limits.
func BenchmarkPolicies(b *testing.B) {
	who := policy.Who{Any: true}
	tools := policy.Globs{Allow: []string{"files__*", "docs__*"}, Deny: []string{"*delete*"}}
	b.Run("rules", func(b *testing.B) {
		benchmarkCall(b, policiesOf(b, policy.Rule{Who: policy.Who{Token: "ci"}}, policy.Rule{Who: who, Tools: tools}), observe.Hooks{})
	})
	b.Run("limits", func(b *testing.B) {
		benchmarkCall(b, policiesOf(b, policy.Rule{Who: who, Tools: tools, Limits: policy.Limits{Rate: 1e9, InFlight: 16}}), observe.Hooks{})
	})
}

func benchmarkCall(b *testing.B, policies *policy.Policies, hooks observe.Hooks) {
	p := &Router{Hooks: hooks, Policies: policies, Upstreams: []Upstream{{Name: "files"}, {Name: "docs"}}, Dial: DialFunc(
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
