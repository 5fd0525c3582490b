package auth

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// isJWT reports whether a token looks like one.
func isJWT(token string) bool { return strings.Count(token, ".") == 2 }

// byJWT says whom an issuer has given the token.
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
		c.known.put(sum, &cachedToken{who: who, key: token.Key, until: token.Expires, only: token.Only})
	}
	return who, why
}

// isToken68 reports whether text has the characters of a bearer token (RFC 6750, section
// 2.1).
func isToken68(text string) bool {
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=") == "" && !strings.HasPrefix(text, "=")
}

func (c *Clients) refusalOf(err error) *identity.Refusal {
	invalid, ok := errors.AsType[jwt.Invalid](err)
	switch {
	case !ok: // keys are not known, or the client has left
		return errUnknown
	case invalid == jwt.Malformed:
		return &identity.Refusal{Status: http.StatusUnauthorized, Code: errWrong.Code, Text: errWrong.Text, Scopes: c.scopes()}
	}
	return &identity.Refusal{Status: http.StatusUnauthorized, Code: "invalid_token", Text: invalid.Error(), Scopes: c.scopes()}
}

// identify returns the identity that a token proves, if it has what its issuer needs.
func identify(t *jwt.Token) (*identity.Identity, *identity.Refusal) {
	name, _ := t.Claims[t.Issuer.Principal].(string)
	if !isName(name) {
		return nil, &identity.Refusal{Status: http.StatusUnauthorized, Code: "invalid_token", Text: "the token does not say whom it is about", Scopes: t.Issuer.Scopes}
	}
	who := &identity.Identity{
		Principal: identity.Principal{Kind: identity.JWT, Issuer: t.Issuer.Name, Name: name},
		Scopes:    Scopes(t.Claims), Claims: t.Payload, Expires: t.Expires,
	}
	if who.Lacks(t.Issuer.Scopes) != nil {
		return nil, &identity.Refusal{
			Status: http.StatusForbidden, Code: "insufficient_scope", Text: "the token lacks a scope that all requests need", Scopes: t.Issuer.Scopes,
		}
	}
	return who, nil
}

// isName reports whether a claim can name a principal. With the replacement character,
// which stands for all that is no Unicode, two names could be one.
func isName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) })
}

// Scopes returns what the claims of a token grant: words or a list, in the claim of RFC 8693,
// section 4.2, and in those that some servers have instead.
func Scopes(claims map[string]any) (scopes []string) {
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
