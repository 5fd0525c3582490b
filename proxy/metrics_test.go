package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/metrics"
)

// scraped returns the series of m, a line each.
func scraped(t *testing.T, p *proxy.Proxy, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(func() proxy.Snapshot { return p.Snapshot() }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	return w.Body.String()
}

// A scrape counts what clients have done. Clients cannot make up labels.
func TestMetricsOfCalls(t *testing.T) {
	t.Parallel()
	server := sdkServer()
	t.Cleanup(server.Close)
	var r recorder
	m := metrics.New("")
	p, url := serve(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Start: "eager", Remote: config.Remote{URL: server.URL}, Era: "legacy"},
		{Name: "b", Start: "eager", Remote: config.Remote{URL: server.URL}, Era: "legacy"},
	}}, r.joined(m))
	client := connect(url)
	if _, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__greet"}); err != nil {
		t.Error(err)
	}
	client.Close()
	r.await(t, "call client anonymous modern tools/call a greet ok")

	legacy := dialStdio(t, p)
	const calls = 100_000 / 2
	sent := make(chan struct{}, 200) // fewer than a client may have in flight
	go func() {
		for i := range calls {
			sent <- struct{}{}
			sent <- struct{}{}
			legacy.call(2*i+1, fmt.Sprintf("a__made-up-%d", i))
			legacy.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"made/up-%d"}`, 2*i+2, i))
		}
	}()
	before := series(scraped(t, p, m))
	for range 2 * calls {
		legacy.hears(`"error"`)
		<-sent
	}
	legacy.leave()
	r.await(t, "session old operator stdio legacy ok")

	text := scraped(t, p, m)
	for _, want := range []string{
		`mcp_server_operation_duration_seconds_count{error_type="",gen_ai_tool_name="greet",mcp_method_name="tools/call",upstream="a"} 1`,
		`mcp_client_operation_duration_seconds_count{error_type="",mcp_method_name="tools/call",upstream="a"} 1`,
		`mcp_server_operation_duration_seconds_count{error_type="-32602",gen_ai_tool_name="",mcp_method_name="tools/call",upstream=""} 50000`,
		`mcp_server_operation_duration_seconds_count{error_type="-32601",gen_ai_tool_name="",mcp_method_name="_OTHER",upstream=""} 50000`,
		`mcp_proxy_calls_total{outcome="error",principal="operator"} 100000`,
		`mcp_proxy_upstream_up{required="false",upstream="a"} 1`,
		`mcp_proxy_upstream_starts_total{upstream="b"} 2`,
		`mcp_proxy_calls_in_flight 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if after := series(text); after > before+200 || strings.Contains(text, "made") {
		t.Errorf("%d series, %d before:\n%s", after, before, text)
	}
}

// A sole upstream gets calls of any tool. Only listed tools are labels.
func TestMetricsOfSoleUpstream(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	for _, era := range []string{"legacy", "modern"} {
		m := metrics.New("")
		var r recorder
		p, url := serve(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}}, r.joined(m))
		if era == "legacy" {
			c := dialStdio(t, p)
			c.call(1, "made-up")
			c.hears(`"id":1`)
			c.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
			c.hears(`"id":2`)
			c.call(3, "greet")
			c.hears(`"id":3`)
			c.call(4, "made-up")
			c.hears(`"id":4`)
			c.leave()
		} else {
			c := connect(url)
			_, _ = c.CallTool(t.Context(), &mcp.CallToolParams{Name: "made-up"})
			if _, err := c.ListTools(t.Context(), nil); err != nil {
				t.Error(err)
			}
			_, _ = c.CallTool(t.Context(), &mcp.CallToolParams{Name: "greet"})
			_, _ = c.CallTool(t.Context(), &mcp.CallToolParams{Name: "made-up"})
			c.Close()
		}
		p.Close()
		text := scraped(t, p, m)
		if strings.Contains(text, "made-up") {
			t.Errorf("%s: a client has made a series", era)
		}
		for _, want := range []string{
			`{error_type="-32602",gen_ai_tool_name="_OTHER",mcp_method_name="tools/call",upstream="a"} 2`,
			`{error_type="",gen_ai_tool_name="greet",mcp_method_name="tools/call",upstream="a"} 1`,
		} {
			if want = "mcp_server_operation_duration_seconds_count" + want + "\n"; !strings.Contains(text, want) {
				t.Errorf("%s: no %s in\n%s", era, want, text)
			}
		}
	}
}

