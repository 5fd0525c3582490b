package oauth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// lookEvery is the period at which a process looks whether another one's login has ended.
const lookEvery = 200 * time.Millisecond

// browse has a person log in with a browser, once for all processes: one has the lock, and the others wait for the
// token that it stores.
func (l *Login) browse(ctx context.Context, a attempt) (*token, error) {
	s := &a.place.Server
	if !slices.Contains(s.ChallengeMethods, "S256") { // 2025-11-25 basic/authorization, "Authorization Code Protection"
		return nil, errors.New("the authorization server does not announce PKCE with S256")
	}
	if s.AuthorizationEndpoint == "" {
		return nil, errors.New("the authorization server has no authorization endpoint")
	}
	unlock, t, err := l.turn(ctx, a)
	if err != nil || t != nil {
		return t, err
	}
	defer unlock()
	at, err := newCallback(portsOf(l.key))
	if err != nil {
		return nil, err
	}
	defer at.Close()
	t, err = l.browseAt(ctx, at, a)
	if err != nil && !errors.Is(err, errPointless) && !errors.Is(context.Cause(ctx), context.Canceled) {
		l.setBack(err)
	}
	at.finish(err)
	return t, err
}

// turn waits until this process may prompt the person. It returns a token instead of a lock if another process's
// login succeeds meanwhile.
func (l *Login) turn(ctx context.Context, a attempt) (unlock func(), t *token, err error) {
	began := time.Now()
	for {
		if unlock, err = l.config.Store.lockLogin(l.key); err != nil {
			return nil, nil, err
		}
		t, err = l.settled(a, began)
		settled := t != nil || err != nil
		switch {
		case unlock != nil && settled:
			unlock()
			return nil, t, err
		case unlock != nil || settled:
			return unlock, t, err
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// settled returns the result of a login that another process has made meanwhile, if any.
func (l *Login) settled(a attempt, began time.Time) (*token, error) {
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return nil, err
	}
	since := began
	if !a.explicit {
		since = began.Add(-pause)
	}
	switch {
	case r.of(a.place) && r.Token.good() && r.Token.Access != a.used && (!a.explicit || r.Token.Granted.After(began)):
		return r.Token, nil
	case r.Failed != nil && r.Failed.At.After(since):
		return nil, fmt.Errorf("the last login failed: %s", r.Failed.Why)
	}
	return nil, nil
}

// setBack tells other processes that the login failed, so that they do not try.
func (l *Login) setBack(why error) {
	err := l.config.Store.update(l.ctx, l.key, func(r *record) error {
		r.Failed = &setback{time.Now(), why.Error()}
		if refusedWith(why, "invalid_scope") { // one may be gone: do not ask again
			r.Scopes = nil
		}
		return nil
	})
	if err != nil {
		l.config.Log.Warn("cannot store that a login failed", "err", err)
	}
}

// browseAt is the grant by authorization code (OAuth 2.1, 4.1), with PKCE.
func (l *Login) browseAt(ctx context.Context, at *callback, a attempt) (*token, error) {
	s := &a.place.Server
	c, err := l.client(ctx, a, at.URL)
	if err != nil {
		return nil, err
	}
	config := oauth2.Config{
		ClientID: c.ID, RedirectURL: at.URL, Scopes: a.scopes, Endpoint: oauth2.Endpoint{AuthURL: s.AuthorizationEndpoint},
	}
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	resource := oauth2.SetAuthURLParam("resource", a.place.Resource)
	page := config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), resource)
	at.expect(state)
	l.config.Show(Prompt{Host: l.host(), URL: page, Opened: !l.config.NoBrowser && openBrowser(page)})
	var answer url.Values
	select {
	case answer = <-at.answers:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := checkAnswer(answer, s); err != nil {
		return nil, err
	}
	t, err := c.request(ctx, l.config.Client, s.TokenEndpoint, url.Values{
		"grant_type": {"authorization_code"}, "code": {answer.Get("code")}, "redirect_uri": {at.URL},
		"code_verifier": {verifier}, "resource": {a.place.Resource},
	})
	if err != nil {
		return nil, err
	}
	return l.granted(ctx, a, c, t)
}

// checkAnswer checks that the browser's answer (RFC 6749, 4.1.2) is from the issuer that we asked (RFC 9207, 2.4) and
// has a code. An issuer that did not announce to send its name must still send the right one.
func checkAnswer(answer url.Values, s *authServer) error {
	iss := answer.Get("iss")
	switch {
	case iss != "" && iss != s.Issuer, iss == "" && s.SendsIssuer:
		return errors.New("the answer comes from another authorization server (RFC 9207)")
	case answer.Has("error"):
		if code := errorCode(answer.Get("error")); code != "" {
			return &refusal{code: code}
		}
		return errors.New("the authorization server answered an error")
	case answer.Get("code") == "":
		return errors.New("the authorization server answered without a code")
	}
	return nil
}

func (l *Login) host() string {
	if u, err := serverURL(l.config.Server); err == nil {
		return u.Host
	}
	return ""
}

// client returns our identity at an authorization server: chosen by a person, registered before, or newly registered,
// in the order of 2025-11-25 basic/authorization, "Client Registration Approaches".
func (l *Login) client(ctx context.Context, a attempt, back string) (*client, error) {
	s := &a.place.Server
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return nil, err
	}
	c, err := l.chosen(s, r)
	if err != nil {
		return nil, err
	}
	document := c != nil && c.Secret == "" && strings.HasPrefix(c.ID, "https://")
	switch {
	case c == nil, document && !s.ClientMetadataDocument && s.RegistrationEndpoint != "":
	case r.Issuer != "" && r.Issuer != s.Issuer && !document:
		// 2026-07-28 basic/authorization, "Authorization Server Binding": only the person knows whether the client is known
		// there, and the secret may be for nobody else.
		return nil, fmt.Errorf("the server names another authorization server than before, %q: if that is right, "+
			"log out first (mcp-proxy logout)", s.Issuer)
	default:
		return c, nil
	}
	if r.of(a.place) && r.Client.good(back) && r.Failed == nil { // after a failure it may be unknown there: register again
		return r.Client, nil
	}
	c, err = register(ctx, l.config.Client, s, redirectURIs(portsOf(l.key)), a.scopes)
	if l.config.Implicit && notOAuth(err, a.challenge) {
		return nil, errNoIssuer
	}
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	return c, l.config.Store.update(ctx, l.key, func(r *record) error {
		r.adopt(a.place)
		r.Client = c
		return nil
	})
}

