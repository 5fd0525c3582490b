package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	maxMetadata  = 1 << 20 // bytes of a metadata document
	maxScopes    = 64      // scopes that we ask for at once, whatever servers name
	maxRedirects = 5
)

// union returns the scopes of all lists, in order and without duplicates, and at most maxScopes.
func union(lists ...[]string) (all []string) {
	for _, scope := range slices.Concat(lists...) {
		if !slices.Contains(all, scope) && len(all) < maxScopes {
			all = append(all, scope)
		}
	}
	return all
}

// scopesFor returns the scopes to ask for: the configured ones, else those of the server's challenge, else those of
// the resource; nil leaves the choice to the authorization server (2025-11-25 basic/authorization, "Scope Selection
// Strategy"). It adds those that were granted before, and offline_access, for a refresh token, where the authorization
// server has this scope (2026-07-28, "Refresh Tokens").
func scopesFor(configured []string, c challenge, p *place, before []string) []string {
	scopes := configured
	if len(scopes) == 0 {
		scopes = c.Scopes
	}
	if len(scopes) == 0 {
		scopes = p.Scopes
	}
	scopes = union(scopes, before)
	if len(scopes) > 0 && slices.Contains(p.Server.Scopes, "offline_access") {
		scopes = union(scopes, []string{"offline_access"})
	}
	return scopes
}

// A place says where tokens for an MCP server come from. It is read from the metadata of the protected resource
// (RFC 9728).
type place struct {
	Resource string     `json:"resource"` // what a token is for (RFC 8707), by the server's own name
	Issuers  []string   `json:"authorization_servers"`
	Scopes   []string   `json:"scopes_supported"` // nil if the resource does not say
	Server   authServer `json:"-"`
}

// An authServer is the metadata of an authorization server (RFC 8414, OpenID Connect Discovery).
type authServer struct {
	Issuer                 string   `json:"issuer"`
	AuthorizationEndpoint  string   `json:"authorization_endpoint"`
	TokenEndpoint          string   `json:"token_endpoint"`
	RegistrationEndpoint   string   `json:"registration_endpoint"`
	DeviceEndpoint         string   `json:"device_authorization_endpoint"`
	RevocationEndpoint     string   `json:"revocation_endpoint"`
	Scopes                 []string `json:"scopes_supported"`
	GrantTypes             []string `json:"grant_types_supported"`
	AuthMethods            []string `json:"token_endpoint_auth_methods_supported"`
	ChallengeMethods       []string `json:"code_challenge_methods_supported"`
	ClientMetadataDocument bool     `json:"client_id_metadata_document_supported"`
	SendsIssuer            bool     `json:"authorization_response_iss_parameter_supported"`
}

// discover finds out where tokens for an MCP server (http, https, ws or wss) come from. It asks the server, and the
// authorization server that it names, at the URL in its challenge or at the well-known URLs (2025-11-25
// basic/authorization, "Authorization Server Discovery"). A server without metadata is its own authorization server,
// as in 2025-03-26. Errors name URLs and are for the log.
func discover(ctx context.Context, hc *http.Client, serverText string, c challenge) (*place, error) {
	server, err := serverURL(serverText)
	if err != nil {
		return nil, err
	}
	p, err := resource(ctx, hc, server, c.Metadata)
	if err != nil {
		return nil, err
	}
	own := p == nil
	if own {
		p = &place{Resource: server.String(), Issuers: []string{origin(server)}}
	}
	if len(p.Issuers) == 0 {
		return nil, errors.New("the server names no authorization server")
	}
	s, err := authServerOf(ctx, hc, server, p.Issuers[0], own)
	if err != nil {
		return nil, err
	}
	p.Scopes, p.Server = union(p.Scopes), *s
	return p, nil
}

// serverURL returns the URL of an MCP server as that of a resource: canonical (2025-11-25 basic/authorization,
// "Canonical Server URI"), and with the scheme http or https.
func serverURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return nil, errors.New("invalid URL of the server") // url.Error would quote it
	}
	switch u.Scheme = strings.ToLower(u.Scheme); u.Scheme {
	case "ws":
		u.Scheme = "http"
	case "wss":
		u.Scheme = "https"
	}
	u.Host = strings.ToLower(u.Host)
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	if u.Path == "/" {
		u.Path = ""
	}
	return u, nil
}

func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// resource returns the metadata of the server, nil if it has none.
func resource(ctx context.Context, hc *http.Client, server *url.URL, named string) (*place, error) {
	root := origin(server) + "/.well-known/oauth-protected-resource"
	places := []string{root + server.EscapedPath(), root}
	if named != "" {
		places = []string{named}
	}
	found, err := first(ctx, hc, server, places, func(p *place) error {
		if !covers(p.Resource, server) {
			return fmt.Errorf("it describes another resource, %q", p.Resource)
		}
		return nil
	})
	switch {
	case errors.Is(err, errAbsent) && named == "":
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("metadata of the server: %w", err)
	}
	return found, nil
}

// hostOf returns the host and port of a URL, without the default port of the scheme (RFC 3986, 6.2.3).
func hostOf(u *url.URL) string {
	port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	return strings.TrimSuffix(u.Host, port)
}

