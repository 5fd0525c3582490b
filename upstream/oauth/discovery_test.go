package oauth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A site is a web server with JSON documents of a test. In documents and expectations %s is its URL.
type site struct {
	*httptest.Server
	docs  map[string]string
	asked []string
}

func newSite(t *testing.T, docs map[string]string) *site {
	t.Helper()
	s := &site{docs: docs}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked = append(s.asked, r.URL.Path)
		doc, ok := s.docs[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case doc == "500":
			w.WriteHeader(http.StatusInternalServerError)
		case strings.HasPrefix(doc, "OK"):
			fmt.Fprint(w, doc) // as text/plain
		case strings.HasPrefix(doc, "http"):
			http.Redirect(w, r, doc, http.StatusFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, strings.ReplaceAll(doc, "%s", s.URL))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

const (
	resourceDoc = `{"resource":"%s/mcp","authorization_servers":["%s"],"scopes_supported":["a","b"]}`
	issuerDoc   = `{"issuer":"%s","token_endpoint":"%s/t"}`
)

func TestFind(t *testing.T) {
	const prm, as, oidc = "/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	tests := []struct {
		name      string
		docs      map[string]string
		challenge string // the path of the metadata
		resource  string
		issuer    string
		err       string
	}{
		{name: "path inserted", docs: map[string]string{prm + "/mcp": resourceDoc, as: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "root", docs: map[string]string{prm: resourceDoc, as: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "root, of all of the server", docs: map[string]string{prm: `{"resource":"%s","authorization_servers":["%s"]}`, as: issuerDoc}, resource: "%s", issuer: "%s"},
		{name: "OpenID", docs: map[string]string{prm: resourceDoc, oidc: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "named", docs: map[string]string{"/here": resourceDoc, as: issuerDoc}, challenge: "/here", resource: "%s/mcp", issuer: "%s"},
		{name: "named, redirected elsewhere", docs: map[string]string{"/here": "http://metadata.invalid/", as: issuerDoc}, challenge: "/here", err: "not encrypted"},
		{
			name: "issuer with a path", resource: "%s/mcp", issuer: "%s/tenant",
			docs: map[string]string{
				prm: `{"resource":"%s/mcp","authorization_servers":["%s/tenant"]}`, as + "/tenant": `{"issuer":"%s/tenant","token_endpoint":"%s/t"}`,
			},
		},
		{
			name: "issuer with a path, OpenID appended", resource: "%s/mcp", issuer: "%s/tenant",
			docs: map[string]string{
				prm: `{"resource":"%s/mcp","authorization_servers":["%s/tenant"]}`, "/tenant" + oidc: `{"issuer":"%s/tenant","token_endpoint":"%s/t"}`,
			},
		},
		{name: "no metadata of the resource", docs: map[string]string{as: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "no metadata at all", resource: "%s/mcp", issuer: "%s"},
		{name: "named, but not there", challenge: "/here", docs: map[string]string{prm: resourceDoc, as: issuerDoc}, err: "not found"},
		{name: "another resource", docs: map[string]string{prm: `{"resource":"%s/mc","authorization_servers":["%s"]}`, as: issuerDoc}, err: "another resource"},
		{name: "another host", docs: map[string]string{prm: `{"resource":"https://other.invalid/mcp","authorization_servers":["%s"]}`, as: issuerDoc}, err: "another resource"},
		{name: "another issuer", docs: map[string]string{prm: resourceDoc, as: `{"issuer":"https://other.invalid","token_endpoint":"%s/t"}`}, err: "another issuer"},
		{name: "another resource first", docs: map[string]string{prm + "/mcp": `{"resource":"%s/mc","authorization_servers":["%s"]}`, prm: resourceDoc, as: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "text first", docs: map[string]string{prm + "/mcp": "OK", prm: resourceDoc, as: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "another issuer first", docs: map[string]string{prm: resourceDoc, as: `{"issuer":"https://other.invalid","token_endpoint":"%s/t"}`, oidc: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "an error first", docs: map[string]string{prm: resourceDoc, as: "500", oidc: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{name: "an unusable issuer first", docs: map[string]string{prm: resourceDoc, as: `{"issuer":"%s"}`, oidc: issuerDoc}, resource: "%s/mcp", issuer: "%s"},
		{
			name: "issuer with a path, after one of another", resource: "%s/mcp", issuer: "%s/tenant",
			docs: map[string]string{
				prm: `{"resource":"%s/mcp","authorization_servers":["%s/tenant"]}`, as + "/tenant": issuerDoc, "/tenant" + oidc: `{"issuer":"%s/tenant","token_endpoint":"%s/t"}`,
			},
		},
		{name: "an error and nothing else", docs: map[string]string{prm: "500", as: issuerDoc}, err: "metadata of the server: HTTP 500"},
		{name: "two errors", docs: map[string]string{prm: resourceDoc, as: "500", oidc: "OK"}, err: "metadata of the authorization server: HTTP 500"},
		{name: "no issuer", docs: map[string]string{prm: `{"resource":"%s/mcp"}`, as: issuerDoc}, err: "names no authorization server"},
		{name: "issuer without metadata", docs: map[string]string{prm: resourceDoc}, err: "not found"},
		{name: "issuer that can be overheard", docs: map[string]string{prm: `{"resource":"%s/mcp","authorization_servers":["http://as.invalid"]}`}, err: "not encrypted"},
		{name: "endpoint that can be overheard", docs: map[string]string{prm: resourceDoc, as: `{"issuer":"%s","token_endpoint":"http://as.invalid/t"}`}, err: "not encrypted"},
		{name: "endpoint of another kind", docs: map[string]string{prm: resourceDoc, as: `{"issuer":"%s","token_endpoint":"%s/t","authorization_endpoint":"javascript:alert(1)"}`}, err: "not a valid URL"},
		{name: "no token endpoint", docs: map[string]string{prm: resourceDoc, as: `{"issuer":"%s"}`}, err: "no token endpoint"},
		{name: "not JSON", docs: map[string]string{prm: `secret`}, err: "invalid JSON"},
		{name: "huge", docs: map[string]string{prm: `"` + strings.Repeat("x", maxMetadata) + `"`}, err: "more than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t, tt.docs)
			var c challenge
			if tt.challenge != "" {
				c.Metadata = s.URL + tt.challenge
			}
			for _, server := range []string{s.URL, "ws" + strings.TrimPrefix(s.URL, "http")} {
				got, err := discover(t.Context(), s.Client(), server+"/mcp", c)
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "secret") {
						t.Errorf("error %v, want %q", err, tt.err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				issuer := strings.ReplaceAll(tt.issuer, "%s", s.URL)
				if got.Server.Issuer != issuer || got.Resource != strings.ReplaceAll(tt.resource, "%s", s.URL) || got.Server.TokenEndpoint == "" {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
}

// Hosts are compared without default ports.
func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		resource, server string
		want             bool
	}{
		{"https://example.com/mcp", "https://example.com:443/mcp", true},
		{"https://example.com:443/mcp", "https://example.com/mcp", true},
		{"http://example.com:80", "http://example.com/mcp", true},
		{"https://[::1]/mcp", "https://[::1]:443/mcp", true},
		{"https://example.com/mcp", "https://example.com:80/mcp", false},
		{"https://example.com:8443/mcp", "https://example.com/mcp", false},
		{"http://example.com/mcp", "https://example.com:443/mcp", false},
	} {
		server, err := serverURL(tt.server)
		if err != nil {
			t.Fatal(err)
		}
		if got := covers(tt.resource, server); got != tt.want {
			t.Errorf("%s covers %s: %t", tt.resource, tt.server, got)
		}
	}
}

// A remote server cannot make us send requests to this machine.
func TestFindAsksNothingHereForOthers(t *testing.T) {
	s := newSite(t, map[string]string{"/": resourceDoc})
	if _, err := discover(t.Context(), s.Client(), "https://mcp.example.com/mcp", challenge{Metadata: s.URL + "/"}); err == nil || len(s.asked) > 0 {
		t.Errorf("error %v, asked %q", err, s.asked)
	}
}
