package proxy_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// mark begins or is part of all secrets of TestSecrets, of which clients give one to all
// servers.
const (
	mark  = "MARK-"
	given = mark + "given"
)

// A told collects the values that hooks got.
type told struct{ journal }

func (x *told) hooks() proxy.Hooks {
	note := func(values ...any) { fmt.Fprintf(x, "%+v\n", values) }
	return proxy.Hooks{
		SessionBegan:    func(s proxy.Session) { note(s) },
		SessionEnded:    func(s proxy.Session, e proxy.End) { note(s, e) },
		RequestBegan:    func(c proxy.Request) { note(c) },
		RequestEnded:    func(c proxy.Request, e proxy.End) { note(c, e) },
		CallBegan:       func(q proxy.Call) { note(q) },
		CallEnded:       func(q proxy.Call, e proxy.End) { note(q, e) },
		UpstreamStarted: func(u proxy.Upstream) { note(u) },
		UpstreamEnded:   func(u proxy.Upstream, e proxy.End) { note(u, e) },
		LinkUp:          func(l proxy.Link) { note(l) },
		LinkLost:        func(l proxy.Link, e proxy.End) { note(l, e) },
		Happened:        func(e proxy.Event) { note(e) },
		RequestLost:     func(l proxy.Loss) { note(l) },
		Refused:         func(reason string) { note(reason) },
	}
}

// allEvents is all that operators get of events.
func allEvents(t *testing.T, socket string) string {
	t.Helper()
	text := operatorGets(t, socket, "/events?limit=1000")
	var list observe.Events
	if err := json.Unmarshal(text, &list); err != nil || len(list.Events) < 5 {
		t.Fatalf("%s: %v", text, err)
	}
	all := string(text)
	for _, e := range list.Events {
		all += string(operatorGets(t, socket, "/events/"+e.ID))
	}
	return all
}

// newRefuser returns a server that refuses everything, and says back all that it got.
func newRefuser(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		echo := strings.ReplaceAll(fmt.Sprint(r.URL, r.Header, string(body)), `"`, "'")
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token", error_description="`+echo+`"`)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":%q}}`, echo)
	}))
	t.Cleanup(s.Close)
	return s
}

// A grantor is an authorization server: /token grants a token to everybody, /denied
// refuses, and says back what it got.
type grantor struct {
	*httptest.Server
	mu   sync.Mutex
	seen string
}

func newGrantor(t *testing.T, token string) *grantor {
	g := new(grantor)
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		echo := fmt.Sprint(r.URL, r.Header, string(body))
		g.mu.Lock()
		g.seen += echo
		g.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/denied" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":"invalid_client","error_description":%q}`, echo)
			return
		}
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, token)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *grantor) saw(part string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Contains(g.seen, part)
}

// logIn leaves a login at a server where the proxy keeps them.
func logIn(t *testing.T, server, clientID string, as *grantor) {
	t.Helper()
	sum := sha256.Sum256([]byte(server + "\n" + clientID))
	host := strings.NewReplacer("http://", "", ":", "_").Replace(server)
	dir := filepath.Join(os.Getenv("XDG_STATE_HOME"), "mcp-proxy", "login")
	record := fmt.Sprintf(`{"version":1,"server":%q,"clientId":%q,"issuer":%q,"resource":%[1]q,"client":{"id":%[2]q,"secret":"MARK-person"},
		"token":{"access":"MARK-login","refresh":"MARK-refresh","granted":%[4]q,"expires":%q}}`, server, clientID, as.URL,
		time.Now().Add(-time.Hour).Format(time.RFC3339), time.Now().Add(time.Hour).Format(time.RFC3339))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, host+"-"+hex.EncodeToString(sum[:8])+".json"), []byte(record), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// Every secret of a configuration, and what clients prove themselves with, goes where it is
