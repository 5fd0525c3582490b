package proxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
)

// A proxy that runs says where a name leads, by which rule, what hides it, and what its
// server does, over the socket as in the program.
func TestExplainOfARunningProxy(t *testing.T) {
	server, far := sdkServer(), sdkServer()
	t.Cleanup(server.Close)
	t.Cleanup(far.Close)
	server.mcp.AddPrompt(&mcp.Prompt{Name: "ask"}, nil)
	mcp.AddTool(far.mcp, &mcp.Tool{Name: "lone"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "alone"}}}, nil, nil
	})
	host, err := proxy.NewHost(&config.Config{Upstreams: []config.Upstream{{Name: "far", Key: "upstreams.far", Start: "eager", Remote: config.Remote{URL: far.URL}, Tools: config.Tools{Deny: []string{"hang"}}}}},
		config.HostLink{Listen: "tcp://127.0.0.1:0"}, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dial, err := host.Listen()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- host.Serve() }()
	prefix := "p"
	socket := filepath.Join(t.TempDir(), "admin.sock")
	p, _ := serveWith(t, config.Config{
		Upstreams: []config.Upstream{
			{Name: "a", Start: "eager", Remote: config.Remote{URL: server.URL}, Tools: config.Tools{Deny: []string{"secret*"}}},
			{Name: "b", Remote: config.Remote{URL: server.URL}, Prefix: &prefix},
			{Name: "gone", Process: config.Process{Command: "/there/is/none"}},
		},
		Links: []config.Link{{Name: "tools", Dial: dial, Heartbeat: time.Minute}},
		Policies: []config.Policy{
			{Key: "policies[0]", Who: config.Who{Operator: true}},
			{Key: "policies[1]", Who: config.Who{Any: true}, Tools: config.Tools{Deny: []string{"a__hang"}}},
		},
	}, proxy.Options{AdminSocket: socket})
	explain := func(name, query string) (e proxy.Explanation) {
		t.Helper()
		if err := json.Unmarshal(operatorGets(t, socket, "/explain/"+url.PathEscape(name)+"?"+query), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for end := time.Now().Add(20 * time.Second); len(p.Snapshot().Links[0].Upstreams) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if e := explain("a__greet", ""); e.Listed != "unknown" || e.Answer != "allowed" || e.Servers != nil || len(e.Notes) != 1 {
		t.Errorf("before anybody asked: %+v", e)
	}
	client := dialStdio(t, p)
	client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	client.hears(`"id":1`)
	client.say(`{"jsonrpc":"2.0","id":2,"method":"resources/list"}`)
	client.hears(`"id":2`)
	client.say(`{"jsonrpc":"2.0","id":3,"method":"prompts/list"}`)
	client.hears(`"id":3`)
	client.say(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"lone"}}`)
	client.hears(`alone`) // explain agrees below

	for _, c := range []struct{ name, query, answer, upstream, leads, listed, why string }{
		{"a__greet", "", "allowed", "a", "begins with its prefix", "yes", "all policies agree"},
		{"p__greet", "", "allowed", "b", "begins with its prefix", "yes", ""},
		{"b__greet", "", "allowed", "b", "clients use p__greet", "yes", ""},
		{"a__hang", "", "depends on the client", "a", "", "yes", "the first policy that matches a client applies"},
		{"a__hang", "as=operator", "allowed", "a", "", "yes", "policies[0]"},
		{"a__hang", "as=anonymous", "denied", "a", "", "yes", `policies[1].tools.deny has "a__hang"`},
		{"a__none", "", "unknown", "a", "", "no", "lists no such tool"},
		{"a__gret", "", "unknown", "a", "", "no", "did you mean a__greet?"},
		{"a__secret", "", "denied", "a", "", "no", "upstreams.a.tools hides it"},
		{"far__hang", "", "denied", "far", "", "no", "the configuration of its host"},
		{"far__greet", "", "allowed", "far", "", "yes", ""},
		{"gone__x", "", "allowed", "gone", "", "unknown", ""},
		{"greet", "", "unknown", "", "", "", "several upstreams have it: a, b, far"},
		{"lone", "", "allowed", "far", "no other upstream is known to have a tool of that name", "yes", ""}, // gone cannot list
		{"other", "", "unknown", "", "", "", "no upstream is known to have it"},
		{"gonee__x", "", "unknown", "", "", "", "did you mean gone__x?"},
		{"file:///there/is none?x=%2F", "", "allowed", "", "asked, one by one", "", ""},
		{"a__ask", "", "allowed", "a", "begins with its prefix", "yes", "all policies agree"},
	} {
		e := explain(c.name, c.query)
		if e.Name != c.name || !e.Running || e.Answer != c.answer || e.Upstream != c.upstream || e.Listed != c.listed ||
			!strings.Contains(e.Leads, c.leads) || !strings.Contains(e.Why, c.why) {
			t.Errorf("%s %s: %+v", c.name, c.query, e)
		}
	}
	if e := explain("a__ask", ""); e.Kind != "prompt" {
		t.Errorf("%+v", e)
	}
	if e := explain("a__hang", ""); fmt.Sprint(e.Rules) != "[{policies[0] operator allowed  []} {policies[1] any client denied a__hang []}]" {
		t.Errorf("%+v", e.Rules)
	}
	if e := explain("a__greet", ""); len(e.Servers) != 1 || e.Servers[0].State != "running" || e.Servers[0].Count != 1 || e.Servers[0].Era == "" {
		t.Errorf("%+v", e.Servers)
	}
	if e := explain("gone__x", ""); len(e.Servers) != 0 || e.Failed.Says != "did not start: command not found" || e.Failed.Event == "" {
		t.Errorf("%+v", e)
	}
	if e := explain("gone", ""); e.Kind != proxy.KindUpstream || e.Upstream != "gone" || e.Answer == ops.AnswerUnknown || e.Failed.Event == "" {
		t.Errorf("%+v", e)
	}
	if e := explain("far__greet", ""); e.Link != "tools" || e.Servers != nil || e.Original != "greet" {
		t.Errorf("%+v", e)
	}
	if _, err := p.Explain("x", "token:none"); err == nil || !strings.Contains(err.Error(), "not a token") {
		t.Error(err)
	}

	if e, err := host.Explain("far__hang", ""); err != nil || e.Answer != "denied" || e.Original != "hang" || len(e.Servers) != 1 {
		t.Errorf("%+v %v", e, err)
	}
	if e, err := host.Explain("far__greet", ""); err != nil || e.Answer != "allowed" {
		t.Errorf("%+v %v", e, err)
	}
	if _, err := host.Explain("x", "operator"); err == nil {
		t.Error("a host knows a client")
	}
	client.leave()
	host.Close()
	<-over
	for end := time.Now().Add(20 * time.Second); p.Snapshot().Links[0].Up && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if e := explain("far__greet", ""); !slices.ContainsFunc(e.Notes, func(n string) bool { return strings.Contains(n, "the link tools is lost") }) {
		t.Errorf("%+v", e)
	}
}

// A sole upstream has bare names, and gets what it does not list.
func TestExplainOfASoleUpstream(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	p, at := serve(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}}, proxy.Hooks{})
	listTools(at)
	for name, want := range map[string]string{"greet": "greet yes 0", "a__greet": "greet yes 0", "none": "none no 1"} {
		e, err := p.Explain(name, "")
		if got := fmt.Sprint(e.Original, " ", e.Listed, " ", len(e.Notes)); err != nil || e.Answer != "allowed" || got != want || !strings.Contains(e.Leads, "only upstream") {
			t.Errorf("%s: %s, %+v %v", name, got, e, err)
		}
	}
}