// first returns the first usable document at some places. If there is none, the error is that of the first document
// that exists, else errAbsent. Where one does not come in time it waits for no other.
func first[T any](
	ctx context.Context, hc *http.Client, server *url.URL, places []string, usable func(*T) error,
) (*T, error) {
	failed := errAbsent
	for _, at := range slices.Compact(places) {
		found := new(T)
		err := get(ctx, hc, server, at, found)
		if err == nil {
			err = usable(found)
		}
		if err == nil {
			return found, nil
		}
		if errors.Is(failed, errAbsent) {
			failed = err
		}
		if errors.Is(err, errSlow) || ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

// covers reports whether a resource is the server, or one that the server is part of (RFC 9728, 3.3). We never ask
// for tokens for anything else.
func covers(resource string, server *url.URL) bool {
	r, err := serverURL(resource)
	if err != nil || r.Scheme != server.Scheme || hostOf(r) != hostOf(server) {
		return false
	}
	if r.RawQuery != "" && r.RawQuery != server.RawQuery {
		return false
	}
	path := strings.TrimSuffix(r.EscapedPath(), "/")
	rest, within := strings.CutPrefix(strings.TrimSuffix(server.EscapedPath(), "/"), path)
	return within && (rest == "" || rest[0] == '/')
}

// authServerOf returns the metadata of an authorization server. A server of 2025-03-26 (old) may have none; its
// endpoints are then at fixed paths.
func authServerOf(ctx context.Context, hc *http.Client, server *url.URL, issuer string, old bool) (*authServer, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" {
		return nil, errors.New("invalid URL of the authorization server")
	}
	root, path := origin(u), strings.TrimSuffix(u.EscapedPath(), "/")
	places := []string{
		root + "/.well-known/oauth-authorization-server" + path,
		root + "/.well-known/openid-configuration" + path,
		root + path + "/.well-known/openid-configuration",
	}
	found, err := first(ctx, hc, server, places, func(s *authServer) error {
		if strings.TrimSuffix(s.Issuer, "/") != strings.TrimSuffix(issuer, "/") { // RFC 8414, 3.3
			return fmt.Errorf("it describes another issuer, %q", s.Issuer)
		}
		return s.check(server)
	})
	switch {
	case err == nil:
		return found, nil
	case !errors.Is(err, errAbsent):
		return nil, fmt.Errorf("metadata of the authorization server: %w", err)
	case !old:
		return nil, fmt.Errorf("metadata of the authorization server %s: %w", root, err)
	}
	return &authServer{
		Issuer: root, AuthorizationEndpoint: root + "/authorize", TokenEndpoint: root + "/token",
		RegistrationEndpoint: root + "/register", ChallengeMethods: []string{"S256"},
	}, nil
}

// check returns an error if what we send to an endpoint would not be encrypted.
func (s *authServer) check(server *url.URL) error {
	for _, endpoint := range []string{
		s.AuthorizationEndpoint, s.TokenEndpoint, s.RegistrationEndpoint, s.DeviceEndpoint, s.RevocationEndpoint,
	} {
		if endpoint == "" {
			continue
		}
		if err := safe(server, endpoint); err != nil {
			return fmt.Errorf("an endpoint %w", err)
		}
	}
	if s.TokenEndpoint == "" {
		return errors.New("no token endpoint")
	}
	return nil
}

// safe returns why we do not use a URL that a server names, nil if we do: it must be https, or at the server's own
// origin, or on this machine if the server is here too.
func safe(server *url.URL, text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		return errors.New("is not a valid URL")
	case u.Scheme == "https":
		return nil
	case u.Scheme != "http":
		return fmt.Errorf("has the scheme %q", u.Scheme)
	case hostOf(u) == hostOf(server) && server.Scheme == "http", isLoopback(u.Hostname()) && isLoopback(server.Hostname()):
		return nil
	}
	return fmt.Errorf("at %s is not encrypted", u.Host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// errSlow means that a document did not come within fetchTimeout.
var errSlow = fmt.Errorf("it did not come within %d s", int(fetchTimeout.Seconds()))

// errAbsent means that a document does not exist, so that the next URL is tried.
var errAbsent = errors.New("not found")

// get reads a JSON document.
func get(ctx context.Context, hc *http.Client, server *url.URL, at string, into any) error {
	if err := safe(server, at); err != nil {
		return fmt.Errorf("its URL %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, errSlow)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return errors.New("its URL is invalid")
	}
	req.Header.Set("Accept", "application/json")
	client := *hc
	client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		return safe(server, r.URL.String())
	}
	resp, err := client.Do(req)
	if err != nil {
		return missed(ctx, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests:
		return errAbsent
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind == "text/html" { // some sites answer unknown paths with a page and status 200
		return errAbsent
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata+1))
	switch {
	case err != nil:
		return missed(ctx, err)
	case len(text) > maxMetadata:
		return fmt.Errorf("more than %d bytes", maxMetadata)
	case json.Unmarshal(text, into) != nil: // its error may quote the text
		return errors.New("invalid JSON")
	}
	return nil
}

// missed returns why a document did not come.
func missed(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSlow) {
		return errSlow
	}
	return withoutURL(err)
}

// withoutURL returns an error of net/http without the URL, which may contain secrets.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
