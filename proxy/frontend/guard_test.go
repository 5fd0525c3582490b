package frontend

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

func TestGuardHost(t *testing.T) {
	g := &Guard{
		Listen:       []string{"proxy.local:8080", "0.0.0.0:80", "[2001:db8::1]:80", "unix:///run/mcp.sock"},
		AllowedHosts: []string{"mcp.example", "other.example:8443", "[2001:db8::2]"},
	}
	local := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 80}
	tests := []struct {
		host string
		want bool
	}{
		{"localhost", true}, {"LocalHost:1234", true}, {"localhost.", true},
		{"127.0.0.1:8080", true}, {"127.8.9.1", true}, {"[::1]:8080", true}, {"[::1]", true},
		{"proxy.local", true}, {"PROXY.local:99", true}, {"[2001:db8::1]", true},
		{"mcp.example", true}, {"mcp.example:444", true},
		{"[2001:db8::2]:99", true}, {"[2001:db8::3]:99", false},
		{"other.example:8443", true}, {"other.example", false}, {"other.example:80", false},
		{"192.0.2.7:80", true}, {"192.0.2.8:80", false},
		{"evil.example", false}, {"localhost.evil.example", false}, {"127.0.0.1.evil.example", false},
		{"unix", false}, {"", false}, {":80", false}, {"*", false},
	}
	for _, tt := range tests {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(local)))
		r.Host = tt.host
		if got := g.hostAllowed(r); got != tt.want {
			t.Errorf("Host %q let in: %v, want %v", tt.host, got, tt.want)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "http://evil.example/", nil)
	if !(&Guard{AllowedHosts: []string{"*"}}).hostAllowed(r) {
		t.Error(`AllowedHosts "*" does not let in all`)
	}
	r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.UnixAddr{Name: "/run/mcp.sock"})))
	if !new(Guard).hostAllowed(r) {
		t.Error("on a Unix socket any Host is harmless")
	}
}

func TestGuardOrigin(t *testing.T) {
	g := &Guard{AllowedOrigins: []string{"https://app.example", "vscode-webview://panel"}}
	tests := []struct {
		origin    string
		let, cors bool
	}{
		{"", true, false},
		{"http://localhost:5173", true, true}, {"https://127.0.0.1", true, true}, {"http://[::1]:80", true, true},
		{"https://app.example", true, true}, {"HTTPS://APP.example", true, true}, {"vscode-webview://panel", true, true},
		{"https://app.example:444", false, false}, {"http://app.example", false, false},
		{"https://evil.example", false, false}, {"null", false, false}, {"chrome-extension://localhost", false, false},
		{"http://localhost.evil.example", false, false}, {"http://evil.example#localhost", false, false}, {"://", false, false},
	}
	for _, tt := range tests {
		w := serveGuarded(g, http.MethodPost, "Origin", tt.origin)
		if let := w.Code == http.StatusTeapot; let != tt.let {
			t.Errorf("Origin %q: status %d, want it let in: %v", tt.origin, w.Code, tt.let)
		}
		want := ""
		if tt.cors {
			want = tt.origin
		}
		if got := w.Header().Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("Origin %q: Access-Control-Allow-Origin %q, want %q", tt.origin, got, want)
		}
	}
	w := serveGuarded(&Guard{AllowedOrigins: []string{"*"}}, http.MethodPost, "Origin", "https://any.example")
	if got := w.Header().Get("Access-Control-Allow-Origin"); got != "https://any.example" {
		t.Errorf("AllowedOrigins *: Allow-Origin %q", got)
	}
}

