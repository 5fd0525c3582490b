package oauth

import (
	"context"
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

// A client is who we are to one authorization server.
type client struct {
	ID      string    `json:"id"`
	Secret  string    `json:"secret,omitempty"`
	Method  string    `json:"method,omitempty"`  // how the secret is sent: client_secret_basic or client_secret_post
	Expires time.Time `json:"expires,omitzero"`  // of the secret; zero: never
	Made    time.Time `json:"made,omitzero"`     // when it was registered; zero: it was configured
	Returns []string  `json:"returns,omitempty"` // the redirect URIs that it was registered with
}

// Ways to authenticate at a token endpoint (RFC 7591, 2).
const (
	methodNone  = "none"
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
)

// methodFor returns how to send a secret to an authorization server. One that does not say
// takes basic (RFC 8414, 2).
func methodFor(i *Issuer, secret bool) string {
	switch {
	case !secret && (slices.Contains(i.AuthMethods, methodNone) || len(i.AuthMethods) == 0):
		return methodNone
	case slices.Contains(i.AuthMethods, methodBasic) || !slices.Contains(i.AuthMethods, methodPost):
		return methodBasic
	}
	return methodPost
}

func (c *client) style() oauth2.AuthStyle {
	if c.Secret != "" && c.Method != methodPost {
		return oauth2.AuthStyleInHeader
	}
	return oauth2.AuthStyleInParams
}

// A refusal is what an authorization server answered instead of doing what it was asked.
type refusal struct {
	status int
	code   string // as in RFC 6749, 5.2: "invalid_grant"; "" if it did not say
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

// request asks a token endpoint for a token, with a grant and its parameters.
// (x/oauth2's own refresh cannot say for which resource it is.)
func (c *client) request(ctx context.Context, hc *http.Client, endpoint string, params url.Values) (*oauth2.Token, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, unredirected(hc))
	config := clientcredentials.Config{ClientID: c.ID, ClientSecret: c.Secret, TokenURL: endpoint, EndpointParams: params, AuthStyle: c.style()}
	t, err := config.Token(ctx)
	if err != nil {
		return nil, plain(err)
	}
	return t, usableToken(t)
}

// usableToken reports why a token is none that we can send.
func usableToken(t *oauth2.Token) error {
	switch {
	case !strings.EqualFold(t.Type(), "bearer"):
		return fmt.Errorf("%w: a token of a kind that is not known", errUnusable)
	case t.AccessToken == "" || strings.ContainsFunc(t.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("%w: a token that cannot be sent", errUnusable)
	case len(t.AccessToken) > maxToken:
		return fmt.Errorf("%w: a token of more than %d bytes", errUnusable, maxToken)
	}
	return nil
}

// maxToken bounds the bytes of a token: servers bound headers.
const maxToken = 16 << 10

// errUnusable is an answer of an authorization server that is no token for us.
var errUnusable = errors.New("the authorization server gave what cannot be used")

// plain returns an error of x/oauth2 without what the server has written, which may repeat
// what it was sent.
func plain(err error) error {
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return &refusal{e.Response.StatusCode, errorCode(e.ErrorCode)}
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return fmt.Errorf("%w: an answer that cannot be read", errUnusable)
}

// errorCode returns the code of an error if it looks like one.
func errorCode(code string) string {
	if len(code) > 64 || strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return ""
	}
	return code
}

// unredirected returns a client that follows no redirect: what it posts has secrets.
func unredirected(hc *http.Client) *http.Client {
	c := *hc
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

// revoke tells the authorization server to forget a token (RFC 7009).
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
		return errors.New("the revocation endpoint cannot be used")
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
