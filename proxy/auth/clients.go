package auth

import (
	"net/http"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// Clients says who clients are, by what they prove themselves with, in one configuration.
// Its fields must not change once it is used. One of the first three must be set, or nobody passes.
type Clients struct {
	Tokens       []*Token      // any of them will do
	Issuers      []*jwt.Issuer // whose tokens will do
	Certificates bool          // of clients, which were verified in the handshake, will do

	// PublicURL is how clients reach us, without a slash at the end. Empty: as the Host of a
	// request says, which somebody else has to check.
	PublicURL string

	known tokenCache
}

// asksToken reports whether clients without a certificate need a token.
func (c *Clients) asksToken() bool { return len(c.Tokens)+len(c.Issuers) > 0 }

// asks reports whether clients have to prove who they are.
func (c *Clients) asks() bool { return c.asksToken() || c.Certificates }

// Identify says who has sent r. It may wait for the keys of an issuer.
func (c *Clients) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	if given := bearer(r); c.asksToken() && given != "" {
		return c.byBearer(r, given)
	}
	if len(c.Issuers) > 0 && inURL(r) {
		return nil, errInURL
	}
	if c.Certificates {
		if who, why := byCertificate(r.TLS); who != nil || why != nil {
			return who, why
		}
	}
	if c.asksToken() {
		return nil, c.missing()
	}
	if who, why := identity.UserOf(r.Context()); who != nil || why != nil {
		return who, why
	}
	return nil, &identity.Refusal{Status: http.StatusForbidden, Text: "a client certificate is required"}
}

// bearer returns the token that r carries, "" for none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// byBearer says who has a token. What looks like a JWT may also be a static token.
func (c *Clients) byBearer(r *http.Request, token string) (*identity.Identity, *identity.Refusal) {
	if len(c.Issuers) == 0 {
		return byToken(c.Tokens, token)
	}
	if inURL(r) { // two are one too many
		return nil, errInURL
	}
	sum := hash(token)
	if who := c.known.get(sum, c.PublicURL, r); who != nil {
		return who, nil
	}
	if len(c.Tokens) > 0 {
		who, why := byToken(c.Tokens, token)
		if who != nil || why != errWrong && !isJWT(token) {
			return who, why
		}
	}
	return c.byJWT(r, token, sum)
}

// missing is why a client is refused that has not said who it is.
func (c *Clients) missing() *identity.Refusal {
	if len(c.Issuers) > 0 {
		return &identity.Refusal{Status: http.StatusUnauthorized, Text: errMissing.Text, Scopes: c.scopes()}
	}
	if _, why := byToken(c.Tokens, ""); why != errWrong {
		return why
	}
	return errMissing
}

var (
	errMissing  = &identity.Refusal{Status: http.StatusUnauthorized, Text: "a bearer token is required, as in Authorization: Bearer TOKEN"}
	errWrong    = &identity.Refusal{Status: http.StatusUnauthorized, Code: "invalid_token", Text: "the bearer token is wrong"}
	errUnknown  = &identity.Refusal{Status: http.StatusServiceUnavailable, Text: "tokens cannot be checked"}
	errNotToken = &identity.Refusal{Status: http.StatusBadRequest, Code: "invalid_request", Text: "Authorization must be the word Bearer and one token"}
	errInURL    = &identity.Refusal{Status: http.StatusBadRequest, Code: "invalid_request", Text: "a token in the URL is not accepted, since URLs are logged"}
)

// inURL reports whether r has a token where none may be (2026-07-28 basic/authorization,
// "Token Requirements").
func inURL(r *http.Request) bool {
	return r.URL.RawQuery != "" && r.URL.Query().Has("access_token")
}