// serveGuarded sends one request with one header through g to a teapot behind it.
func serveGuarded(g *Guard, method, name, value string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost/mcp", nil)
	if value != "" {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	if who, ok := g.identify(w, r, nil); ok {
		w.Header().Set("Principal", who.String())
		w.WriteHeader(http.StatusTeapot)
	}
	return w
}

func TestGuardPreflight(t *testing.T) {
	g := &Guard{Clients: secret("secret"), AllowedOrigins: []string{"https://app.example"}}
	for _, origin := range []string{"https://app.example", "http://localhost:5173"} {
		w := serveGuarded(g, http.MethodOptions, "Origin", origin)
		if w.Code != http.StatusNoContent {
			t.Errorf("preflight from %s without token: %d, want 204", origin, w.Code)
		}
		for name, want := range map[string]string{
			"Access-Control-Allow-Origin":   origin,
			"Access-Control-Allow-Methods":  "GET, POST, DELETE",
			"Access-Control-Allow-Headers":  "Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id",
			"Access-Control-Expose-Headers": "Mcp-Session-Id, Retry-After, WWW-Authenticate",
			"Vary":                          "Origin",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("from %s: %s: %q, want %q", origin, name, got, want)
			}
		}
	}
	r := httptest.NewRequest(http.MethodOptions, "http://localhost/mcp", nil)
	r.Header.Set("Origin", "https://app.example")
	r.Header.Set("Access-Control-Request-Headers", "content-type, mcp-param-region,Mcp-Param-A!, mcp-param-, mcp-param-b:c, x-other")
	w := httptest.NewRecorder()
	g.identify(w, r, nil)
	if got := w.Header().Get("Access-Control-Allow-Headers"); got != corsHeaders+", mcp-param-region, Mcp-Param-A!" {
		t.Errorf("Access-Control-Allow-Headers: %q", got)
	}
	if w := serveGuarded(g, http.MethodOptions, "Origin", "https://evil.example"); w.Code != http.StatusForbidden {
		t.Errorf("foreign preflight: %d, want 403", w.Code)
	}
}

// TestGuardClients: the client gets the refusals of the Identifier.
func TestGuardClients(t *testing.T) {
	g := &Guard{Clients: secret("secret")}
	tests := []struct {
		header string
		status int
		asks   string
		says   string
	}{
		{"Bearer secret", http.StatusTeapot, "", ""},
		{"", http.StatusUnauthorized, "Bearer of ", "no token"},
		{"Bearer Secret", http.StatusUnauthorized, "Bearer of invalid_token", "a wrong token"},
	}
	for _, tt := range tests {
		w := serveGuarded(g, http.MethodPost, "Authorization", tt.header)
		if w.Code != tt.status || w.Header().Get("WWW-Authenticate") != tt.asks {
			t.Errorf("Authorization %q: %d, %q; want %d, %q", tt.header,
				w.Code, w.Header().Get("WWW-Authenticate"), tt.status, tt.asks)
		}
		if body := w.Body.String(); !strings.Contains(body, tt.says) {
			t.Errorf("Authorization %q: %s; want %q", tt.header, body, tt.says)
		}
	}
}

// TestUnknownUser: a user on a Unix socket whom the system does not know is refused.
func TestUnknownUser(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system says of nobody who it is")
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close() // so that the system cannot say it
	r := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", nil)
	w := httptest.NewRecorder()
	if who, ok := new(Guard).identify(w, r.WithContext(identity.WithSocket(t.Context(), c)), nil); ok || w.Code != http.StatusForbidden {
		t.Errorf("%v, %d", who, w.Code)
	}
}

// A forwarded port can lead a browser to a Unix socket, under the name of an attacker's page.
func TestBrowserOnUnixSocket(t *testing.T) {
	for _, c := range []struct {
		host, header string
		ok           bool
	}{
		{"anything", "", true},
		{"localhost:8080", "Sec-Fetch-Site", true},
		{"evil.example", "Sec-Fetch-Site", false},
		{"evil.example", "Origin", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+c.host+"/sse", nil)
		if c.header != "" {
			r.Header.Set(c.header, "same-origin")
		}
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "s", Net: "unix"}))
		if err := new(Guard).Admit(httptest.NewRecorder(), r); (err == nil) != c.ok {
			t.Errorf("%s with %q: %v", c.host, c.header, err)
		}
	}
}

