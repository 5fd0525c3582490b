package proxy_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A signer is an authorization server, as far as its tokens go.
type signer struct {
	t      *testing.T
	issuer string
	key    ed25519.PrivateKey
	file   string // with its keys
}

func newSigner(t *testing.T, issuer string) *signer {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set := `{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"1","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}]}`
	return &signer{t, issuer, key, secretFile(t, set)}
}

// trusted is the configuration of the issuer.
func (s *signer) trusted() config.Issuer {
	return config.Issuer{Issuer: s.issuer, Audience: []string{"us"}, JWKSFile: s.file, Algorithms: []string{"EdDSA"}, Principal: "sub"}
}

// token returns one for a subject, which is JSON text, with more claims that begin with a
// comma.
func (s *signer) token(sub, more string, lasts time.Duration) string {
	code := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"iss":%q,"aud":"us","sub":%s,"exp":%d%s}`, s.issuer, sub, time.Now().Add(lasts).Unix(), more)
	text := code([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + code([]byte(claims))
	return text + "." + code(ed25519.Sign(s.key, []byte(text)))
}

// trust makes a configuration trust issuers.
func trust(all ...*signer) func(*config.Config) {
	return func(cfg *config.Config) {
		for _, s := range all {
			cfg.Auth.JWT = append(cfg.Auth.JWT, s.trusted())
		}
	}
}

// An authority signs the certificates of clients.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign("authority", true)
	return a
}

func (a *authority) sign(name string, isCA bool) (*x509.Certificate, ed25519.PrivateKey) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	parent, by := a.cert, a.key
	if isCA {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// files are those of a server that the authority is itself.
func (a *authority) files() config.ListenTLS {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	file := func(kind string, der []byte) string {
		return secretFile(a.t, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	cert := file("CERTIFICATE", a.cert.Raw)
	return config.ListenTLS{Cert: cert, Key: file("PRIVATE KEY", key), ClientCA: cert}
}

// withCertificate returns a caller that shows a certificate of that name.
func (h *house) withCertificate(a *authority, name string) *caller {
	h.t.Helper()
	web := httptest.NewUnstartedServer(h.proxy.Handler())
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	web.TLS = &tls.Config{ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven}
	web.StartTLS()
	h.t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	cert, key := a.sign(name, false)
	c := h.caller("", "/mcp")
	c.base, c.client = web.URL, web.Client()
	c.client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
	return c
}

// Clients with the same name are different principals if another issuer or another kind of proof
// says so. One cannot use the session of another.
func TestEqualNames(t *testing.T) {
	one, two, ca := newSigner(t, "https://one.example"), newSigner(t, "https://two.example"), newAuthority(t)
	h := newHouse(t, func(cfg *config.Config) {
		cfg.Auth.Tokens[0].Name = "ci"
		trust(one, two)(cfg)
		cfg.TLS = ca.files()
	})
	all := map[string]*caller{
		"the token": h.a, "another token": h.b, "one's": h.caller(one.token(`"ci"`, "", time.Hour), "/mcp"), "two's": h.caller(two.token(`"ci"`, "", time.Hour), "/mcp"),
		"the certificate": h.withCertificate(ca, "ci"), "two's, who looks like one's": h.caller(two.token(`"ci@https://one.example"`, "", time.Hour), "/mcp"),
	}
	for whose, owner := range all {
		owner.initialize()
		for who, other := range all {
			if who == whose {
				continue
			}
			status, text := other.do("POST", "/mcp", onSession[0].body, "Mcp-Session-Id", owner.session)
			if status != http.StatusNotFound {
				t.Errorf("%s in the session of %s: %d %s", who, whose, status, text)
			}
		}
		if status, text := owner.say(onSession[0].body); status != http.StatusOK {
			t.Errorf("%s in its own: %d %s", whose, status, text)
		}
	}
}

// However odd a name is, it is one principal's, and one line in the log stays one. What could
// be two names, or none, is refused.
func TestOddNames(t *testing.T) {
	s := newSigner(t, "https://one.example")
	h := newHouse(t, trust(s))
	names := []string{`"a"`, `"A"`, `"a "`, `"a\u0301"`, `"á"`, `"a\"b"`, `"a\\\"b"`, `"a@https://two.example"`, `"jwt:a"`, `"a%00"`, `"` + strings.Repeat("a", 8<<10) + `"`, `"` + strings.Repeat("a", 8<<10+1) + `"`}
	callers := make([]*caller, len(names))
	for i, name := range names {
		callers[i] = h.caller(s.token(name, "", time.Hour), "/mcp").initialize()
	}
	for i, owner := range callers {
		for j, other := range callers {
			status, text := other.do("POST", "/mcp", onSession[0].body, "Mcp-Session-Id", owner.session)
			if (status == http.StatusOK) != (i == j) {
				t.Errorf("%.30s in the session of %.30s: %d %s", names[j], names[i], status, text)
			}
		}
	}
	for _, name := range []string{`""`, `null`, `7`, `true`, `["a"]`, `{"a":1}`, `"a\u0000"`, `"a\nb"`, `"\ud800"`, `"\ufffd"`, `"a","sub":"b"`} {
		if status, text := h.caller(s.token(name, "", time.Hour), "/mcp").ask("tools/list", "", ""); status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	h.proxy.Close()
	for line := range strings.Lines(h.log.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a line of the log is %q", line)
		}
	}
}

// When a token expires, its connections end, or wait for the next token of the same principal and of
// no other. A call in flight is not lost.
func TestTokenEndsInMidCall(t *testing.T) {
	t.Parallel()
	s := newSigner(t, "https://one.example")
	h := newHouse(t, trust(s))
	short := h.caller(s.token(`"a"`, "", 2*time.Second), "/mcp").initialize()
	socket := h.socket(short, "/ws")
	stream := short.begin("GET", "/mcp", "", short.headers()...)
	sse := short.begin("GET", "/sse", "")
	call := h.hang(short, "1")

	_, _, err := socket.conn.ReadMessage()
	if !websocket.IsCloseError(err, websocket.ClosePolicyViolation) {
		t.Error("the WebSocket ended with", err)
	}
	eventually(t, "end of the streams", func() bool {
		_, one := stream.all()
		_, other := sse.all()
		return one && other
	})
	if status, text := short.say(onSession[0].body); status != http.StatusUnauthorized {
		t.Error("a request with the old token:", status, text)
	}
	other := h.caller(s.token(`"b"`, "", time.Hour), "/mcp")
	if status, text := other.do("POST", "/mcp", onSession[0].body, "Mcp-Session-Id", short.session); status != http.StatusNotFound {
		t.Error("b in a's session:", status, text)
	}
	short.token = s.token(`"a"`, "", time.Hour)
	if status, text := short.say(onSession[0].body); status != http.StatusOK {
		t.Error("a request with the next token:", status, text)
	}
	close(h.server.release)
	call.await("content")
}

// One principal whose tokens differ may what its token of the moment lets it, in lists
// and in calls, also in a session that a better token has begun.
func TestOnePrincipalTwoTokens(t *testing.T) {
	s := newSigner(t, "https://one.example")
	h := newHouse(t, func(cfg *config.Config) {
		trust(s)(cfg)
		cfg.Policies = []config.Policy{
			{Key: "policies[0]", Who: config.Who{Issuer: s.issuer, Claims: map[string]string{"groups": "admin"}}},
			{Key: "policies[1]", Who: config.Who{Issuer: s.issuer}, Tools: config.Tools{Allow: []string{"u__echo"}}},
		}
	})
	admin, plain := h.caller(s.token(`"a"`, `,"groups":["admin"]`, time.Hour), "/mcp"), h.caller(s.token(`"a"`, "", time.Hour), "/mcp")
	if _, text := admin.ask("tools/list", "", ""); !strings.Contains(text, "hang") || !strings.Contains(text, `"private"`) {
		t.Fatal("admin's list:", text)
	}
	if _, text := plain.ask("tools/list", "", ""); !strings.Contains(text, `"echo"`) || strings.Contains(text, "hang") || strings.Contains(text, "task") {
		t.Error("plain's list:", text)
	}
	if _, text := admin.ask("tools/call", "ask", `,"name":"ask"`); !strings.Contains(text, "state-1") {
		t.Fatal("admin's call:", text)
	}
	unknown := strings.ReplaceAll(fmt.Sprint(plain.ask("tools/call", "nope", `,"name":"nope"`)), "nope", "ask")
	for _, params := range []string{`,"name":"ask"`, `,"name":"ask","requestState":"state-1","inputResponses":{}`} {
		if got := fmt.Sprint(plain.ask("tools/call", "ask", params)); got != unknown {
			t.Errorf("plain's call: %s\nof an unknown tool: %s", got, unknown)
		}
	}
	admin.initialize()
	plain.session = admin.session
	if status, text := plain.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`); !strings.Contains(text, "Unknown tool") {
		t.Error("plain in admin's session:", status, text)
	}
	if status, text := plain.say(onSession[0].body); !strings.Contains(text, `"result"`) {
		t.Error("plain in admin's session:", status, text)
	}
}

