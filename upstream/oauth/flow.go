package oauth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// A request is what a person is asked for.
type request struct {
	challenge Challenge
	used      string // the token that the server has refused; "" for none
	more      bool   // it lacks scopes
	explicit  bool   // the person wants to log in now, whatever there is
	place     *Place
	scopes    []string
}

var errNobody = errors.New("nobody has logged in in time")

// lookEvery is how often it is looked for the end of another process's login.
const lookEvery = 200 * time.Millisecond

// browse has a person log in with a browser, once for all processes: one has the port, and
// the others wait for what it stores. It returns the token that there is then.
func (l *Login) browse(ctx context.Context, q request) (*token, error) {
	if !slices.Contains(q.place.Issuer.ChallengeMethods, "S256") { // 2025-11-25 basic/authorization, "Authorization Code Protection"
		return nil, errors.New("the authorization server does not say that it supports PKCE with S256")
	}
	if q.place.Issuer.AuthorizationEndpoint == "" {
		return nil, errors.New("the authorization server has no authorization endpoint")
	}
	at, t, err := l.turn(ctx, q)
	if err != nil || t != nil {
		return t, err
	}
	defer at.Close()
	t, err = l.browseAt(ctx, at, q)
	if err != nil && !errors.Is(err, errPointless) && !errors.Is(context.Cause(ctx), context.Canceled) { // others need not try
		l.setBack(err)
	}
	at.finish(err)
	return t, err
}

// turn waits until this process may ask the person. The token is that of another process's
// login, for which there is no callback.
func (l *Login) turn(ctx context.Context, q request) (*callback, *token, error) {
	began := time.Now()
	for {
		at, err := hold(ctx, portsOf(l.key), lockID(l.key, l.config.Store.place(l.key)))
		if err != nil && !errors.Is(err, errHeld) {
			return nil, nil, err
		}
		t, settled := l.settled(q, began)
		if t == nil && settled == nil && at != nil {
			return at, nil, nil
		}
		if at != nil {
			at.Close()
		}
		if t != nil || settled != nil {
			return nil, t, settled
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// settled reports whether the login was made, or failed, meanwhile.
func (l *Login) settled(q request, began time.Time) (*token, error) {
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return nil, err
	}
	since := began
	if !q.explicit {
		since = began.Add(-pause)
	}
	switch {
	case r.of(q.place) && r.Token.good() && r.Token.Access != q.used && (!q.explicit || r.Token.Granted.After(began)):
		return r.Token, nil
	case r.Failed != nil && r.Failed.At.After(since):
		return nil, fmt.Errorf("the last login failed: %s", r.Failed.Why)
	}
	return nil, nil
}

// setBack tells other processes that the login has failed.
func (l *Login) setBack(why error) {
	err := l.config.Store.update(l.ctx, l.key, func(r *record) error {
		r.Failed = &setback{time.Now(), why.Error()}
		return nil
	})
	if err != nil {
		l.config.Log.Warn("a failed login was not noted", "err", err)
	}
}

// browseAt is the grant by authorization code (OAuth 2.1, 4.1), with PKCE.
func (l *Login) browseAt(ctx context.Context, at *callback, q request) (*token, error) {
	c, err := l.client(ctx, q, at.URL)
	if err != nil {
		return nil, err
	}
	config := oauth2.Config{
		ClientID: c.ID, RedirectURL: at.URL, Scopes: q.scopes,
		Endpoint: oauth2.Endpoint{AuthURL: q.place.Issuer.AuthorizationEndpoint},
	}
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	page := config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", q.place.Resource))
	at.expect(state)
	l.show(Prompt{URL: page})
	var a answer
	select {
	case a = <-at.answers:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := a.check(&q.place.Issuer); err != nil {
		return nil, err
	}
	t, err := c.request(ctx, l.config.Client, q.place.Issuer.TokenEndpoint, url.Values{
		"grant_type": {"authorization_code"}, "code": {a.code}, "redirect_uri": {at.URL},
		"code_verifier": {verifier}, "resource": {q.place.Resource},
	})
	if err != nil {
		return nil, err
	}
	return l.granted(ctx, q, c, t)
}

// check reports why an answer is not that of the issuer that was asked (RFC 9207, 2.4). A
// name that was not promised has to be right all the same.
func (a *answer) check(i *Issuer) error {
	switch {
	case a.issuer != "" && a.issuer != i.Issuer, a.issuer == "" && i.SaysIssuer:
		return errors.New("the answer is not that of the authorization server which was asked (RFC 9207)")
	case a.problem != "":
		return fmt.Errorf("the authorization server answered %s", a.problem)
	case a.code == "":
		return errors.New("the authorization server answered without a code")
	}
	return nil
}

// show tells the person what to do.
func (l *Login) show(p Prompt) {
	p.Host, p.Opened = l.host(), !l.config.NoBrowser && openBrowser(p.URL)
	l.config.Show(p)
}

func (l *Login) host() string {
	if u, err := serverURL(l.config.Server); err == nil {
		return u.Host
	}
	return ""
}

// client returns who we are to the issuer of a place: as configured, as registered before,
// or newly registered, in the order of 2025-11-25 basic/authorization, "Client
// Registration Approaches".
func (l *Login) client(ctx context.Context, q request, back string) (*client, error) {
	i, id := &q.place.Issuer, l.config.ClientID
	document := strings.HasPrefix(id, "https://")
	if id != "" && (!document || i.ClientMetadataDocument || i.RegistrationEndpoint == "") {
		return l.configured(i)
	}
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return nil, err
	}
	if r.of(q.place) && r.Client.good(back) && r.Failed == nil { // the server may know it no more: its page says so to the person alone
		return r.Client, nil
	}
	c, err := register(ctx, l.config.Client, i, returnsOf(portsOf(l.key)), q.scopes)
	if l.config.Implicit && notOAuth(err, q.challenge) {
		return nil, errNoIssuer
	}
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	return c, l.config.Store.update(ctx, l.key, func(r *record) error {
		r.adopt(q.place)
		r.Client = c
		return nil
	})
}

// notOAuth reports whether a registration was refused by what knows nothing of OAuth: there
// is no such place, or the server, which has not spoken of it, refuses all alike.
func notOAuth(err error, c Challenge) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && (r.status == http.StatusNotFound || c.Metadata == "" && r.status/100 == 4 && r.code == "")
}

// configured returns the client that the configuration says.
func (l *Login) configured(i *Issuer) (*client, error) {
	c := &client{ID: l.config.ClientID, Method: methodNone}
	if file := l.config.ClientSecretFile; file != "" {
		secret, err := (&secretfile.File{Path: file}).Read()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		c.Secret, c.Method = secret, methodFor(i, true)
	}
	return c, nil
}

// granted keeps what a login has given.
func (l *Login) granted(ctx context.Context, q request, c *client, t *oauth2.Token) (*token, error) {
	n := newToken(t, q.scopes, nil)
	return n, l.config.Store.update(ctx, l.key, func(r *record) error {
		r.adopt(q.place)
		r.Client, r.Token, r.Failed = nil, n, nil
		if !c.Made.IsZero() { // what is configured stays there
			r.Client = c
		}
		return nil
	})
}
