package auth

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// TestMetadata: each resource has its document, which does not reveal whether the resource exists.
func TestMetadata(t *testing.T) {
	a, b := newAuthority(t, issuer), newAuthority(t, other)
	public := &Clients{Issuers: []*jwt.Issuer{a.issuer("mcp", "offline_access"), b.issuer("mcp")}, PublicURL: "https://mcp.example"}
	local := &Clients{Issuers: []*jwt.Issuer{a.issuer()}}
	below := &Clients{Issuers: []*jwt.Issuer{a.issuer()}, PublicURL: "https://example/team"}
	short := &Clients{Issuers: []*jwt.Issuer{a.issuer()}, PublicURL: "https://example/m"}
	same := &Clients{Issuers: []*jwt.Issuer{a.issuer()}, PublicURL: "https://example/mcp"}
	tests := []struct {
		name     string
		c        *Clients
		url      string
		resource string
	}{
		{"root", public, "http://localhost/.well-known/oauth-protected-resource", "https://mcp.example/mcp"},
		{"root with a slash", public, "http://localhost/.well-known/oauth-protected-resource/", "https://mcp.example/mcp"},
		{"all", public, "http://localhost/.well-known/oauth-protected-resource/mcp", "https://mcp.example/mcp"},
		{"all with a slash", public, "http://localhost/.well-known/oauth-protected-resource/mcp/", "https://mcp.example/mcp"},
		{"one", public, "http://localhost/.well-known/oauth-protected-resource/mcp/files", "https://mcp.example/mcp/files"},
		{"one that is not there", public, "http://localhost/.well-known/oauth-protected-resource/mcp/nothing", "https://mcp.example/mcp/nothing"},
		{"ws", public, "http://localhost/.well-known/oauth-protected-resource/ws/files", "https://mcp.example/ws/files"},
		{"sse", public, "http://localhost/.well-known/oauth-protected-resource/sse", "https://mcp.example/sse"},
		{"by Host", local, "http://LOCALHOST:8080/.well-known/oauth-protected-resource/mcp", "http://localhost:8080/mcp"},
		{"by Host with TLS", local, "https://proxy.example/.well-known/oauth-protected-resource/mcp", "https://proxy.example/mcp"},
		{"below a path", below, "http://localhost/.well-known/oauth-protected-resource/mcp", "https://example/team/mcp"},
		{"with that path", below, "http://localhost/.well-known/oauth-protected-resource/team/mcp/files", "https://example/team/mcp/files"},
		{"below a path that ours begin with", short, "http://localhost/.well-known/oauth-protected-resource/mcp", "https://example/m/mcp"},
		{"with that one", short, "http://localhost/.well-known/oauth-protected-resource/m/mcp", "https://example/m/mcp"},
		{"below a path that is ours", same, "http://localhost/.well-known/oauth-protected-resource/mcp/files", "https://example/mcp/mcp/files"},
		{"with this one", same, "http://localhost/.well-known/oauth-protected-resource/mcp/mcp/files", "https://example/mcp/mcp/files"},

		{"message", public, "http://localhost/.well-known/oauth-protected-resource/message", ""},
		{"other", public, "http://localhost/.well-known/oauth-protected-resource/other", ""},
		{"a card", public, "http://localhost/.well-known/oauth-protected-resource/mcp/server-card", ""},
		{"deep", public, "http://localhost/.well-known/oauth-protected-resource/mcp/a/b", ""},
		{"markup", public, "http://localhost/.well-known/oauth-protected-resource/mcp/%22%3Cscript%3E", ""},
		{"not ours", public, "http://localhost/.well-known/openid-configuration", ""},
		{"no issuer", &Clients{Tokens: []*Token{fixed("default", "secret")}}, "http://localhost/.well-known/oauth-protected-resource/mcp", ""},
	}
	for _, tt := range tests {
		r := request(tt.url, "")
		text, ok := tt.c.Metadata(r)
		if ok != (tt.resource != "") {
			t.Errorf("%s: %s", tt.name, text)
		}
		if !ok {
			continue
		}
		want := map[string]any{
			"resource": tt.resource, "authorization_servers": []any{issuer}, "bearer_methods_supported": []any{"header"}, "resource_name": "mcp-proxy",
		}
		if tt.c == public {
			want["authorization_servers"] = []any{issuer, other}
			want["scopes_supported"] = []any{"mcp"}
		}
		var got map[string]any
		if json.Unmarshal(text, &got); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s", tt.name, text)
		}
	}
}

// TestChallenge: the URL of the metadata of a path, and that refusals cannot inject text.
func TestChallenge(t *testing.T) {
	a := newAuthority(t, issuer)
	c := &Clients{Issuers: []*jwt.Issuer{a.issuer()}, PublicURL: "https://mcp.example"}
	why := &identity.Refusal{Status: 403, Code: "insufficient_scope", Text: "say \"x\",\r\n\\ é", Scopes: []string{"files.write", "offline_access", `"`}}
	for path, at := range map[string]string{
		"/mcp": "/mcp", "/mcp/files": "/mcp/files", "/ws": "/ws", "/mcp/files/server-card": "/mcp/files", "/sse": "/sse", "/message": "/sse", "/": "", "/other/x": "", `/mcp/"`: "",
	} {
		r := request("/", "")
		r.URL.Path = path
		want := `Bearer realm="mcp-proxy", error="insufficient_scope", error_description="say \"x\",\\ ", scope="files.write \"", ` +
			`resource_metadata="https://mcp.example/.well-known/oauth-protected-resource` + at + `"`
		if got := c.Challenge(r, why); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
		}
	}
	for _, status := range []int{403, 429, 503} {
		if got := c.Challenge(request("/mcp", ""), &identity.Refusal{Status: status}); got != "" {
			t.Errorf("%d: %s", status, got)
		}
	}
	if got := (&Clients{Certificates: true}).Challenge(request("/mcp", ""), &identity.Refusal{Status: http.StatusUnauthorized}); got != "" {
		t.Errorf("a certificate is no bearer token: %s", got)
	}
	r := request("/mcp", "")
	r.Host, r.TLS = `evil"example`, &tls.ConnectionState{}
	c.PublicURL = ""
	if got := c.Challenge(r, why); !strings.Contains(got, `="https://evil\"example/.well`) {
		t.Error(got)
	}
}