// An upstream of which a policy lets a client see nothing has no path for it either.
func TestHiddenPath(t *testing.T) {
	h := newHouse(t, func(cfg *config.Config) {
		cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: "hidden", Remote: config.Remote{URL: cfg.Upstreams[0].URL}})
		cfg.Policies = []config.Policy{
			{Key: "policies[0]", Who: config.Who{Token: "b"}, Tools: config.Tools{Allow: []string{"u__*"}}},
			{Key: "policies[1]", Who: config.Who{Any: true}},
		}
	})
	for _, path := range []string{"/mcp/", "/ws/"} {
		get := func(c *caller, name string) string {
			status, text := c.do("GET", path+name, "")
			return fmt.Sprint(status, " ", text)
		}
		if hidden, unknown := get(h.b, "hidden"), get(h.b, "nope"); hidden != unknown || !strings.HasPrefix(hidden, "404") {
			t.Errorf("hidden: %s\nunknown: %s", hidden, unknown)
		}
		if get(h.b, "u") == get(h.b, "nope") || get(h.a, "hidden") == get(h.a, "nope") {
			t.Error("what is there looks as if it were not")
		}
	}
	card := func(c *caller, path string) string {
		status, text := c.do("GET", path+"/server-card", "")
		return fmt.Sprint(status, " ", text)
	}
	if hidden, unknown := card(h.b, "/mcp/hidden"), card(h.b, "/mcp/nope"); hidden != unknown || !strings.HasPrefix(hidden, "404") {
		t.Errorf("card, hidden: %s\nunknown: %s", hidden, unknown)
	}
	if shown := card(h.a, "/mcp/hidden"); !strings.Contains(shown, "/mcp/hidden") {
		t.Error("card:", shown)
	}
	if all := card(h.a, "/mcp"); !strings.HasPrefix(all, "200") || strings.Contains(all, "hidden") {
		t.Error("card of all:", all)
	}
	if status, text := h.b.do("GET", "/.well-known/oauth-protected-resource/mcp/hidden", ""); status != http.StatusNotFound {
		t.Error("metadata:", status, text)
	}
}

