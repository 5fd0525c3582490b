package frontend

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const cardText = `{"$schema":"https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",` +
	`"name":"com.example.mcp/%","version":"1.2.3",`

const tokenText = `"headers":[{"name":"Authorization","description":"Bearer and a token of this proxy","isRequired":true,"isSecret":true,` +
	`"value":"Bearer {token}","variables":{"token":{"description":"A token of this proxy","isRequired":true,"isSecret":true}}}],`

const versionsText = `"supportedProtocolVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`

// TestPublicCards: everybody may read our card and the catalog, from pages of any origin, and keep
// them, but not under a foreign Host.
func TestPublicCards(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Guard.Clients, h.Version = people{}, "1.2.3" })
	for path, want := range map[string][2]string{
		"/mcp/server-card": {"application/mcp-server-card+json", strings.Replace(cardText, "%", "mcp-proxy", 1) +
			`"description":"The MCP servers behind this address.","remotes":[` +
			`{"type":"streamable-http","url":"https://mcp.Example.com/team/mcp",` + tokenText + versionsText + `},` +
			`{"type":"sse","url":"https://mcp.Example.com/team/sse",` + tokenText + `"supportedProtocolVersions":["2024-11-05"]}]}`},
		"/.well-known/ai-catalog.json": {"application/ai-catalog+json", `{"specVersion":"1.0","entries":[` +
			`{"identifier":"urn:air:mcp.example.com:mcp:mcp-proxy","type":"application/mcp-server-card+json","url":"https://mcp.Example.com/team/mcp/server-card"}]}`},
	} {
		c := ts.at(path)
		resp := c.get("Origin", "https://any.example")
		wantDocument(t, resp, 200, want[1])
		for name, value := range map[string]string{
			"Content-Type": want[0], "Cache-Control": "public, max-age=3600", "Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "ETag",
		} {
			if got := resp.Header.Get(name); got != value {
				t.Errorf("%s: %s: %q", path, name, got)
			}
		}
		tag := resp.Header.Get("ETag")
		if len(tag) < 10 {
			t.Errorf("%s: ETag %q", path, tag)
		}
		wantDocument(t, c.get("If-None-Match", tag), 304, "")
		wantDocument(t, c.get("If-None-Match", `"other"`), 200, want[1])
		wantDocument(t, c.do(c.request("HEAD", "")), 200, "")
		wantRefusal(t, c.post("{}"), 405, -32600)
		wantStatus(t, c.get("Host", "evil.example"), 403)
		resp = c.do(c.request("OPTIONS", "", "Origin", "https://any.example", "Access-Control-Request-Headers", "if-none-match"))
		wantStatus(t, resp, 204)
		if h := resp.Header; h.Get("Access-Control-Allow-Methods") != "GET" || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "If-None-Match") {
			t.Errorf("%s: preflight: %v", path, h)
		}
	}
	for _, path := range []string{"/server-card", "/ws/server-card", "/mcp/server-cards", "/.well-known/ai-catalog"} {
		wantStatus(t, ts.at(path).get(), 401)
	}
	if open, sessions := ts.connections(); open+sessions != 0 {
		t.Errorf("%d connections, %d sessions", open, sessions)
	}
}

// TestCardOfOne: the card of an upstream needs what the upstream needs, and no cache shares it.
func TestCardOfOne(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) {
		h.Guard.Clients, h.Version = people{"a": person("a"), "b": person("b")}, "1.2.3"
		h.Known = func(who *identity.Identity, name string) bool { return name == "files" && who.Name == "a" }
	})
	c := ts.at("/mcp/files/server-card")
	wantRefusal(t, c.get(), 401, -32600)
	wantRefusal(t, c.as("b").get(), 404, -32600)
	wantRefusal(t, c.as("a").get("Origin", "https://any.example"), 403, -32600)
	resp := c.as("a").get()
	wantDocument(t, resp, 200, strings.Replace(cardText, "%", "files", 1)+`"description":"An MCP server behind mcp-proxy.","remotes":[`+
		`{"type":"streamable-http","url":"https://mcp.Example.com/team/mcp/files",`+tokenText+versionsText+`}]}`)
	if h := resp.Header; h.Get("Cache-Control") != "private, max-age=3600" || h.Get("Content-Type") != typeCard || h.Get("Access-Control-Allow-Origin") != "" {
		t.Error(h)
	}
	wantDocument(t, c.as("a").get("If-None-Match", resp.Header.Get("ETag")), 304, "")
	wantRefusal(t, c.as("a").post(ping), 405, -32600)
	for _, path := range []string{"/mcp/nope/server-card", "/ws/files/server-card", "/mcp/files/server-card/server-card", "/mcp//server-card"} {
		wantRefusal(t, ts.at(path).as("a").get(), 404, -32600)
	}
}

// TestCardContents: names by our domain, headers by what clients can show, versions by what is
// served.
func TestCardContents(t *testing.T) {
	for root, want := range map[string]string{
		"https://example.com": "com.example/mcp-proxy", "https://MCP.example.com.:444/x": "com.example.mcp/mcp-proxy",
		"http://localhost:8080": "localhost/mcp-proxy", "http://127.0.0.1:8080": "localhost/mcp-proxy", "http://[::ffff:1.2.3.4]": "localhost/mcp-proxy",
		"http://": "localhost/mcp-proxy",
	} {
		if got := (&HTTP{Guard: Guard{Clients: proving{root: root}}}).card(&http.Request{URL: mustParse(t, "/mcp/server-card")}, "").Name; got != want {
			t.Errorf("%s: %s", root, got)
		}
	}
	for name, tt := range map[string]struct {
		proofs identity.Proofs
		want   string
	}{
		"nothing":      {identity.Proofs{}, `null`},
		"certificates": {identity.Proofs{Certificates: true}, `null`},
		"issuers": {identity.Proofs{Issuers: true, Tokens: true}, `[{"name":"Authorization","description":"Bearer and an access token of an authorization server in ` +
			`https://a.example/.well-known/oauth-protected-resource/mcp/files","isRequired":false,"isSecret":true}]`},
		"both": {identity.Proofs{Tokens: true, Certificates: true}, `[{"name":"Authorization","description":"Bearer and a token of this proxy, unless a TLS certificate identifies the client",` +
			`"isRequired":false,"isSecret":true,"value":"Bearer {token}","variables":{"token":{"description":"A token of this proxy","isRequired":true,"isSecret":true}}}]`},
	} {
		h := &HTTP{Guard: Guard{Clients: proving{root: "https://a.example", proofs: tt.proofs}}}
		card := h.card(&http.Request{URL: mustParse(t, "/mcp/files/server-card")}, "files")
		if got, _ := json.Marshal(card.Remotes[0].Headers); string(got) != tt.want {
			t.Errorf("%s: %s", name, got)
		}
		if got := card.Remotes[0].Versions; len(got) != len(mcp.LegacyVersions) {
			t.Errorf("only sessions are served: %v", got)
		}
	}
}

func wantDocument(t *testing.T, resp *http.Response, status int, want string) {
	t.Helper()
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != status || string(got) != want {
		t.Errorf("%d %s, %v\nwant %d %s", resp.StatusCode, got, err, status, want)
	}
}

// A proving is an Identifier with other proofs.
type proving struct {
	noIdentifier
	root   string
	proofs identity.Proofs
}

func (p proving) Proofs() identity.Proofs { return p.proofs }

func (p proving) Root(*http.Request) string { return p.root }

func mustParse(t *testing.T, path string) *url.URL {
	t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
