package ops

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a Server on TCP and on a Unix socket. It returns how to ask each.
func serve(t *testing.T, s *Server) (tcp, unix func(method, path string, header ...string) (int, string)) {
	t.Helper()
	if s.Ready == nil {
		s.Ready = func() []Check { return nil }
	}
	s.Snapshot = func() observe.Snapshot {
		began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return observe.Snapshot{Process: observe.Process{Role: "proxy", Version: "1", PID: 1, Began: began}, Links: []observe.Link{{Name: "tools"}}}
	}
	s.FromOtherSite = frontend.FromOtherSite
	s.Admit = func(w http.ResponseWriter, r *http.Request) error {
		if strings.HasPrefix(r.Host, "evil") {
			http.Error(w, "Host is not allowed", http.StatusForbidden)
			return errors.New("host")
		}
		return nil
	}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	local := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() { local.Serve(l); close(done) }()
	t.Cleanup(func() { local.Close(); <-done })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return asker(t, web.URL, http.DefaultTransport), asker(t, "http://localhost", &http.Transport{DialContext: dial, DisableKeepAlives: true})
}

// Whoever does not read a response loses the connection, on either server.
func TestUnreadResponses(t *testing.T) {
	operators := &Server{Ready: func() []Check { return nil }, Snapshot: func() observe.Snapshot { return observe.Snapshot{} }}
	operators.Admit = func(http.ResponseWriter, *http.Request) error { return nil }
	operators.FromOtherSite = frontend.FromOtherSite
	page := &ConnectPage{Guard: new(frontend.Guard)}
	for path, h := range map[string]http.Handler{"/livez": operators, "/page.js": operators, "/nothing": operators, "/connect.js": page} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				l := make(oneConn, 1)
				l <- server
				web := &http.Server{Handler: h}
				go web.Serve(l)
				io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
				time.Sleep(readTime + time.Second)
				client.SetReadDeadline(time.Now())
				if text, err := io.ReadAll(client); len(text) > 0 || err != nil {
					t.Errorf("got %q, %v; want that the connection has ended", text, err)
				}
				client.Close()
				web.Close()
			})
		})
	}
}

// A oneConn accepts what it holds.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l oneConn) Close() error {
	close(l)
	return nil
}

func (l oneConn) Addr() net.Addr { return &net.UnixAddr{} }

func asker(t *testing.T, base string, by http.RoundTripper) func(method, path string, header ...string) (int, string) {
	return func(method, path string, header ...string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(method, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range header {
			name, v, _ := strings.Cut(h, ": ")
			r.Header.Set(name, v)
			if name == "Host" {
				r.Host = v
			}
		}
		resp, err := by.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s %q lets pages read", method, path, header)
		}
		return resp.StatusCode, string(body)
	}
}