func TestGuardCheck(t *testing.T) {
	tests := []struct {
		g  Guard
		ok bool
	}{
		{Guard{Listen: []string{"127.0.0.1:8080", "[::1]:0", "localhost:1", "unix:///run/mcp.sock"}}, true},
		{Guard{Listen: []string{"127.0.0.1:8080", "0.0.0.0:8080"}}, false},
		{Guard{Listen: []string{":8080"}}, false},
		{Guard{Listen: []string{"proxy.example:80"}}, false},
		{Guard{Listen: []string{":8080"}, Clients: secret("secret")}, true},
		{Guard{Listen: []string{":8080"}, Insecure: true}, true},
	}
	for _, tt := range tests {
		if err := tt.g.Check(); (err == nil) != tt.ok {
			t.Errorf("Check of %v: %v, want ok: %v", tt.g.Listen, err, tt.ok)
		}
	}
}

// TestHeadersThatComeTwice: components could use different values of a duplicate header, so such a
// request is refused.
func TestHeadersThatComeTwice(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Guard.Clients = secret("secret") })
	auth := []string{"Authorization", "Bearer secret"}
	for _, path := range []string{"/mcp", "/mcp/files", "/sse", "/message", "/ws", "/ws/files"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			for _, tt := range []struct {
				name, first, second string
				code                int
			}{
				{"Origin", "http://localhost", "http://localhost", -32600},
				{"Authorization", "Bearer secret", "Bearer secret", -32600},
				{"Mcp-Session-Id", "x", "x", -32600},
				{"Mcp-Protocol-Version", "2025-11-25", "2025-11-25", -32600},
				{"Mcp-Protocol-Version", "2025-11-25", "2026-07-28", -32020},
				{"Mcp-Protocol-Version", "2026-07-28", "2026-07-28", -32020},
			} {
				req := ts.at(path).request(method, `{"jsonrpc":"2.0","method":"notifications/x"}`, append(auth, tt.name, tt.first)...)
				req.Header.Add(tt.name, tt.second)
				resp := ts.at(path).do(req)
				if resp.StatusCode != http.StatusBadRequest { // its body may be a stream without an end
					t.Errorf("%s %s with two %s: %s", method, path, tt.name, resp.Status)
					continue
				}
				wantRefusal(t, resp, http.StatusBadRequest, tt.code)
			}
		}
	}
}

// TestTwoHosts: net/http rejects them. No client sends two.
func TestTwoHosts(t *testing.T) {
	ts := newTestServer(t, nil)
	for _, hosts := range []string{"Host: localhost\r\nHost: localhost\r\n", "Host: localhost\r\nHost: evil.example\r\n", "Host: localhost, evil.example\r\n"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", hosts)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := http.StatusBadRequest; resp.StatusCode != want && strings.Count(hosts, "Host:") == 2 || resp.StatusCode < want {
			t.Errorf("%q: %s", hosts, resp.Status)
		}
	}
}

// TestGuardCoversEverything looks for an endpoint without a guard.
func TestGuardCoversEverything(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Guard.Clients = secret("secret") })
	for _, path := range []string{"/mcp", "/mcp/files", "/sse", "/message", "/ws", "/ws/files", "/", "/other"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete, http.MethodPut} {
			c := ts.at(path)
			c.session = "x"
			auth := []string{"Authorization", "Bearer secret"}
			wantRefusal(t, c.do(c.request(method, "{}")), http.StatusUnauthorized, -32600)
			wantRefusal(t, c.do(c.request(method, "{}", append(auth, "Host", "evil.example")...)), http.StatusForbidden, -32600)
			wantRefusal(t, c.do(c.request(method, "{}", append(auth, "Origin", "http://evil.example")...)), http.StatusForbidden, -32600)
		}
	}
	c := ts.at("/healthz")
	if body := wantStatus(t, c.get("Host", "evil.example"), http.StatusOK); body != "ok" {
		t.Errorf("/healthz: %q, want ok", body)
	}
}
