package auth

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// Clients authenticate clients in one configuration. Exported fields must not change after the first use. One of the
// first three must be set, or nobody is let in.
type Clients struct {
	Tokens       []*Token      // static tokens
	Issuers      []*jwt.Issuer // of JWTs
	Certificates bool          // accept client certificates, which the handshake has verified

	// PublicURL is the URL of the proxy for clients, without a trailing slash. If it is empty, the Host of a request is
	// used, which the caller has checked.
	PublicURL string

	mu    sync.RWMutex                     // guards the field below
	cache map[[sha256.Size]byte]*cachedJWT // by hash of the token, because verifying a signature is slow
}

// asksToken reports whether clients without a certificate need a token.
func (c *Clients) asksToken() bool { return len(c.Tokens)+len(c.Issuers) > 0 }

// Proofs returns how clients authenticate.
func (c *Clients) Proofs() identity.Proofs {
	return identity.Proofs{Tokens: len(c.Tokens) > 0, Issuers: len(c.Issuers) > 0, Certificates: c.Certificates}
}

// asks reports whether clients need credentials.
func (c *Clients) asks() bool { return c.asksToken() || c.Certificates }

// Identify returns the identity of the sender of r. It may wait for the keys of an issuer.
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

// byBearer returns the identity of a token. A token that looks like a JWT may also be a static one.
func (c *Clients) byBearer(r *http.Request, token string) (*identity.Identity, *identity.Refusal) {
	if len(c.Issuers) == 0 {
		return byToken(c.Tokens, token)
	}
	if inURL(r) { // two tokens
		return nil, errInURL
	}
	sum := hash(token)
	if who := c.cached(sum, r); who != nil {
		return who, nil
	}
	if len(c.Tokens) > 0 {
		who, why := byToken(c.Tokens, token)
		if who != nil || why != errWrong && strings.Count(token, ".") != 2 {
			return who, why
		}
	}
	return c.byJWT(r, token, sum)
}

// missing is the refusal of a client without credentials.
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
	errMissing = &identity.Refusal{
		Status: http.StatusUnauthorized, Text: "a bearer token is required, as in Authorization: Bearer TOKEN",
	}
	errWrong    = unauthorized("the bearer token is wrong", nil)
	errUnknown  = &identity.Refusal{Status: http.StatusServiceUnavailable, Text: "tokens cannot be checked"}
	errNotToken = badRequest("Authorization must be the word Bearer and one token")
	errInURL    = badRequest("a token in the URL is not accepted, because URLs are logged")
)

func badRequest(text string) *identity.Refusal {
	return &identity.Refusal{Status: http.StatusBadRequest, Code: "invalid_request", Text: text}
}

// inURL reports whether r has a token in its URL, where none may be (2026-07-28 basic/authorization, "Token
// Requirements").
func inURL(r *http.Request) bool {
	return r.URL.RawQuery != "" && r.URL.Query().Has("access_token")
}
