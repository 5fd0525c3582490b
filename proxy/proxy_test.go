package proxy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func newProxy(t *testing.T, cfg config.Config) *Proxy {
	t.Helper()
	p, err := New(&cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Close may come at any time, and again; goleak looks for what it leaves.
func TestClose(t *testing.T) {
	cfg := config.Config{Frontend: config.Frontend{Listen: []string{"127.0.0.1:0"}}, Links: []config.Link{{Name: "far", Dial: "tcp://127.0.0.1:1", Heartbeat: time.Second}}}
	cfg.Cluster = config.Cluster{KeyFile: filepath.Join(t.TempDir(), "key"), Listen: "127.0.0.1:0"}
	if err := os.WriteFile(cfg.Cluster.KeyFile, []byte(strings.Repeat("ab", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for when, run := range map[string]func(*Proxy) func() error{
		"at once":          func(*Proxy) func() error { return nil },
		"when it listens":  func(p *Proxy) func() error { p.Listen(); return nil },
		"when it serves":   func(p *Proxy) func() error { p.Listen(); return p.Serve },
		"with a handler":   func(p *Proxy) func() error { p.Handler(); return nil },
		"before it serves": func(p *Proxy) func() error { p.Listen(); p.Close(); return p.Serve },
	} {
		p := newProxy(t, cfg)
		over := make(chan error, 1)
		if serve := run(p); serve != nil {
			go func() { over <- serve() }()
		} else {
			over <- nil
		}
		for range 3 {
			if err := p.Close(); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		if err := <-over; err != nil {
			t.Errorf("%s: Serve returned %v", when, err)
		}
	}
}

// A client on stdio gets the errors of a shutdown as any other client. After it there are no new
// clients.
func TestStdioEndsWithTheProxy(t *testing.T) {
	p := newProxy(t, config.Config{})
	serve := func() (in *os.File, over chan error) {
		stdin, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		out, stdout, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); out.Close() })
		over = make(chan error, 1)
		go func() { over <- p.ServeStdio(context.Background(), stdin, stdout) }()
		return in, over
	}
	_, over := serve()
	if err := p.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-over; !errors.Is(err, jsonrpc.ErrClosed) {
		t.Error("the client's end:", err)
	}
	if _, over = serve(); !errors.Is(<-over, jsonrpc.ErrClosed) {
		t.Error("a client after the end")
	}
}

// A configuration may change before anything runs.
func TestReloadBeforeTheStart(t *testing.T) {
	link := func(name string) config.Link {
		return config.Link{Name: name, Dial: "tcp://127.0.0.1:1", Heartbeat: time.Second}
	}
	p := newProxy(t, config.Config{Links: []config.Link{link("one"), link("two")}})
	defer p.Close()
	if err := p.Reload(&config.Config{Links: []config.Link{link("two"), link("three")}}); err != nil {
		t.Fatal(err)
	}
	p.Handler()
	var names []string
	for _, l := range p.Snapshot().Links {
		names = append(names, l.Name)
	}
	if !slices.Equal(names, []string{"two", "three"}) {
		t.Error("links:", names)
	}
}

// What cannot be is said by New, before anything runs.
func TestNewRefuses(t *testing.T) {
	for what, tt := range map[string]struct {
		cfg  config.Config
		o    Options
		mine bool // the configuration is to blame
	}{
		"a token that is not there":   {cfg: config.Config{Frontend: config.Frontend{TokenFile: "no-such-file"}}, mine: true},
		"a host that dials, on stdio": {cfg: config.Config{Links: []config.Link{{Name: "far", Accept: true}}}, o: Options{Stdio: true}, mine: true},
		"TLS files that are not there": {mine: true, cfg: config.Config{Upstreams: []config.Upstream{
			{Name: "a", Remote: config.Remote{URL: "https://a.example/mcp", TLS: config.TLS{CA: "no-such-file"}}}}}},
		"an open door": {cfg: config.Config{Frontend: config.Frontend{Listen: []string{"0.0.0.0:80"}}}},
	} {
		_, err := New(&tt.cfg, tt.o)
		if _, ok := errors.AsType[config.Problems](err); err == nil || ok != tt.mine {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A port that is taken is an error that says so, and no other port stays open.
func TestListenAtAllOrNone(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p := newProxy(t, config.Config{Frontend: config.Frontend{Listen: []string{"127.0.0.1:0", taken.Addr().String()}}})
	defer p.Close()
	if _, err := p.Listen(); err == nil {
		t.Fatal("no error")
	}
	free := p.web.listeners[0].Addr().String()
	if resp, err := http.Get("http://" + free + "/healthz"); err == nil {
		resp.Body.Close()
		t.Error(free, "is open")
	}
}

// A host is ready while it takes proxies in: not before, and not when it has lost its listener.
func TestReadinessOfAHost(t *testing.T) {
	h, err := NewHost(&config.Config{}, config.HostLink{Listen: "unix://" + filepath.Join(t.TempDir(), "link.sock")}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	says := func() string {
		w := httptest.NewRecorder()
		h.operators.server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/readyz", nil))
		return w.Body.String()
	}
	const down = "listeners: not all are up\nnot ready\n"
	if _, err := h.Listen(); err != nil || says() != down {
		t.Errorf("before: %q (%v)", says(), err)
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve() }()
	for end := time.Now().Add(20 * time.Second); says() != "ok\n"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never was ready: %q", says())
		}
	}
	h.listener.Close()
	if err := <-served; err == nil || says() != down {
		t.Errorf("without a listener: %q (%v)", says(), err)
	}
}

// The name in publicURL is that by which clients come: it needs no second place.
func TestPublicURLIsAllowed(t *testing.T) {
	p := newProxy(t, config.Config{Frontend: config.Frontend{PublicURL: "https://mcp.example.com:8443/base", AllowedHosts: []string{"other.example.com"}}})
	defer p.Close()
	for host, refused := range map[string]bool{
		"mcp.example.com": false, "mcp.example.com:8443": false, "other.example.com": false, "evil.example.com": true, "base": true,
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+"/nowhere", nil)
		w := httptest.NewRecorder()
		p.Handler().ServeHTTP(w, r)
		if (w.Code == http.StatusForbidden) != refused {
			t.Errorf("Host %s: %d", host, w.Code)
		}
	}
}

// A name that "*" alone lets in may be another site's that leads here (DNS rebinding): it reads
// probes, and not the metrics, which have the names of upstreams, tools and clients.
func TestMetricsByAnyName(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, config.Config{Frontend: config.Frontend{AllowedHosts: []string{"*", "mcp.example.com"}}, Admin: config.Admin{Listen: []string{"127.0.0.1:9090"}, TokenFile: token}})
	defer p.Close()
	for _, row := range []struct {
		host, path, token string
		want              int
	}{
		{"evil.example.com:9090", "/metrics", "", http.StatusUnauthorized},
		{"evil.example.com:9090", "/metrics", "Bearer secret", http.StatusOK},
		{"evil.example.com:9090", "/livez", "", http.StatusOK},
		{"evil.example.com:9090", "/readyz", "", http.StatusOK},
		{"mcp.example.com:9090", "/metrics", "", http.StatusOK},
		{"localhost:9090", "/metrics", "", http.StatusOK},
		{"10.1.2.3:9090", "/metrics", "", http.StatusOK},
		{"[fd00::1]:9090", "/metrics", "", http.StatusOK},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+row.host+row.path, nil)
		if row.token != "" {
			r.Header.Set("Authorization", row.token)
		}
		w := httptest.NewRecorder()
		if p.operators.server.ServeHTTP(w, r); w.Code != row.want {
			t.Errorf("%s at %s (%s): %d, want %d", row.path, row.host, row.token, w.Code, row.want)
		}
	}
}

// Who a link proves itself to is behind a pointer: a reload of the same is no change.
func TestReloadKeepsLinksWithAuth(t *testing.T) {
	read := func() *config.Config {
		return &config.Config{Links: []config.Link{{
			Name: "far", Key: "links.far", Dial: "ws://127.0.0.1:1/link", Heartbeat: time.Second,
			Auth: config.UpstreamAuth{OAuth: &config.OAuth{Scopes: []string{"a"}}},
		}}}
	}
	p := newProxy(t, *read())
	defer p.Close()
	before := p.links.all[0]
	if err := p.Reload(read()); err != nil {
		t.Fatal(err)
	}
	if p.links.all[0] != before {
		t.Error("the link begins anew")
	}
	other := read()
	other.Links[0].Auth.OAuth.Scopes[0] = "b"
	if err := p.Reload(other); err != nil {
		t.Fatal(err)
	}
	if p.links.all[0] == before {
		t.Error("the link goes on with other scopes")
	}
}

// Credentials that take a moment to end do so together: there may be many servers, and
// little time.
func TestCredentialsEndTogether(t *testing.T) {
	p := newProxy(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Key: "upstreams.a", Remote: config.Remote{URL: "http://127.0.0.1:1/mcp"}}, {Name: "b", Key: "upstreams.b", Remote: config.Remote{URL: "http://127.0.0.1:1/mcp"}},
	}})
	ending := &endingCredentials{began: make(chan int, 2), both: make(chan struct{})}
	for _, r := range p.host.remotes {
		r.Credentials = ending
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Close() }()
	for range cap(ending.began) {
		select {
		case <-ending.began:
		case <-ended:
			t.Fatal("not all credentials have ended")
		case <-time.After(10 * time.Second):
			t.Error("one waits for the other")
		}
	}
	close(ending.both)
	<-ended
}

// endingCredentials end when all have begun to.
type endingCredentials struct {
	credentials
	began chan int
	both  chan struct{}
}

func (e *endingCredentials) Close() {
	e.began <- 1
	<-e.both
}

// A refused client learns little, and the log names the rule.
func TestLogOfRefusedSessions(t *testing.T) {
	policies, err := policiesOf(&config.Config{Policies: []config.Policy{
		{Key: "policies[0]", Who: config.Who{Token: "ci"}, Limits: config.PolicyLimits{Sessions: 1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	admit := admitOf(policies, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, name := range []string{"ci", "ci", "eve"} {
		admit(&identity.Identity{Principal: identity.Principal{Kind: identity.Token, Name: name}})
	}
	for _, want := range []string{`principal=token:ci rule=policies[0] cause="too many sessions`, `principal=token:eve rule=none cause="no policy`} {
		if strings.Count(said.String(), want) != 1 {
			t.Errorf("the log has not %q once: %s", want, &said)
		}
	}
}
