package session

import (
	"context"
	"encoding/json"
	"fmt"
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

// BenchmarkInitialize connects clients to upstreams that the catalog knows. What an upstream costs
// must not depend on how many there are.
func BenchmarkInitialize(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := &Router{Dial: echoes}
			for i := range n {
				p.Upstreams = append(p.Upstreams, Upstream{Name: fmt.Sprint("u", i), Lazy: true})
			}
			initialize := func() {
				ask, end := benchmarkClient(b, p)
				ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
				end()
			}
			initialize()
			b.ReportAllocs()
			for b.Loop() {
				initialize()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/upstream")
		})
	}
}

func benchmarkCall(b *testing.B, policies *policy.Policies, hooks observe.Hooks) {
	p := &Router{Hooks: hooks, Policies: policies, Upstreams: []Upstream{{Name: "files"}, {Name: "docs"}}, Dial: echoes}
	ask, end := benchmarkClient(b, p)
	defer end()
	ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
	ask("tools/list", `{}`)
	b.ReportAllocs()
	for b.Loop() {
		ask("tools/call", `{"name":"docs__echo","arguments":{"x":1}}`)
	}
}

// benchmarkClient connects a client. It asks one thing at a time, until its end.
func benchmarkClient(b *testing.B, p *Router) (ask func(method, params string), end func()) {
	client, theirs := jsonrpc.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(context.Background(), identity.Nobody, "", theirs) }()
	ask = func(method, params string) {
		client.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), method, json.RawMessage(params)))
		if m, err := client.Recv(); err != nil || m.Error != nil {
			b.Fatal(m, err)
		}
	}
	return ask, func() {
		client.Close()
		<-ended
	}
}

var echoes = DialFunc(func(_ context.Context, name, _ string, _ mcp.Era) (jsonrpc.Conn, error) {
	ours, theirs := jsonrpc.Pipe()
	go serveEcho(ours, name)
	return theirs, nil
})

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
