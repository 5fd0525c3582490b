package oauth

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// A client is our identity at one authorization server.
type client struct {
	ID      string    `json:"id"`
	Secret  string    `json:"secret,omitempty"`
	Method  string    `json:"method,omitempty"`  // how the secret is sent: client_secret_basic or client_secret_post
	Expires time.Time `json:"expires,omitzero"`  // of the secret; zero: never
	Made    time.Time `json:"made,omitzero"`     // time of the registration; zero: a person has chosen the client
	Given   bool      `json:"given,omitempty"`   // a person has chosen it for a login, not in the configuration
	Returns []string  `json:"returns,omitempty"` // the registered redirect URIs
}

// Ways to authenticate at a token endpoint (RFC 7591, 2).
const (
	methodNone  = "none"
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
)

const grantDevice = "urn:ietf:params:oauth:grant-type:device_code"

// maxToken bounds the bytes of a token, because servers bound headers.
const maxToken = 16 << 10

// errUnusable is the error of a token response that has no token for us.
var errUnusable = errors.New("the authorization server sent an unusable token response")

var errNoRegistration = errors.New(
	"the authorization server registers no clients: configure a client id (oauth.clientId)")

// methodFor returns how to send a secret to an authorization server. The default is basic (RFC 8414, 2).
func methodFor(s *authServer, secret bool) string {
	switch {
	case !secret && (slices.Contains(s.AuthMethods, methodNone) || len(s.AuthMethods) == 0):
		return methodNone
	case slices.Contains(s.AuthMethods, methodBasic) || !slices.Contains(s.AuthMethods, methodPost):
		return methodBasic
	}
	return methodPost
}

// A registration is what a client says of itself (RFC 7591, 2).
type registration struct {
	Name            string   `json:"client_name"`
	ApplicationType string   `json:"application_type"` // of OpenID Connect Dynamic Client Registration
	Returns         []string `json:"redirect_uris"`
	Method          string   `json:"token_endpoint_auth_method"`
	GrantTypes      []string `json:"grant_types"`
	ResponseTypes   []string `json:"response_types"`
	Scope           string   `json:"scope,omitempty"`
}

// register registers us at an authorization server (RFC 7591), with returns as redirect URIs. Its answer is stored,
// and never shown.
func register(ctx context.Context, hc *http.Client, s *authServer, returns, scopes []string) (*client, error) {
	if s.RegistrationEndpoint == "" {
		return nil, errNoRegistration
	}
	ask := registration{
		Name: "mcp-proxy", ApplicationType: "native", Returns: returns,
		Method: methodFor(s, false), Scope: strings.Join(scopes, " "),
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
	}
	if slices.Contains(s.GrantTypes, grantDevice) {
		ask.GrantTypes = append(ask.GrantTypes, grantDevice)
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.RegistrationEndpoint, bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("invalid registration endpoint")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := unredirected(hc).Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	var got struct {
		ID      string `json:"client_id"`
		Secret  string `json:"client_secret"`
		Expires int64  `json:"client_secret_expires_at"` // zero: never
		Method  string `json:"token_endpoint_auth_method"`
		Error   string `json:"error"`
	}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxMetadata)).Decode(&got)
	switch {
	case resp.StatusCode/100 != 2:
		return nil, &refusal{resp.StatusCode, errorCode(got.Error)}
	case got.ID == "":
		return nil, errors.New("the authorization server registered us without a client id")
	}
	c := &client{
		ID: got.ID, Secret: got.Secret, Method: cmp.Or(got.Method, ask.Method),
		Made: time.Now(), Returns: returns,
	}
	if c.Method == methodNone {
		c.Secret = ""
	}
	if got.Expires > 0 && c.Secret != "" {
		c.Expires = time.Unix(got.Expires, 0)
	}
	return c, nil
}

// good reports whether the registration is still valid and has the redirect URI back, which is empty for a device.
func (c *client) good(back string) bool {
	return c != nil && !c.Made.IsZero() && (c.Expires.IsZero() || time.Until(c.Expires) > time.Minute) &&
		(back == "" || slices.Contains(c.Returns, back))
}

func (c *client) style() oauth2.AuthStyle {
	if c.Secret != "" && c.Method != methodPost {
		return oauth2.AuthStyleInHeader
	}
	return oauth2.AuthStyleInParams
}

// request asks a token endpoint for a token, with a grant and its parameters. (The refresh of x/oauth2 cannot name
// the resource.)
func (c *client) request(ctx context.Context, hc *http.Client, at string, params url.Values) (*oauth2.Token, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, unredirected(hc))
	config := clientcredentials.Config{
		ClientID: c.ID, ClientSecret: c.Secret, TokenURL: at, EndpointParams: params, AuthStyle: c.style(),
	}
	t, err := config.Token(ctx)
	if err != nil {
		return nil, plain(err)
	}
	return t, usableToken(t)
}

// revoke asks the authorization server to revoke a token (RFC 7009).
func (c *client) revoke(ctx context.Context, hc *http.Client, endpoint, token, hint string) error {
	form := url.Values{"token": {token}, "token_type_hint": {hint}}
	if c.style() == oauth2.AuthStyleInParams {
		form.Set("client_id", c.ID)
		if c.Secret != "" {
			form.Set("client_secret", c.Secret)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("invalid revocation endpoint")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.style() == oauth2.AuthStyleInHeader {
		req.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(c.Secret)) // RFC 6749, 2.3.1
	}
	resp, err := unredirected(hc).Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxMetadata)
	if resp.StatusCode/100 != 2 {
		return &refusal{status: resp.StatusCode}
	}
	return nil
}

// usableToken returns why we cannot send a token, nil if we can.
func usableToken(t *oauth2.Token) error {
	switch {
	case !strings.EqualFold(t.Type(), "bearer"):
		return fmt.Errorf("%w: a token of an unknown type", errUnusable)
	case t.AccessToken == "" || strings.ContainsFunc(t.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("%w: an empty token, or one with invalid characters", errUnusable)
	case len(t.AccessToken) > maxToken:
		return fmt.Errorf("%w: a token of more than %d bytes", errUnusable, maxToken)
	}
	return nil
}

// A refusal is an error response of an authorization server.
type refusal struct {
	status int
	code   string // as in RFC 6749, 5.2: "invalid_grant"; "" if the response has none
}

func (r *refusal) Error() string {
	if r.code == "" {
		return fmt.Sprintf("the authorization server answered HTTP %d", r.status)
	}
	return "the authorization server answered " + r.code
}

// refusedWith reports whether err is a refusal with one of these codes.
func refusedWith(err error, codes ...string) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && slices.Contains(codes, r.code)
}

// plain returns an error of x/oauth2 without the text of the server, which may repeat our secrets.
func plain(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return &refusal{e.Response.StatusCode, errorCode(e.ErrorCode)}
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return fmt.Errorf("%w: it cannot be parsed", errUnusable)
}

// errorCode returns code if it looks like an error code, else "".
func errorCode(code string) string {
	if len(code) > 64 || strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return ""
	}
	return code
}

// unredirected returns a client that follows no redirect, for requests that post secrets.
func unredirected(hc *http.Client) *http.Client {
	c := *hc
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}