// A WebSocket whose token has expired ends as any that is cut: one error for each call in
// flight, one cancellation of it for the server, and nothing for the calls of others.
func TestExpiredSocketCancelsItsCalls(t *testing.T) {
	t.Parallel()
	s := newSigner(t, "https://one.example")
	h := newHouse(t, trust(s))
	other := h.caller(s.token(`"b"`, "", time.Hour), "/mcp").initialize()
	going := h.hang(other, "1")
	socket := h.socket(h.caller(s.token(`"a"`, "", 3*time.Second), "/ws"), "/ws")
	socket.say(hello)
	socket.hears(`"result"`)
	socket.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	socket.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","arguments":{"of":"a"},"_meta":{"progressToken":1}}}`)
	socket.hears("SECRET")

	socket.conn.SetReadDeadline(time.Now().Add(patience))
	var ends []string
	for {
		_, text, err := socket.conn.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.ClosePolicyViolation) {
				t.Error("the WebSocket ended with", err)
			}
			break
		}
		if strings.Contains(string(text), `"id":1`) {
			ends = append(ends, string(text))
		}
	}
	if len(ends) != 1 || !strings.Contains(ends[0], `"code":-32000`) || !strings.Contains(ends[0], `"phase":"in_flight"`) {
		t.Errorf("the call ended with %q", ends)
	}
	h.server.awaits(1, "notifications/cancelled")
	h.server.awaits(1, "DELETE")
	close(h.server.release)
	going.await("content")
	if n := h.server.saw("notifications/cancelled"); n != 1 {
		t.Errorf("%d cancellations", n)
	}
}