// notOAuth reports whether a registration failed because the server does not know OAuth: it has no such page, or it
// never mentioned OAuth and refuses every request.
func notOAuth(err error, c challenge) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && (r.status == http.StatusNotFound || c.Metadata == "" && r.status/100 == 4 && r.code == "")
}

// chosen returns the client that a person has chosen: in the configuration, for this login, or for the one in the
// record; nil for none.
func (l *Login) chosen(s *authServer, r *record) (*client, error) {
	switch {
	case l.config.ClientID != "":
		return l.configured(s)
	case l.config.GivenID != "":
		return &client{ID: l.config.GivenID, Method: methodNone, Given: true}, nil
	case r.Client != nil && r.Client.Given:
		return r.Client, nil
	}
	return nil, nil
}

// configured returns the configured client.
func (l *Login) configured(s *authServer) (*client, error) {
	c := &client{ID: l.config.ClientID, Method: methodNone}
	if file := l.config.ClientSecretFile; file != "" {
		secret, err := (&secretfile.File{Path: file}).Read()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		c.Secret, c.Method = secret, methodFor(s, true)
	}
	return c, nil
}

// granted stores the token of a login.
func (l *Login) granted(ctx context.Context, a attempt, c *client, t *oauth2.Token) (*token, error) {
	n := newToken(t, a.scopes, nil)
	return n, l.config.Store.update(ctx, l.key, func(r *record) error {
		r.adopt(a.place)
		r.Client, r.Token, r.Scopes, r.Failed = nil, n, nil, nil
		if !c.Made.IsZero() || c.Given { // a configured client stays in the configuration
			r.Client = c
		}
		return nil
	})
}

// openBrowser opens a page with $BROWSER, or with the system's command, and reports whether that worked. It does not
// wait for the browser, which belongs to the user.
func openBrowser(page string) bool {
	for _, words := range browsers() {
		placed := false
		for i, word := range words {
			if strings.Contains(word, "%s") {
				words[i], placed = strings.ReplaceAll(word, "%s", page), true
			}
		}
		if !placed {
			words = append(words, page)
		}
		cmd := exec.Command(words[0], words[1:]...) // without our stdout, which may carry the protocol
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }()
			return true
		}
	}
	return false
}

// browsers returns the commands to try.
func browsers() (all [][]string) {
	list := os.Getenv("BROWSER")
	if runtime.GOOS == "windows" && list != "" {
		return [][]string{{list}}
	}
	for _, one := range strings.Split(list, ":") {
		if words := strings.Fields(one); len(words) > 0 {
			all = append(all, words)
		}
	}
	switch {
	case len(all) > 0:
		return all
	case runtime.GOOS == "windows":
		return [][]string{{"rundll32", "url.dll,FileProtocolHandler"}}
	case runtime.GOOS == "darwin":
		return [][]string{{"open"}}
	case os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "":
		return [][]string{{"xdg-open"}}
	}
	return nil
}
