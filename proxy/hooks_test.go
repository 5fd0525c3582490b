package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A recorder keeps what hooks say, a line each, and counts what began and has not ended.
type recorder struct {
	mu    sync.Mutex
	lines []string
	open  map[string]int
}

func (r *recorder) began(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = make(map[string]int)
	}
	r.open[kind]++
}

func (r *recorder) ended(kind string, end proxy.End, words ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[kind]--
	words = append([]string{strings.Fields(kind)[0]}, append(words, string(end.Outcome), end.Cause)...)
	r.lines = append(r.lines, strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
	if end.Took < 0 || end.Took > time.Minute {
		r.lines = append(r.lines, fmt.Sprint(kind, " took ", end.Took))
	}
}

func (r *recorder) hooks() proxy.Hooks {
	return proxy.Hooks{
		SessionBegan: func(proxy.Session) { r.began("session") },
		SessionEnded: func(s proxy.Session, e proxy.End) { r.ended("session", e, s.Client, s.Principal, s.Transport, s.Era) },
		RequestBegan: func(proxy.Request) { r.began("call") },
		RequestEnded: func(c proxy.Request, e proxy.End) {
			r.ended("call", e, c.Client, c.Principal, c.Era, c.Method, c.Upstream, c.Tool)
		},
		CallBegan: func(q proxy.Call) { r.began("request " + q.Upstream + " " + q.Method) },
		CallEnded: func(q proxy.Call, e proxy.End) {
			r.ended("request "+q.Upstream+" "+q.Method, e, q.Era, q.Method, q.Upstream)
		},
		UpstreamStarted: func(proxy.Upstream) { r.began("upstream") },
		UpstreamEnded:   func(u proxy.Upstream, e proxy.End) { r.ended("upstream", e, u.Name, u.Era) },
		LinkUp:          func(proxy.Link) { r.began("link") },
		LinkLost:        func(l proxy.Link, e proxy.End) { r.ended("link", e, l.Name, strings.Join(l.Upstreams, ",")) },
	}
}

// await waits for a line that begins so.
func (r *recorder) await(t *testing.T, line string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !r.has(line); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody said %q, but\n%s", line, strings.Join(r.lines, "\n"))
		}
	}
}

// awaitOpen waits until so many of a kind began and have not ended.
func (r *recorder) awaitOpen(t *testing.T, kind string, want int) {
	t.Helper()
	open := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.open[kind]
	}
	for end := time.Now().Add(20 * time.Second); open() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %q, want %d", open(), kind, want)
		}
	}
}

func (r *recorder) has(line string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.lines, func(l string) bool { return strings.HasPrefix(l, line) })
}

// balanced checks that all that began has ended.
func (r *recorder) balanced(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for kind, n := range r.open {
		if n != 0 {
			t.Errorf("%d more of %q began than ended:\n%s", n, kind, strings.Join(r.lines, "\n"))
		}
	}
}

// serve runs a proxy with these upstreams until the test ends.
func serve(t *testing.T, cfg config.Config, hooks proxy.Hooks) (p *proxy.Proxy, url string) {
	t.Helper()
	return serveWith(t, cfg, proxy.Options{Hooks: hooks})
}

func serveWith(t *testing.T, cfg config.Config, o proxy.Options) (p *proxy.Proxy, url string) {
	t.Helper()
	p, err := proxy.New(&cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		p.Close()
		web.Close()
	})
	return p, web.URL + "/mcp"
}

// A stdioClient speaks to a proxy on pipes, in the legacy era.
type stdioClient struct {
	t       *testing.T
	in, out *os.File
	lines   *bufio.Scanner
	over    chan error
}

