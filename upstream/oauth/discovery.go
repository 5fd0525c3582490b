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

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	// maxMetadata bounds the bytes of a document of metadata.
	maxMetadata = 1 << 20

	// maxChallenge bounds the bytes of challenges: what reads them takes time that grows
	// with their square.
	maxChallenge = 8 << 10

	// maxScopes bounds those that we ask for at once, whatever servers name.
	maxScopes = 64

	maxRedirects = 5
)

// A Challenge is what a server asks for with a 401 or 403 (RFC 6750, 3; RFC 9728, 5.1). The
// zero value asks for nothing in particular.
type Challenge struct {
	Metadata string   // the URL of the metadata of the protected resource; "" if it is not said
	Scopes   []string // that the request needs; nil if they are not said
	Code     string   // "invalid_token", "insufficient_scope"; "" if nothing was proved
}

// ChallengeOf returns what a response's header asks for. What cannot be read counts as not
// said.
func ChallengeOf(header http.Header) (c Challenge) {
	values, size := header.Values("Www-Authenticate"), 0
	for _, v := range values {
		size += len(v)
	}
	if size > maxChallenge {
		return c
	}
	all, _ := oauthex.ParseWWWAuthenticate(values)
	for _, one := range all {
		if one.Scheme != "bearer" {
			continue
		}
		if c.Metadata == "" {
			c.Metadata = one.Params["resource_metadata"]
		}
		if c.Code == "" {
			c.Code = one.Params["error"]
		}
		c.Scopes = Union(c.Scopes, strings.Fields(one.Params["scope"]))
	}
	return c
}

// Union returns the scopes that are in one of the lists, each once and in the order in which
// they come. Beyond maxScopes they are left out.
func Union(lists ...[]string) (all []string) {
	for _, scope := range slices.Concat(lists...) {
		if !slices.Contains(all, scope) && len(all) < maxScopes {
			all = append(all, scope)
		}
	}
	return all
}

// A Place is where tokens for a server come from.
type Place struct {
	Resource string   // what a token is for (RFC 8707), as the server calls itself
	Scopes   []string // that the resource has; nil if it does not say
	Issuer   Issuer
}

// An Issuer is an authorization server, as its metadata says (RFC 8414, OpenID Connect
// Discovery).
type Issuer struct {
	Issuer                 string   `json:"issuer"`
	AuthorizationEndpoint  string   `json:"authorization_endpoint"`
	TokenEndpoint          string   `json:"token_endpoint"`
	RegistrationEndpoint   string   `json:"registration_endpoint"`
	DeviceEndpoint         string   `json:"device_authorization_endpoint"`
	RevocationEndpoint     string   `json:"revocation_endpoint"`
	Scopes                 []string `json:"scopes_supported"`
	GrantTypes             []string `json:"grant_types_supported"`
	AuthMethods            []string `json:"token_endpoint_auth_methods_supported"`
	SigningAlgorithms      []string `json:"token_endpoint_auth_signing_alg_values_supported"`
	ChallengeMethods       []string `json:"code_challenge_methods_supported"`
	ClientMetadataDocument bool     `json:"client_id_metadata_document_supported"`
	SaysIssuer             bool     `json:"authorization_response_iss_parameter_supported"`
}

// protectedResource is the metadata of a protected resource (RFC 9728).
type protectedResource struct {
	Resource string   `json:"resource"`
	Issuers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
}

// A Discovery finds out where tokens for a server come from. (The functions of
// go-sdk/oauthex refuse authorization servers in private networks, and those of programs
// alone, which have no use for PKCE.)
type Discovery struct {
	Server string       // its URL: http, https, ws or wss
	Client *http.Client // for all requests; its redirects are limited further
}

// Find asks the server, and the authorization server that it names, as a challenge of the
// server says or at their well-known places (2025-11-25 basic/authorization, "Authorization
// Server Discovery"). A server without metadata is its own authorization server, as in
// 2025-03-26. An error names URLs and is for the log.
func (d *Discovery) Find(ctx context.Context, c Challenge) (*Place, error) {
	server, err := serverURL(d.Server)
	if err != nil {
		return nil, err
	}
	resource, err := d.resource(ctx, server, c.Metadata)
	if err != nil {
		return nil, err
	}
	own := resource == nil
	if own {
		resource = &protectedResource{Resource: server.String(), Issuers: []string{server.Scheme + "://" + server.Host}}
	}
	if len(resource.Issuers) == 0 {
		return nil, errors.New("the server names no authorization server")
	}
	issuer, err := d.issuer(ctx, server, resource.Issuers[0], own)
	if err != nil {
		return nil, err
	}
	return &Place{Resource: resource.Resource, Scopes: Union(resource.Scopes), Issuer: *issuer}, nil
}

// serverURL returns the URL of an MCP server as that of a resource: canonical (2025-11-25
// basic/authorization, "Canonical Server URI"), and of HTTP.
func serverURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return nil, errors.New("the URL of the server cannot be read") // url.Error would quote it
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