// What a withdrawn proof has opened ends, whether a token was replaced in its file or taken
// out of the configuration, or one is asked for that was not before. A call that runs may
// finish, and the session waits for the next good token of the same principal.
func TestTokenWithdrawn(t *testing.T) {
	t.Parallel()
	file, still := secretFile(t, "first-token"), secretFile(t, "first-token")
	signer := newSigner(t, "https://one.example")
	with := func(file string) func(*config.Config) {
		return func(cfg *config.Config) { cfg.Auth.Tokens = []config.NamedToken{{Name: "a", TokenFile: file}} }
	}
	for name, tt := range map[string]struct {
		before, after func(*config.Config) // nil: the same
		old, next     string
		act           func(h *house)
	}{
		"rotated": {before: with(file), old: "first-token", next: "second-token", act: func(h *house) {
			if err := os.WriteFile(file, []byte("second-token"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		"removed":        {before: with(still), old: "first-token", after: func(*config.Config) {}},
		"issuer removed": {before: trust(signer), old: signer.token(`"a"`, "", time.Hour), after: func(*config.Config) {}},
		"now asked for":  {before: func(cfg *config.Config) { cfg.Auth.Tokens = nil }, after: with(still)},
	} {
		t.Run(name, func(t *testing.T) {
			var cfg config.Config
			h := newHouse(t, func(c *config.Config) {
				tt.before(c)
				cfg = *c
			})
			a := h.caller(tt.old, "/mcp").initialize()
			socket := h.socket(a, "/ws")
			listen, headers := modern("9", "subscriptions/listen", "", `,"notifications":{"toolsListChanged":true}`)
			streams := []*feed{
				a.begin("GET", "/mcp", "", a.headers()...), a.begin("GET", "/sse", ""),
				a.begin("POST", "/mcp", listen, headers...),
			}
			streams[2].await("acknowledged")
			call := h.hang(a, "1")
			if tt.act != nil {
				tt.act(h)
			} else {
				next := cfg
				next.Auth = config.Auth{Tokens: []config.NamedToken{{Name: "b", TokenFile: secretFile(t, "token-of-b")}}}
				tt.after(&next)
				if err := h.proxy.Reload(&next); err != nil {
					t.Fatal(err)
				}
			}
			if status, text := a.say(onSession[0].body); status != http.StatusUnauthorized {
				t.Error("a request with the old token:", status, text)
			}
			socket.conn.SetReadDeadline(time.Now().Add(patience))
			_, _, err := socket.conn.ReadMessage()
			if closed, ok := errors.AsType[*websocket.CloseError](err); !ok || closed.Code != websocket.ClosePolicyViolation || closed.Text != "token withdrawn" {
				t.Error("the WebSocket ended with", err)
			}
			eventually(t, "end of the streams", func() bool {
				for _, s := range streams {
					if _, over := s.all(); !over {
						return false
					}
				}
				return true
			})
			if tt.next != "" {
				a.token = tt.next
				if status, text := a.say(onSession[0].body); status != http.StatusOK {
					t.Error("a request with the next token:", status, text)
				}
			}
			close(h.server.release)
			call.await("content")
		})
	}
}

// Policies that a reload changes apply to the next request of every open session, in both eras, and
// limits keep their counts.
func TestReloadPolicies(t *testing.T) {
	var cfg config.Config
	h := newHouse(t, func(c *config.Config) { cfg = *c })
	a := h.a.initialize()
	stream := a.begin("GET", "/mcp", "", a.headers()...)
	calls := func(want bool) {
		t.Helper()
		_, legacy := a.say(onSession[0].body)
		_, modern := a.ask("tools/call", "echo", `,"name":"echo"`)
		for _, text := range []string{legacy, modern} {
			if strings.Contains(text, "Unknown tool") == want {
				t.Errorf("may call: %v: %s", want, text)
			}
		}
	}
	reload := func(policies ...config.Policy) error {
		next := cfg
		next.Policies = policies
		return h.proxy.Reload(&next)
	}
	a.say(`{"jsonrpc":"2.0","id":5,"method":"tools/list"}`)
	calls(true)
	denied := config.Policy{Key: "policies[0]", Who: config.Who{Token: "a"}, Tools: config.Tools{Deny: []string{"u__echo"}}}
	if err := reload(denied); err != nil {
		t.Fatal(err)
	}
	calls(false)
	stream.await("tools/list_changed")
	if _, text := a.say(`{"jsonrpc":"2.0","id":6,"method":"tools/list"}`); strings.Contains(text, `"echo"`) || !strings.Contains(text, `"hang"`) {
		t.Error("the list after the reload:", text)
	}
	bad := denied
	bad.Tools.Deny = []string{"["}
	if err := reload(bad); err == nil {
		t.Error("a glob that is none was taken over")
	}
	calls(false)
	if e, err := h.proxy.Explain("u__echo", "token:a"); err != nil || e.Allowed() {
		t.Errorf("explain: %+v, %v", e, err)
	}
	if err := reload(); err != nil {
		t.Fatal(err)
	}
	calls(true)
}

// Proofs that would leave the proxy open to the network are not taken over.
func TestReloadKeepsAsking(t *testing.T) {
	cfg := &config.Config{Frontend: config.Frontend{Listen: []string{":0"}, Auth: config.Auth{Tokens: []config.NamedToken{{Name: "a", TokenFile: secretFile(t, "token-of-a")}}}}}
	p, err := proxy.New(cfg, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	next := *cfg
	next.Listen, next.Auth = []string{"127.0.0.1:0"}, config.Auth{}
	if err := p.Reload(&next); err == nil || !strings.Contains(err.Error(), "auth") {
		t.Error("nobody has to prove anything beyond loopback:", err)
	}
}
