package auth

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// Challenge returns the header WWW-Authenticate of a response that refuses r (RFC 6750, section 3; RFC 9728, section
// 5.1). It is empty if no token would help.
func (c *Clients) Challenge(r *http.Request, why *identity.Refusal) string {
	switch {
	case !c.asksToken():
		return ""
	case why.Status == http.StatusUnauthorized:
	case why.Code == "":
		return ""
	}
	var b strings.Builder
	b.WriteString(`Bearer realm="mcp-proxy"`)
	add := func(name, value string) {
		if value != "" {
			b.WriteString(", " + name + "=" + quote(value))
		}
	}
	add("error", why.Code)
	if len(c.Issuers) == 0 {
		return b.String()
	}
	if why.Code != "" {
		add("error_description", why.Text)
	}
	add("scope", strings.Join(challenged(c.needed(r, why)), " "))
	add("resource_metadata", c.Root(r)+identity.MetadataPath+resourcePath(r.URL.Path))
	return b.String()
}

// needed returns all scopes of a challenge. A policy that refuses r does not know the scopes that every token of the
// issuer needs, and some clients ask only for what the last challenge names.
func (c *Clients) needed(r *http.Request, why *identity.Refusal) []string {
	if why.Status != http.StatusForbidden {
		return why.Scopes
	}
	who, _ := c.Identify(r)
	for _, i := range c.Issuers {
		if who != nil && who.Principal.Kind == identity.JWT && who.Principal.Issuer == i.Name {
			known := func(scope string) bool { return slices.Contains(i.Scopes, scope) }
			lacks := slices.DeleteFunc(slices.Clone(why.Scopes), known)
			return slices.Concat(i.Scopes, lacks)
		}
	}
	return why.Scopes
}

// quote returns a quoted-string (RFC 9110, section 5.6.4) of ASCII.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r >= ' ' && r <= '~':
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// challenged returns the scopes to put in a challenge. We must not ask for refresh tokens (2026-07-28
// basic/authorization, "Refresh Tokens").
func challenged(scopes []string) []string {
	return slices.DeleteFunc(slices.Clone(scopes), func(scope string) bool { return scope == "offline_access" })
}

// scopes returns the scopes that tokens of all issuers need. A client may ask any issuer, which would refuse scopes of
// another one.
func (c *Clients) scopes() []string {
	var scopes []string
	for _, scope := range c.Issuers[0].Scopes {
		lacks := func(i *jwt.Issuer) bool { return !slices.Contains(i.Scopes, scope) }
		if !slices.ContainsFunc(c.Issuers, lacks) {
			scopes = append(scopes, scope)
		}
	}
	return scopes
}

// Metadata returns the metadata of the protected resource (RFC 9728, section 2) at the path of r, if there are issuers.
// At the root it describes /mcp, for clients that do not know our paths.
func (c *Clients) Metadata(r *http.Request) ([]byte, bool) {
	path, ok := strings.CutPrefix(r.URL.Path, identity.MetadataPath)
	path = strings.TrimSuffix(path, "/")
	if public, err := url.Parse(c.PublicURL); err == nil { // clients insert its path too
		if below, ok := strings.CutPrefix(path, public.Path); ok && resourcePath(below) == below {
			path = below
		}
	}
	if path == "" {
		path = "/mcp"
	}
	if !ok || len(c.Issuers) == 0 || resourcePath(path) != path {
		return nil, false
	}
	var issuers []string
	for _, i := range c.Issuers {
		issuers = append(issuers, i.Name)
	}
	text, err := json.Marshal(struct {
		Resource string   `json:"resource"`
		Issuers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
		Name     string   `json:"resource_name"`
	}{c.Root(r) + path, issuers, challenged(c.scopes()), []string{"header"}, "mcp-proxy"})
	return text, err == nil
}

// resource matches the paths of resources: all upstreams, or one. There is a document for every possible name, so that
// it does not reveal which exist.
var resource = regexp.MustCompile(`^/(mcp|ws)(/[A-Za-z0-9_-]{1,32})?$|^/sse$`)

// resourcePath returns the path of the resource that a path belongs to, "" for the root.
func resourcePath(path string) string {
	if path == "/message" { // of clients of /sse
		return "/sse"
	}
	path = strings.TrimSuffix(path, "/server-card") // of /mcp and /mcp/NAME
	if path != "/mcp" && !resource.MatchString(path) {
		return ""
	}
	return path
}

// Root returns the URL of our root, without a trailing slash.
func (c *Clients) Root(r *http.Request) string {
	if c.PublicURL != "" {
		return c.PublicURL
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + strings.ToLower(r.Host)
}