// resource returns the metadata of the server, nil if it has none.
func (d *Discovery) resource(ctx context.Context, server *url.URL, named string) (*protectedResource, error) {
	root := server.Scheme + "://" + server.Host + "/.well-known/oauth-protected-resource"
	places := []string{root + server.EscapedPath(), root}
	if named != "" {
		places = []string{named}
	}
	for _, at := range slices.Compact(places) {
		var found protectedResource
		err := d.get(ctx, server, at, &found)
		switch {
		case errors.Is(err, errAbsent):
			continue
		case err != nil:
			return nil, fmt.Errorf("metadata of the server: %w", err)
		case !covers(found.Resource, server):
			return nil, fmt.Errorf("metadata of the server: it is of another resource, %q", found.Resource)
		}
		return &found, nil
	}
	if named != "" {
		return nil, fmt.Errorf("metadata of the server: %w", errAbsent)
	}
	return nil, nil
}

// covers reports whether a resource is the server, or one that the server is part of
// (RFC 9728, 3.3): tokens are never asked for anything else.
func covers(resource string, server *url.URL) bool {
	r, err := serverURL(resource)
	if err != nil || r.Scheme != server.Scheme || r.Host != server.Host || r.RawQuery != "" && r.RawQuery != server.RawQuery {
		return false
	}
	path := strings.TrimSuffix(r.EscapedPath(), "/")
	rest, within := strings.CutPrefix(strings.TrimSuffix(server.EscapedPath(), "/"), path)
	return within && (rest == "" || rest[0] == '/')
}

// issuer returns the metadata of an authorization server. One of 2025-03-26 may have none,
// and its endpoints where they were agreed.
func (d *Discovery) issuer(ctx context.Context, server *url.URL, issuer string, old bool) (*Issuer, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" {
		return nil, errors.New("the authorization server has no URL")
	}
	root, path := u.Scheme+"://"+u.Host, strings.TrimSuffix(u.EscapedPath(), "/")
	places := []string{
		root + "/.well-known/oauth-authorization-server" + path,
		root + "/.well-known/openid-configuration" + path,
		root + path + "/.well-known/openid-configuration",
	}
	for _, at := range slices.Compact(places) {
		var found Issuer
		err := d.get(ctx, server, at, &found)
		switch {
		case errors.Is(err, errAbsent):
			continue
		case err != nil:
			return nil, fmt.Errorf("metadata of the authorization server: %w", err)
		case strings.TrimSuffix(found.Issuer, "/") != strings.TrimSuffix(issuer, "/"): // RFC 8414, 3.3
			return nil, fmt.Errorf("metadata of the authorization server: it is of another one, %q", found.Issuer)
		}
		return &found, d.checkEndpoints(server, &found)
	}
	if !old {
		return nil, fmt.Errorf("metadata of the authorization server %s: %w", root, errAbsent)
	}
	return &Issuer{
		Issuer: root, AuthorizationEndpoint: root + "/authorize", TokenEndpoint: root + "/token", RegistrationEndpoint: root + "/register",
		ChallengeMethods: []string{"S256"},
	}, nil
}

// checkEndpoints checks that nothing that is said to an authorization server can be read
// on the way.
func (d *Discovery) checkEndpoints(server *url.URL, i *Issuer) error {
	for _, endpoint := range []string{i.AuthorizationEndpoint, i.TokenEndpoint, i.RegistrationEndpoint, i.DeviceEndpoint, i.RevocationEndpoint} {
		if endpoint == "" {
			continue
		}
		if err := safe(server, endpoint); err != nil {
			return fmt.Errorf("metadata of the authorization server: an endpoint %w", err)
		}
	}
	if i.TokenEndpoint == "" {
		return errors.New("metadata of the authorization server: it has no token endpoint")
	}
	return nil
}

// safe reports why a URL that others name cannot be used: it must be https, or lead to the
// server's own origin, or to this machine if the server is here too.
func safe(server *url.URL, text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		return errors.New("is no URL that can be used")
	case u.Scheme == "https":
		return nil
	case u.Scheme != "http":
		return fmt.Errorf("has the scheme %q", u.Scheme)
	case u.Host == server.Host && server.Scheme == "http", isLoopback(u.Hostname()) && isLoopback(server.Hostname()):
		return nil
	}
	return fmt.Errorf("at %s is not encrypted", u.Host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// errAbsent is that a document is not there, so that another place is tried.
var errAbsent = errors.New("not found")

// get reads a document of JSON.
func (d *Discovery) get(ctx context.Context, server *url.URL, at string, into any) error {
	if err := safe(server, at); err != nil {
		return fmt.Errorf("its URL %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return errors.New("its URL cannot be used")
	}
	req.Header.Set("Accept", "application/json")
	client := *d.Client
	client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		return safe(server, r.URL.String())
	}
	resp, err := client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests:
		return errAbsent
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/html" { // a page for all that is not there
		return errAbsent
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata+1))
	switch {
	case err != nil:
		return withoutURL(err)
	case len(text) > maxMetadata:
		return fmt.Errorf("more than %d bytes", maxMetadata)
	case json.Unmarshal(text, into) != nil: // whose error may quote it
		return errors.New("not the JSON that it should be")
	}
	return nil
}

// withoutURL returns an error of net/http without the URL, which may hold what is secret.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
