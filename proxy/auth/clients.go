package auth

import (
	"net/http"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// Clients says who clients are, by what they prove themselves with. Its fields must not
// change once it is used.
type Clients struct {
	Tokens []*Token // any of them will do
}

// Identify says who has sent r. The Refusal says whether there was no token or a wrong one.
func (c *Clients) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	given := bearer(r)
	who, err := byToken(c.Tokens, given)
	switch {
	case err != nil: // no token can be told from a wrong one
		return nil, &identity.Refusal{Status: http.StatusServiceUnavailable, Text: "tokens cannot be checked"}
	case given == "":
		return nil, &identity.Refusal{Status: http.StatusUnauthorized, Text: "a bearer token is required, as in Authorization: Bearer TOKEN"}
	case who == nil:
		return nil, &identity.Refusal{Status: http.StatusUnauthorized, Code: "invalid_token", Text: "the bearer token is wrong"}
	}
	return who, nil
}

// bearer returns the token that r carries, "" for none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Challenge returns the WWW-Authenticate header of a response that refuses r.
func (c *Clients) Challenge(_ *http.Request, why *identity.Refusal) string {
	switch {
	case why.Status != http.StatusUnauthorized:
		return ""
	case why.Code == "":
		return `Bearer realm="mcp-proxy"`
	}
	return `Bearer realm="mcp-proxy", error="` + why.Code + `"`
}

// Metadata returns no document: static tokens have no authorization server.
func (c *Clients) Metadata(*http.Request) ([]byte, bool) { return nil, false }
