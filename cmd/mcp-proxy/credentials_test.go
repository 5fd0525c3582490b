//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// mark is part of all secrets here: no log and no error may contain it.
const mark = "m4rked"

// A guarded is a server that requires tokens and forwards to another one, and the authorization
// server that issues the tokens for a secret.
type guarded struct {
	*httptest.Server
	behind http.Handler

	mu     sync.Mutex
	secret string
	issued int
	good   map[string]bool // tokens
}

func newGuarded(t *testing.T, behind string) *guarded {
	t.Helper()
	u, err := url.Parse("http://" + behind)
	if err != nil {
		t.Fatal(err)
	}
	g := &guarded{behind: httputil.NewSingleHostReverseProxy(u), secret: mark + "-secret", good: map[string]bool{}}
	g.Server = httptest.NewServer(g)
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, wellKnown := strings.CutPrefix(r.URL.Path, "/.well-known/oauth-protected-resource")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case wellKnown:
		fmt.Fprintf(w, `{"resource":"%s%s","authorization_servers":["%s"]}`, g.URL, path, g.URL)
	case r.URL.Path == "/.well-known/oauth-authorization-server":
		fmt.Fprintf(w, `{"issuer":"%s","token_endpoint":"%s/token"}`, g.URL, g.URL)
	case r.URL.Path == "/token":
		g.token(w, r)
	case !g.let(r):
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+g.URL+"/.well-known/oauth-protected-resource"+r.URL.Path+`"`)
		w.WriteHeader(http.StatusUnauthorized)
	default:
		w.Header().Del("Content-Type")
		g.behind.ServeHTTP(w, r)
	}
}

func (g *guarded) token(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, secret, _ := r.BasicAuth(); secret != g.secret {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":"%s is wrong"}`, secret)
		return
	}
	g.issued++
	token := fmt.Sprint(mark, "-token-", g.issued)
	g.good[token] = true
	fmt.Fprintf(w, `{"access_token":"%s","token_type":"Bearer","expires_in":3600}`, token)
}

// let reports whether a request may pass.
func (g *guarded) let(r *http.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return bearer && g.good[token]
}

// revoke revokes all tokens.
func (g *guarded) revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.good)
}

func (g *guarded) tokens() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.issued
}

const byClientCredentials = "auth: {clientCredentials: {clientId: me, clientSecretFile: secret}}"

// A remote server that requires a token gets one, on each transport and in each era, and a new one after
// it has revoked the first.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	for _, l := range append([]layout{{}}, otherPairs...) {
		for _, scheme := range []string{"http", "ws"} {
			t.Run(l.pair()+"/"+scheme, func(t *testing.T) {
				s := emptySite(t)
				s.layout = l
				g := newGuarded(t, keepServing(t, fmt.Sprintf("FAKE_ERA: %q", l.era)))
				s.write("secret", g.secret+"\n")
				path := map[string]string{"http": "/mcp", "ws": "/ws"}[scheme]
				s.run(fmt.Sprintf("upstreams: {a: {url: '%s%s%s', stopGrace: 500ms, %s}}\n", scheme, strings.TrimPrefix(g.URL, "http"), path, byClientCredentials))
				c := s.connectOver(map[bool]string{false: "WebSocket", true: "HTTP"}[scheme == "http"])
				if got := c.get(1, "echo"); strings.HasPrefix(got, "!") {
					t.Error("got", got)
				}
				g.revoke()
				if got := c.get(2, "echo"); strings.HasPrefix(got, "!") {
					t.Error("after the token was revoked:", got)
				}
				if n, want := g.tokens(), map[string]int{"http": 2, "ws": 1}[scheme]; n != want {
					t.Errorf("%d tokens were issued, want %d", n, want)
				}
				if s.log.count(mark) > 0 {
					t.Errorf("a secret is in the log: %s", s.log)
				}
			})
		}
	}
}

// A link that is dialled through a guard sends a token at each dial.
func TestClientCredentialsOfLinks(t *testing.T) {
	s := emptySite(t)
	s.layout = layout{place: "TCP link"} // except that this test writes the configuration
	s.far = newFarHost(t, s.load("host.yaml", "upstreams: {a: {command: fakeserver, stopGrace: 500ms}, b: {command: fakeserver}}\n", true), 0, s.log, s.events)
	at := s.far.listen("ws://127.0.0.1:0/link")
	g := newGuarded(t, strings.TrimPrefix(at, "tcp://"))
	s.write("secret", g.secret)
	s.run(fmt.Sprintf("links: {far: {dial: 'ws%s/link', %s}}\n", strings.TrimPrefix(g.URL, "http"), byClientCredentials))
	c := s.connect()
	c.works(1, "a__echo")
	g.revoke()
	s.far.cut(false)
	eventually(t, "another token", func() bool { return g.tokens() == 2 })
	c.works(100, "a__echo")
	if s.log.count(mark) > 0 {
		t.Errorf("a secret is in the log: %s", s.log)
	}
}

// The program tells its client and the log what is wrong, without the secret. It works as
// soon as the file is right.
func TestWrongClientSecret(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	g := newGuarded(t, keepServing(t, `FAKE_ERA: ""`))
	s.write("secret", mark+"-wrong")
	p := startProgram(t, nil, "stdio", "--log-level", "debug", "--config", s.write("mcp-proxy.yaml",
		fmt.Sprintf("upstreams: {a: {url: '%s/mcp', stopGrace: 500ms, %s}}\n", g.URL, byClientCredentials)))
	greet := func() string { // fails with the only upstream
		p.say(initialize)
		return p.hear()
	}
	got := greet()
	if want := `"message":"Connection closed: a: authentication failed: the authorization server rejected our credentials (HTTP 401 invalid_client)"`; !strings.Contains(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.write("secret", g.secret)
	eventually(t, "the right secret", func() bool {
		got = greet()
		return strings.Contains(got, `"result"`) || strings.Contains(got, mark)
	})
	if text := p.log.String() + got; strings.Contains(text, mark) {
		t.Errorf("a secret is in %s", text)
	}
	if !strings.Contains(p.log.String(), "invalid_client") {
		t.Errorf("the log does not say why: %s", p.log)
	}
}

// An upstream whose credentials change restarts with the new ones, and the next upstream continues.
func TestReloadOfCredentials(t *testing.T) {
	s := emptySite(t)
	g := newGuarded(t, keepServing(t, `FAKE_ERA: ""`))
	s.write("secret", g.secret)
	s.write("other", g.secret)
	configure := func(file string) string {
		return fmt.Sprintf("upstreams:\n  a: {url: '%s/mcp', start: eager, stopGrace: 500ms, %s}\n  b: {url: '%s/mcp', start: eager, stopGrace: 500ms, %s}\n",
			g.URL, strings.Replace(byClientCredentials, "secret}", file+"}", 1), g.URL, byClientCredentials)
	}
	file := s.write("mcp-proxy.yaml", configure("secret"))
	p := s.runs("serve", "", file, "")
	c := s.connect()
	c.works(1, "a__echo")
	c.works(100, "b__echo")
	before := g.tokens()
	s.write("mcp-proxy.yaml", configure("other"))
	p.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the reload", func() bool { return p.log.count("configuration reloaded") == 1 })
	c.works(200, "b__echo")
	if g.tokens() != before {
		t.Error("what is the same got another token")
	}
	c.works(300, "a__echo")
	if g.tokens() == before {
		t.Error("what was changed got no other token")
	}
	if p.log.count(mark) > 0 {
		t.Errorf("a secret is in the log: %s", p.log)
	}
}
