package auth

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// TestChallengeNamesAllScopes: a challenge names the scopes of a policy, and those that every token of the issuer needs,
// because some clients ask only for the scopes of the last challenge.
func TestChallengeNamesAllScopes(t *testing.T) {
	c := &Clients{
		Issuers:   []*jwt.Issuer{{Name: "https://a.example.com", Scopes: []string{"mcp"}}, {Name: "https://b.example.com", Scopes: []string{"api"}}},
		PublicURL: "https://mcp.example.com",
	}
	who := &identity.Identity{Principal: identity.Principal{Kind: identity.JWT, Issuer: "https://b.example.com", Name: "ada"}, Good: t.Context()}
	c.keep(hash("x.y.z"), &cachedJWT{who: who, until: time.Now().Add(time.Hour)})
	r := httptest.NewRequest(http.MethodPost, "https://mcp.example.com/mcp", nil)
	r.Header.Set("Authorization", "Bearer x.y.z")
	got := c.Challenge(r, &identity.Refusal{Status: 403, Code: "insufficient_scope", Text: "more", Scopes: []string{"files.write", "api"}})
	want := `Bearer realm="mcp-proxy", error="insufficient_scope", error_description="more", scope="api files.write", ` +
		`resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp"`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