// for and nowhere else: not into the log at its lowest level, not to clients, not into hooks
// and the status, not to another server; when all goes well and when nothing does.
func TestSecrets(t *testing.T) {
	var hooks told
	traces := newCollector(t)
	refuser, as := newRefuser(t), newGrantor(t, "MARK-access")
	issuer := newSigner(t, "https://one.example")
	first, other := newNaive(t, "MARK-header", "MARK-key", "MARK-file"), newNaive(t)
	program, denied := newNaive(t, "MARK-access"), newNaive(t)
	person, leaver := newNaive(t, "MARK-login"), newRefuser(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	logIn(t, person.URL, "app", as)
	logIn(t, leaver.URL, "app", as)
	operators := filepath.Join(t.TempDir(), "admin")
	h := newHouseWith(t, hooks.hooks(), first, func(cfg *config.Config) {
		cfg.Admin = config.Admin{Listen: []string{"unix://" + operators}, Payloads: true}
		cfg.Logs.Calls = true
		cfg.Auth.Tokens = []config.NamedToken{{Name: "a", TokenFile: secretFile(t, "MARK-a")}, {Name: "b", TokenFile: secretFile(t, "MARK-b")}}
		trust(issuer)(cfg)
		cfg.Traces = config.Traces{Endpoint: traces.URL, HeadersFrom: map[string]string{"Authorization": secretFile(t, "MARK-collector")}}
		cfg.Upstreams[0].Headers = map[string]string{"Authorization": "Bearer MARK-header", "X-Key": "MARK-key"}
		cfg.Upstreams[0].HeadersFrom = map[string]string{"X-File": secretFile(t, "MARK-file")}
		cfg.Upstreams = append(cfg.Upstreams,
			config.Upstream{Name: "other", Remote: config.Remote{URL: other.URL}},
			config.Upstream{Name: "refuses", Remote: config.Remote{URL: refuser.URL + "/mcp?key=MARK-query", Headers: map[string]string{"Authorization": "Bearer MARK-refused"}}},
			config.Upstream{Name: "down", Remote: config.Remote{URL: "http://127.0.0.1:1/mcp?key=MARK-nobody"}},
			config.Upstream{Name: "command", Process: config.Process{Command: "no-such-command", Args: []string{"MARK-argument"}, Env: map[string]string{"KEY": "MARK-env"}}},
			config.Upstream{Name: "program", Remote: config.Remote{URL: program.URL, Auth: config.UpstreamAuth{ClientCredentials: &config.ClientCredentials{
				ClientID: "program", ClientSecretFile: secretFile(t, "MARK-secret"), TokenURL: as.URL + "/token"}}}},
			config.Upstream{Name: "denied", Remote: config.Remote{URL: denied.URL, Auth: config.UpstreamAuth{ClientCredentials: &config.ClientCredentials{
				ClientID: "denied", AssertionFile: secretFile(t, "MARK-assertion"), TokenURL: as.URL + "/denied"}}}},
		)
		for name, url := range map[string]string{"person": person.URL, "leaver": leaver.URL} {
			cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: name, Remote: config.Remote{URL: url, Auth: config.UpstreamAuth{OAuth: &config.OAuth{
				ClientID: "app", ClientSecretFile: secretFile(t, "MARK-app")}}}})
		}
		cfg.Links = []config.Link{
			{Name: "far", Accept: true, TokenFile: secretFile(t, "MARK-link")},
			{Name: "near", Dial: strings.Replace(refuser.URL, "http", "ws", 1) + "/link?key=MARK-dial", TokenFile: secretFile(t, "MARK-dialling"), Heartbeat: patience},
		}
	})
	h.a.token, h.b.token = "MARK-a", "MARK-b"

	far := newNaive(t)
	host, err := proxy.NewHost(&config.Config{Upstreams: []config.Upstream{{Name: "faraway", Remote: config.Remote{URL: far.URL}}}},
		config.HostLink{Dial: strings.Replace(h.url, "http", "ws", 1) + "/link?key=MARK-host", TokenFile: secretFile(t, "MARK-link")}, proxy.Options{Log: logTo(h.log)})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- host.Serve() }()
	defer func() {
		host.Close()
		<-served
	}()
	eventually(t, "link", func() bool { return len(h.proxy.Snapshot().Links) > 0 && h.proxy.Snapshot().Links[0].Up })

	tapped, payloads := openTap(t, operators, "rate=0"), openTap(t, operators, "rate=0&payloads=1")
	var heard journal
	hear := func(c *caller, method, path, body string, headers ...string) {
		status, text := c.do(method, path, body, headers...)
		fmt.Fprintln(&heard, status, text)
	}
	h.a.initialize()
	for i, name := range []string{"u", "other", "refuses", "down", "command", "program", "denied", "person", "leaver", "near", "faraway"} {
		hear(h.a, "POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s__echo","arguments":{"password":"`+given+`"}}}`, i+1, name), h.a.headers()...)
		text, headers := modern("1", "tools/call", name+"__echo", `,"name":"`+name+`__echo","arguments":{"password":"`+given+`"}`)
		hear(h.b, "POST", "/mcp", text, append(headers, "Cookie", "MARK-cookie", "X-Api-Key", "MARK-of-client")...)
	}
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	const claims = `,"email":"MARK-claim","scope":"MARK-scope"`
	tokens := []string{
		issuer.token(`"somebody"`, claims, time.Hour), issuer.token(`"somebody"`, claims, -time.Hour), issuer.token(`"somebody"`, claims+`,"nbf":4000000000`, time.Hour),
		newSigner(t, "https://one.example").token(`"somebody"`, claims, time.Hour), newSigner(t, "https://MARK-issuer").token(`"somebody"`, claims, time.Hour),
		"eyJhbGciOiJub25lIn0.eyJzdWIiOiJNQVJLLXN1YiJ9.MARK-signature", "MARK-wrong", "MARK-header",
	}
	hear(h.caller(tokens[0], ""), "POST", "/mcp", hello)
	for _, token := range tokens[1:] {
		for path, method := range map[string]string{"/mcp": "POST", "/ws": "GET", "/sse": "GET", "/link": "GET"} {
			hear(h.caller(token, ""), method, path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, upgrade...)
		}
	}
	hear(h.caller("", ""), "GET", "/mcp?access_token=MARK-a", "")
	hear(h.caller("", ""), "GET", "/.well-known/oauth-protected-resource/mcp", "")
	for _, path := range []string{"/", "/connect.json"} {
		hear(h.a, "GET", path, "", append(h.a.headers(), "Cookie", "MARK-cookie")...)
		hear(h.caller("MARK-wrong", ""), "GET", path, "", "Accept", "text/html")
	}
	far.awaits(1, "tools/call")
	events, metrics := allEvents(t, operators), string(operatorGets(t, operators, "/metrics"))
	var answers string
	for _, path := range []string{"/calls", "/status", "/readyz?verbose", "/explain/refuses__echo", "/explain/command__echo"} {
		answers += string(operatorGets(t, operators, path))
	}
	status, err := json.Marshal(h.proxy.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*naive{first, program, far, person} { // what is for them has come
		for _, own := range s.own {
			s.awaits(1, own)
		}
	}
	const basic = "cHJvZ3JhbTpNQVJLLXNlY3JldA" // program:MARK-secret
	secrets := []string{mark, basic}
	for _, token := range tokens[:5] {
		secrets = append(secrets, strings.Split(token, ".")[1:]...)
	}
	if !as.saw(basic) || !as.saw("MARK-assertion") {
		t.Error("the authorization server got", as.seen)
	}
	h.proxy.Close()
	host.Close()

	if !strings.Contains(traces.raw.String(), "MARK-collector") || len(traces.all()) == 0 {
		t.Error("the collector got", traces.raw.String())
	}
	for where, text := range map[string]string{"traces": strings.ReplaceAll(traces.raw.String(), "MARK-collector", ""), "the log": h.log.String(), "clients": strings.ReplaceAll(heard.String(), given, ""), "the status": string(status), "hooks": hooks.String(), "events": events, "metrics": metrics, "other answers to operators": answers,
		"a tap": strings.Join(tapped.rest(), "\n"), "a tap with payloads": strings.Join(payloads.rest(), "\n")} {
		if text == "" {
			t.Error(where, "is empty")
		}
		for line := range strings.SplitSeq(text, "\n") {
			if slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(line, secret) }) {
				t.Errorf("%s: %s", where, line)
			}
		}
	}
	for i, s := range []*naive{first, other, program, denied, far, person} {
		for _, text := range s.seen {
			for _, own := range append(s.own, given) {
				text = strings.ReplaceAll(text, own, "")
			}
			if slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(text, secret) }) {
				t.Errorf("server %d got %s", i, text)
			}
		}
	}
}