func TestWhoMaySeeWhat(t *testing.T) {
	token := func() (string, error) { return "secret", nil }
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1") })
	tcp, unix := serve(t, &Server{Token: token, Metrics: metrics})
	for _, c := range []struct {
		what         string
		method, path string
		header       []string
		tcp, unix    int
	}{
		{"probes are open", "GET", "/livez", nil, 200, 200},
		{"", "GET", "/readyz?verbose", nil, 200, 200},
		{"", "HEAD", "/readyz", nil, 200, 200},
		{"metrics are open", "GET", "/metrics", nil, 200, 200},
		{"so is the page, which has no data", "GET", "/", nil, 200, 200},
		{"", "GET", "/operators.js", nil, 200, 200},
		{"", "POST", "/", nil, 405, 405},
		{"to which anybody may link", "GET", "/", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200, 200},
		{"but not show it as his own", "GET", "/", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403, 403},
		{"or run its scripts", "GET", "/operators.js", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"}, 403, 403},
		{"all else needs the token", "GET", "/status", nil, 401, 200},
		{"", "GET", "/nothing", nil, 401, 404},
		{"", "GET", "/status", []string{"Authorization: Bearer secret"}, 200, 200},
		{"", "GET", "/status", []string{"Authorization: bearer secret"}, 200, 200},
		{"", "GET", "/status", []string{"Authorization: Bearer secre"}, 401, 200},
		{"", "GET", "/status", []string{"Authorization: Bearer "}, 401, 200},
		{"", "GET", "/status", []string{"Authorization: Basic secret"}, 401, 200},
		{"", "GET", "/status?token=secret", nil, 401, 200},
		{"paths are as they are written", "GET", "//livez", nil, 401, 404},
		{"only GET", "POST", "/livez", nil, 405, 405},
		{"", "OPTIONS", "/status", nil, 405, 405},
		{"other names do not lead here", "GET", "/livez", []string{"Host: evil.example"}, 403, 403},
		{"at a socket, to which a port may lead, none but those of this machine", "GET", "/status", []string{"Host: allowed.example", "Authorization: Bearer secret"}, 200, 403},
		{"", "GET", "/status", []string{"Host: 127.0.0.1:9090"}, 401, 200},
		{"", "GET", "/status", []string{"Host: [::1]:9090"}, 401, 200},
		{"", "GET", "/status", []string{"Host: Localhost"}, 401, 200},
		{"nor do pages of others", "GET", "/metrics", []string{"Origin: https://evil.example"}, 403, 403},
		{"", "GET", "/status", []string{"Origin: null", "Authorization: Bearer secret"}, 403, 403},
		{"", "GET", "/status", []string{"Sec-Fetch-Site: cross-site", "Authorization: Bearer secret"}, 403, 403},
		{"", "GET", "/livez", []string{"Sec-Fetch-Site: same-origin"}, 200, 200},
	} {
		if got, _ := tcp(c.method, c.path, c.header...); got != c.tcp {
			t.Errorf("%s: TCP %s %s %q = %d, want %d", c.what, c.method, c.path, c.header, got, c.tcp)
		}
		if got, _ := unix(c.method, c.path, c.header...); got != c.unix {
			t.Errorf("%s: unix %s %s %q = %d, want %d", c.what, c.method, c.path, c.header, got, c.unix)
		}
	}
}

// Without a token, or with an unreadable one, only probes are served on TCP.
func TestNoToken(t *testing.T) {
	broken := func() (string, error) { return "", errors.New("is gone") }
	for why, token := range map[string]func() (string, error){"without admin.tokenFile": nil, "cannot be used": broken} {
		tcp, _ := serve(t, &Server{Token: token})
		if got, text := tcp("GET", "/status", "Authorization: Bearer "); got != map[bool]int{true: 403, false: 401}[token == nil] || !strings.Contains(text, why) {
			t.Errorf("status %d %s, want %s", got, text, why)
		}
		if got, _ := tcp("GET", "/livez"); got != 200 {
			t.Errorf("livez %d", got)
		}
		if got, _ := tcp("GET", "/metrics"); got != 404 {
			t.Errorf("metrics %d", got)
		}
	}
}

func TestReady(t *testing.T) {
	checks := []Check{{Name: "drain"}, {Name: "upstream docs", Why: "start failed"}}
	s := &Server{Ready: func() []Check { return checks }}
	_, ask := serve(t, s)
	want := func(path string, status int, body string) {
		t.Helper()
		if got, text := ask("GET", path); got != status || text != body {
			t.Errorf("%s = %d %q, want %d %q", path, got, text, status, body)
		}
	}
	want("/readyz", 503, "upstream docs: start failed\nnot ready\n")
	want("/readyz?verbose", 503, "drain: ok\nupstream docs: start failed\nnot ready\n")
	want("/livez", 200, "ok\n")
	checks = checks[:1]
	want("/readyz", 200, "ok\n")
	want("/readyz?verbose", 200, "drain: ok\nok\n")
}

// Probes on TCP need no token, and without it they name no upstream and no link.
func TestReadinessNamesNothingToStrangers(t *testing.T) {
	checks := []Check{{Name: "drain"}, {Name: "upstream docs", Among: "upstreams", Why: "did not start: secret"}, {Name: "upstream files", Among: "upstreams"}, {Name: "link far", Among: "links"}}
	ready := func() []Check { return checks }
	good, bad := "Authorization: Bearer secret", "Authorization: Bearer guess"
	const (
		few, many            = "upstreams: not all are ready\nnot ready\n", "upstream docs: did not start: secret\nnot ready\n"
		fewChecks, allChecks = "drain: ok\nupstreams: not all are ready\nlinks: ok\nnot ready\n", "drain: ok\nupstream docs: did not start: secret\nupstream files: ok\nlink far: ok\nnot ready\n"
	)
	token := func() (string, error) { return "secret", nil }
	open, local := serve(t, &Server{Ready: ready, Token: token})
	closed, _ := serve(t, &Server{Ready: ready}) // where no token will do
	for _, c := range []struct {
		ask          func(method, path string, header ...string) (int, string)
		header       string
		text, checks string
	}{
		{open, "X: y", few, fewChecks},
		{open, bad, few, fewChecks},
		{open, good, many, allChecks},
		{closed, "Authorization: Bearer ", few, fewChecks},
		{local, "X: y", many, allChecks},
	} {
		if status, text := c.ask("GET", "/readyz", c.header); status != 503 || text != c.text {
			t.Errorf("%s: %d %q, want %q", c.header, status, text, c.text)
		}
		if status, text := c.ask("GET", "/readyz?verbose", c.header); status != 503 || text != c.checks {
			t.Errorf("verbose, %s: %d %q, want %q", c.header, status, text, c.checks)
		}
	}
	checks[1].Why = ""
	if status, text := open("GET", "/readyz?verbose"); status != 200 || text != "drain: ok\nupstreams: ok\nlinks: ok\nok\n" {
		t.Errorf("ready: %d %q", status, text)
	}
}

func TestStatus(t *testing.T) {
	_, ask := serve(t, &Server{})
	want := `{"process":{"role":"proxy","version":"1","pid":1,"began":"2026-01-02T03:04:05Z","dir":"","draining":false},"traffic":[],"upstreams":[],"sessions":[],"links":[{"name":"tools","up":false,"lost":0}]}` + "\n"
	if status, body := ask("GET", "/status"); status != 200 || body != want {
		t.Errorf("%d %s", status, body)
	}
}
