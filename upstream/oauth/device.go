package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"golang.org/x/oauth2"
)

// device has a person log in with a browser anywhere, by a code (RFC 8628).
func (l *Login) device(ctx context.Context, q request) (*token, error) {
	i := &q.place.Issuer
	if i.DeviceEndpoint == "" {
		return nil, errors.New("the authorization server offers no login by device code")
	}
	c, err := l.client(ctx, q, "")
	if err != nil {
		return nil, err
	}
	config := oauth2.Config{
		ClientID: c.ID, ClientSecret: c.Secret, Scopes: q.scopes,
		Endpoint: oauth2.Endpoint{DeviceAuthURL: i.DeviceEndpoint, TokenURL: i.TokenEndpoint, AuthStyle: c.style()},
	}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, unredirected(l.config.Client))
	resource := oauth2.SetAuthURLParam("resource", q.place.Resource)
	d, err := config.DeviceAuth(ctx, resource)
	if err != nil {
		return nil, plain(err)
	}
	page := d.VerificationURIComplete
	if page == "" {
		page = d.VerificationURI
	}
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
	return l.granted(ctx, q, c, t)
}

// LogIn has a person log in now: with a browser, or by device code if that is wanted, or
// if there is no browser and the authorization server offers it. It begins with the
// server's metadata: a server may let anybody in for a start. It returns where the login is
// kept.
func (l *Login) LogIn(ctx context.Context, byDevice bool) (kept string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, errNobody)
	defer cancel()
	q := request{explicit: true, challenge: l.challenge(ctx)}
	if err := l.prepare(ctx, &q); err != nil {
		return "", err
	}
	if byDevice || q.place.Issuer.DeviceEndpoint != "" && !l.config.NoBrowser && len(browsers()) == 0 {
		_, err = l.device(ctx, q)
	} else {
		_, err = l.browse(ctx, q)
	}
	return l.config.Store.place(l.key), err
}

// challenge returns what the server asks of who comes without a token.
func (l *Login) challenge(ctx context.Context) Challenge {
	u, err := serverURL(l.config.Server)
	if err != nil {
		return Challenge{}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return Challenge{}
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := unredirected(l.config.Client).Do(req)
	if err != nil {
		return Challenge{}
	}
	resp.Body.Close()
	return ChallengeOf(resp.Header)
}

// ErrNoLogin is the error of a logout where nobody has logged in.
var ErrNoLogin = errors.New("nobody has logged in")

// LogOut revokes the tokens of a login where the authorization server offers that (RFC
// 7009), and forgets it in any case. unrevoked is why the tokens may still be good.
func (l *Login) LogOut(ctx context.Context) (kept string, unrevoked, err error) {
	kept = l.config.Store.place(l.key)
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
	err = l.config.Store.remove(l.key) // also what a login has left that failed, or is over
	if err == nil && r.Token == nil {
		err = ErrNoLogin
	}
	return kept, unrevoked, err
}

func (l *Login) revoke(ctx context.Context, r *record) error {
	i, err := l.issuer(ctx, r.Issuer)
	if err != nil {
		return err
	}
	if i.RevocationEndpoint == "" {
		return errors.New("the authorization server offers no revocation")
	}
	c, err := l.owner(r, i)
	if err != nil {
		return err
	}
	if r.Token.Refresh != "" { // first: with it the others go
		err = c.revoke(ctx, l.config.Client, i.RevocationEndpoint, r.Token.Refresh, "refresh_token")
	}
	if again := c.revoke(ctx, l.config.Client, i.RevocationEndpoint, r.Token.Access, "access_token"); err == nil {
		err = again
	}
	if err != nil {
		return fmt.Errorf("revocation: %w", err)
	}
	return nil
}
