package oauth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

// device has a person log in with a browser anywhere, by a code (RFC 8628).
func (l *Login) device(ctx context.Context, a attempt) (*token, error) {
	s := &a.place.Server
	if s.DeviceEndpoint == "" {
		return nil, errors.New("the authorization server offers no login by device code")
	}
	c, err := l.client(ctx, a, "")
	if err != nil {
		return nil, err
	}
	config := oauth2.Config{
		ClientID: c.ID, ClientSecret: c.Secret, Scopes: a.scopes,
		Endpoint: oauth2.Endpoint{DeviceAuthURL: s.DeviceEndpoint, TokenURL: s.TokenEndpoint, AuthStyle: c.style()},
	}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, unredirected(l.config.Client))
	resource := oauth2.SetAuthURLParam("resource", a.place.Resource)
	d, err := config.DeviceAuth(ctx, resource)
	if err != nil {
		return nil, plain(err)
	}
	page := cmp.Or(d.VerificationURIComplete, d.VerificationURI)
	if u, err := url.Parse(page); err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the authorization server names no page to log in at")
	}
	l.config.Show(Prompt{Host: l.host(), URL: page, Code: d.UserCode})
	t, err := config.DeviceAccessToken(ctx, d, resource)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, plain(err)
	}
	if err := usableToken(t); err != nil {
		return nil, err
	}
	return l.granted(ctx, a, c, t)
}

// LogIn has a person log in now: by device code if byDevice is set, or if there is no browser and the authorization
// server offers it, else with a browser. It begins with the server's metadata, because a server may answer a first
// request without a token. It returns where the login is kept.
func (l *Login) LogIn(ctx context.Context, byDevice bool) (kept string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, errNobody)
	defer cancel()
	a := attempt{explicit: true, challenge: l.challenge(ctx)}
	if err := l.prepare(ctx, &a); err != nil {
		return "", err
	}
	if byDevice || a.place.Server.DeviceEndpoint != "" && !l.config.NoBrowser && len(browsers()) == 0 {
		_, err = l.device(ctx, a)
	} else {
		_, err = l.browse(ctx, a)
	}
	return l.config.Store.where(l.key), err
}

// challengeTimeout bounds the probes together, and half of it each: some servers hold the header of a GET until they
// have something to say.
const challengeTimeout = 10 * time.Second

// A probe is a request for the sake of a challenge.
type probe struct {
	method, body string
	header       map[string]string
}

// probes are tried in turn. Many servers take no GET, and some servers of earlier versions than 2026-07-28 answer
// server/discover with an error, not with a challenge.
var probes = []probe{
	{http.MethodGet, "", nil},
	{
		http.MethodPost,
		`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{` +
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		map[string]string{"Content-Type": "application/json", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"},
	},
	{http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, map[string]string{"Content-Type": "application/json"}},
}

// challenge returns the server's challenge to a request without a token.
func (l *Login) challenge(ctx context.Context) challenge {
	ctx, cancel := context.WithTimeout(ctx, challengeTimeout)
	defer cancel()
	for _, p := range probes {
		c := l.probe(ctx, p)
		if c.Metadata != "" || c.Scopes != nil {
			return c
		}
	}
	return challenge{}
}

func (l *Login) probe(ctx context.Context, p probe) challenge {
	ctx, cancel := context.WithTimeout(ctx, challengeTimeout/2)
	defer cancel()
	u, err := serverURL(l.config.Server)
	if err != nil {
		return challenge{}
	}
	req, err := http.NewRequestWithContext(ctx, p.method, u.String(), strings.NewReader(p.body))
	if err != nil {
		return challenge{}
	}
	for name, value := range p.header {
		req.Header.Set(name, value)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := unredirected(l.config.Client).Do(req)
	if err != nil {
		return challenge{}
	}
	resp.Body.Close()
	return challengeOf(resp.Header)
}

// ErrNoLogin is the error of a logout without a login.
var ErrNoLogin = errors.New("nobody has logged in")

// LogOut revokes the tokens of a login if the authorization server offers that (RFC 7009), and deletes the login in
// any case. unrevoked is why the tokens may still be valid.
func (l *Login) LogOut(ctx context.Context) (kept string, unrevoked, err error) {
	kept = l.config.Store.where(l.key)
	unlock, err := l.config.Store.lock(ctx, l.key)
	if err != nil {
		return kept, nil, err
	}
	defer unlock()
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return kept, nil, err
	}
	if r.Token != nil {
		unrevoked = l.revoke(ctx, r)
	}
	err = l.config.Store.remove(l.key) // also the record of a login that failed or has ended
	if err == nil && r.Token == nil {
		err = ErrNoLogin
	}
	return kept, unrevoked, err
}

func (l *Login) revoke(ctx context.Context, r *record) error {
	s, err := l.authServer(ctx, r.Issuer)
	if err != nil {
		return err
	}
	if s.RevocationEndpoint == "" {
		return errors.New("the authorization server offers no revocation")
	}
	c, err := l.owner(r, s)
	if err != nil {
		return err
	}
	if r.Token.Refresh != "" { // first, because it revokes the other tokens
		err = c.revoke(ctx, l.config.Client, s.RevocationEndpoint, r.Token.Refresh, "refresh_token")
	}
	if again := c.revoke(ctx, l.config.Client, s.RevocationEndpoint, r.Token.Access, "access_token"); err == nil {
		err = again
	}
	if err != nil {
		return fmt.Errorf("revocation: %w", err)
	}
	return nil
}
