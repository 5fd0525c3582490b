package auth

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

const (
	// cacheFor is how long a verified token is not verified again. Changes at an issuer, except to its keys, take
	// effect after that.
	cacheFor = 5 * time.Minute

	// maxCached bounds the verified tokens in the cache. A full cache drops any of them.
	maxCached = 4096
)

// A cachedJWT is a valid JWT in the cache of Clients.
type cachedJWT struct {
	who   *identity.Identity
	until time.Time
	only  string // the resource that the token is for; "" for all
}

// cached returns the identity of a token with this hash, nil if the token must be verified.
func (c *Clients) cached(sum [sha256.Size]byte, r *http.Request) *identity.Identity {
	c.mu.RLock()
	found := c.cache[sum]
	c.mu.RUnlock()
	if found == nil || found.who.Good.Err() != nil || !time.Now().Before(found.until) {
		return nil
	}
	if found.only != "" {
		if path, ok := strings.CutPrefix(found.only, c.PublicURL); !ok || path != resourcePath(r.URL.Path) {
			return nil
		}
	}
	return found.who
}

func (c *Clients) keep(sum [sha256.Size]byte, one *cachedJWT) {
	// Without its monotonic time the limit is one of the wall clock, as the token's own expiry is. The monotonic clock
	// stands still while the machine is suspended, so that the token could expire unnoticed.
	if limit := time.Now().Add(cacheFor).Round(0); one.until.After(limit) {
		one.until = limit
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cache == nil {
		c.cache = make(map[[sha256.Size]byte]*cachedJWT)
	}
	for old := range c.cache {
		if len(c.cache) < maxCached {
			break
		}
		delete(c.cache, old)
	}
	c.cache[sum] = one
}

// byJWT returns the identity of a token of an issuer.
func (c *Clients) byJWT(r *http.Request, text string, sum [sha256.Size]byte) (*identity.Identity, *identity.Refusal) {
	if !isToken68(text) {
		return nil, errNotToken
	}
	resource := ""
	if c.PublicURL != "" {
		resource = c.PublicURL + resourcePath(r.URL.Path)
	}
	token, err := jwt.Verify(r.Context(), c.Issuers, resource, text)
	if err != nil {
		return nil, c.refusalOf(err)
	}
	who, why := identify(token)
	if why == nil {
		c.keep(sum, &cachedJWT{who: who, until: token.Expires, only: token.Only})
	}
	return who, why
}

// isToken68 reports whether text has the characters of a bearer token (RFC 6750, section 2.1).
func isToken68(text string) bool {
	const all = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/="
	return strings.Trim(text, all) == "" && !strings.HasPrefix(text, "=")
}

func (c *Clients) refusalOf(err error) *identity.Refusal {
	invalid, ok := errors.AsType[jwt.Invalid](err)
	switch {
	case !ok: // the keys are unknown, or the client has left
		return errUnknown
	case invalid == jwt.Malformed:
		return unauthorized(errWrong.Text, c.scopes())
	}
	return unauthorized(invalid.Error(), c.scopes())
}

// identify returns the identity of a token, if the token has the claim and the scopes that its issuer needs.
func identify(t *jwt.Token) (*identity.Identity, *identity.Refusal) {
	name, _ := t.Claims[t.Issuer.Principal].(string)
	if !isName(name) {
		return nil, unauthorized("the token does not name its subject", t.Issuer.Scopes)
	}
	who := &identity.Identity{
		Principal: identity.Principal{Kind: identity.JWT, Issuer: t.Issuer.Name, Name: name},
		Scopes:    scopesIn(t.Claims), Claims: t.Payload, Expires: t.Expires, Good: t.Key.Good(),
	}
	if who.Lacks(t.Issuer.Scopes) != nil {
		return nil, &identity.Refusal{
			Status: http.StatusForbidden, Code: "insufficient_scope", Scopes: t.Issuer.Scopes,
			Text: "the token lacks a scope that all requests need",
		}
	}
	return who, nil
}

func unauthorized(text string, scopes []string) *identity.Refusal {
	return &identity.Refusal{Status: http.StatusUnauthorized, Code: "invalid_token", Text: text, Scopes: scopes}
}

// isName reports whether a claim can name a principal. The replacement character stands for any invalid Unicode, so two
// different names could have it.
func isName(name string) bool {
	odd := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }
	return name != "" && !strings.ContainsFunc(name, odd)
}

// scopesIn returns the granted scopes of a token: words or a list, in the claim of RFC 8693, section 4.2, or in the
// claims that some servers use instead.
func scopesIn(claims map[string]any) (scopes []string) {
	for _, name := range []string{"scope", "scp", "scopes"} {
		switch granted := claims[name].(type) {
		case string:
			scopes = append(scopes, strings.Fields(granted)...)
		case []any:
			for _, one := range granted {
				if text, ok := one.(string); ok {
					scopes = append(scopes, text)
				}
			}
		}
	}
	return scopes
}