// A host counts what its servers are asked, though it knows no clients; a server that speaks
// another era than the clients is counted once.
func TestMetricsOfHost(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	m := metrics.New("")
	host, err := proxy.NewHost(&config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}, Era: "legacy"}}},
		config.HostLink{Listen: "tcp://127.0.0.1:0"}, proxy.Options{Hooks: m.Hooks()})
	if err != nil {
		t.Fatal(err)
	}
	dial, err := host.Listen()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- host.Serve() }()
	_, url := serve(t, config.Config{Links: []config.Link{{Name: "far", Dial: dial, Heartbeat: time.Minute}}}, proxy.Hooks{})
	client := connect(url) // of the modern era
	if _, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "greet"}); err != nil {
		t.Error(err)
	}
	client.Close()
	host.Close()
	<-over
	w := httptest.NewRecorder()
	m.Handler(func() proxy.Snapshot { return host.Snapshot() }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`mcp_client_operation_duration_seconds_count{error_type="",mcp_method_name="tools/call",upstream="a"} 1`,
		`mcp_proxy_requests_in_flight{upstream="a"} 0`,
		`mcp_proxy_upstream_starts_total{upstream="a"} 1`,
		`mcp_client_session_duration_seconds_count{error_type="",upstream="a"} 1`,
		`mcp_proxy_suspended_calls{upstream="a"} 0`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), "mcp_server_") || strings.Contains(w.Body.String(), "mcp_proxy_listens") {
		t.Error("a host has clients")
	}
}

// joined returns hooks of both.
func (r *recorder) joined(m *metrics.Metrics) proxy.Hooks { return observe.Join(r.hooks(), m.Hooks()) }

func series(text string) (n int) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "mcp_") {
			n++
		}
	}
	return n
}

// Prometheus can scrape all addresses for operators.
func TestMetricsAreServed(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, configured := range []bool{true, false} {
		cfg := config.Config{Frontend: config.Frontend{TokenFile: token}, Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}}
		socket := filepath.Join(dir, fmt.Sprint(configured))
		options := proxy.Options{AdminSocket: socket}
		if configured {
			cfg.Admin.Listen, options.AdminSocket = []string{"unix://" + socket}, ""
		}
		p, err := proxy.New(&cfg, options)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(p.Handler())
		resp, err := http.Post(web.URL+"/mcp", "application/json", strings.NewReader(`{}`))
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }
		client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
		if resp, err = client.Get("http://localhost/metrics"); err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "mcp_proxy_refusals_total{reason=\"no_token\"} 1\n") {
			t.Errorf("configured: %v, and the answer is %d %s", configured, resp.StatusCode, text)
		}
		p.Close()
		web.Close()
		http.DefaultClient.CloseIdleConnections()
	}
}

// Alerts distinguish required upstreams and links from optional ones, also after a reload.
func TestMetricsOfRequired(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	cfg := config.Config{
		Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}, Required: true}, {Name: "b", Remote: config.Remote{URL: server.URL}}},
		Links:     []config.Link{{Name: "far", Dial: "unix://" + filepath.Join(t.TempDir(), "none"), Heartbeat: time.Minute, Required: true}},
		Limits:    config.Limits{Sessions: 7},
	}
	m := metrics.New("")
	p, _ := serve(t, cfg, m.Hooks())
	wants := func(a, b, far string) {
		t.Helper()
		text := scraped(t, p, m)
		for _, want := range []string{
			`mcp_proxy_upstream_up{required="` + a + `",upstream="a"} 1`,
			`mcp_proxy_upstream_up{required="` + b + `",upstream="b"} 1`,
			`mcp_proxy_link_up{link="far",required="` + far + `"} 0`,
			`mcp_proxy_sessions_limit 7`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
	}
	wants("true", "false", "true")
	next := cfg
	next.Upstreams, next.Links = slices.Clone(cfg.Upstreams), slices.Clone(cfg.Links)
	next.Upstreams[0].Required, next.Upstreams[1].Required, next.Links[0].Required = false, true, false
	if err := p.Reload(&next); err != nil {
		t.Fatal(err)
	}
	wants("false", "true", "false")
}