func dialStdio(t *testing.T, p *proxy.Proxy) *stdioClient {
	t.Helper()
	c := openStdio(t, p)
	c.initialize(0)
	c.hears(`"id":0`)
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// openStdio returns a client that has said nothing yet.
func openStdio(t *testing.T, p *proxy.Proxy) *stdioClient {
	t.Helper()
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &stdioClient{t: t, in: in, out: out, lines: bufio.NewScanner(out), over: make(chan error, 1)}
	go func() { c.over <- p.ServeStdio(context.Background(), stdin, stdout) }()
	return c
}

func (c *stdioClient) say(line string) { fmt.Fprintln(c.in, line) }

func (c *stdioClient) initialize(id int) {
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`, id))
}

// call calls a tool.
func (c *stdioClient) call(id int, tool string) {
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, tool))
}

// hears waits for a line that contains a text.
func (c *stdioClient) hears(part string) {
	c.t.Helper()
	for c.lines.Scan() {
		if strings.Contains(c.lines.Text(), part) {
			return
		}
	}
	c.t.Errorf("nobody said %s: %v", part, c.lines.Err())
}

func (c *stdioClient) leave() {
	c.in.Close()
	<-c.over
	c.out.Close()
}

// Hooks report each request, its target and its end, on both sides of the proxy. When the proxy has
// ended, every end was reported.
func TestHooks(t *testing.T) {
	t.Parallel()
	server := sdkServer()
	t.Cleanup(server.Close)
	var r recorder
	p, url := serve(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: server.URL}, Era: "legacy"},
		{Name: "b", Process: config.Process{Command: "no-such-command"}},
	}}, r.hooks())

	modern := connect(url)
	if _, err := modern.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__greet"}); err != nil {
		t.Error(err)
	}
	modern.Close()
	r.await(t, "call client anonymous modern tools/call a greet ok")

	legacy := dialStdio(t, p)
	legacy.call(1, "a__greet")
	legacy.hears(`"id":1`)
	r.await(t, "request legacy tools/call a ok")
	r.await(t, "call old operator legacy tools/call a greet ok")
	legacy.call(2, "a__none")
	legacy.hears(`"id":2`)
	r.await(t, "call old operator legacy tools/call error")
	legacy.say(`{"jsonrpc":"2.0","id":3,"method":"thought/of"}`)
	legacy.hears(`"id":3`)
	r.await(t, "call old operator legacy other closed start_failed") // b might have known it
	legacy.call(4, "a__hang")
	<-server.hanging // before the cancellation, which takes another connection
	r.awaitOpen(t, "request a tools/call", 1)
	legacy.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
	r.await(t, "request legacy tools/call a cancelled")
	r.await(t, "call old operator legacy tools/call a hang cancelled")
	legacy.call(5, "a__hang")
	<-server.hanging // on a connection that can be closed
	r.awaitOpen(t, "request a tools/call", 1)
	if now := p.Snapshot(); !slices.ContainsFunc(now.Sessions, func(s proxy.Session) bool {
		return s.Client == "old" && s.Transport == "stdio" && s.Era == "legacy" && s.InFlight == 1
	}) || !slices.ContainsFunc(now.Upstreams, func(u proxy.Upstream) bool {
		return u.Name == "a" && u.State == "running" && u.InFlight == 1
	}) || !slices.ContainsFunc(now.Traffic, func(t proxy.Traffic) bool {
		return t.Upstream == "b" && t.Failed.InARow > 0 && t.Failed.Cause == "start failed"
	}) {
		t.Errorf("%+v", now)
	}
	server.CloseClientConnections()
	legacy.hears(`"id":5`)
	r.await(t, "call old operator legacy tools/call a hang closed")
	legacy.leave()
	r.await(t, "session old operator stdio legacy ok")

	p.Close()
	r.await(t, "session anonymous http modern")
	r.await(t, "upstream a legacy ok")
	r.await(t, "upstream b legacy error start_failed")
	r.balanced(t)
}

// A client of the modern era names itself with each request, and its session has that name.
func TestModernClientHasAName(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	p, _ := serve(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}},
		proxy.Hooks{RequestBegan: func(proxy.Request) {}})
	c := openStdio(t, p)
	c.say(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"new","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	c.hears(`"id":1`)
	if all := p.Snapshot().Sessions; len(all) != 1 || all[0].Client != "new" || all[0].Era != "modern" {
		t.Errorf("%+v", all)
	}
	c.leave()
}

// A link to a host elsewhere comes up and is lost.
func TestLinkHooks(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	host, err := proxy.NewHost(&config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}},
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
	var r recorder
	p, url := serve(t, config.Config{Links: []config.Link{{Name: "far", Dial: dial, Heartbeat: time.Minute}}}, r.hooks())
	r.awaitOpen(t, "link", 1)
	if got := listTools(url); len(got) != 2 {
		t.Error("tools:", got)
	}
	if links := p.Snapshot().Links; len(links) != 1 || !links[0].Up || !slices.Equal(links[0].Upstreams, []string{"a"}) {
		t.Errorf("%+v", links)
	}
	host.Close()
	<-over
	r.await(t, "link far a closed link_lost")
	if links := p.Snapshot().Links; links[0].Up || links[0].Lost != 1 {
		t.Errorf("%+v", links)
	}
	eventually(t, "why it does not come back", func() bool { return p.Snapshot().Links[0].Why == "is unreachable: connection refused" })
	p.Close()
	r.balanced(t)
}
