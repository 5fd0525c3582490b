package oauth

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	// A token that the server refuses is replaced at once, and the one that follows it not
	// before firstPause, then twice as long, up to lastPause: a server that refuses each
	// token costs the authorization server little.
	firstPause = time.Second
	lastPause  = time.Minute

	assertionJWT = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" // RFC 7523, 2.2
)

// ClientCredentials prove to a server who a program is: it gets tokens for itself (RFC 6749,
// 4.4) and shows them. They are the Credentials of packages remote and link. Fields must not
// change after the first use.
type ClientCredentials struct {
	Server   string // the URL of the server: http, https, ws or wss
	ClientID string // may be empty with an AssertionFile

	// One of these is the file with what we prove ourselves with to the authorization
	// server: a secret; a private key, which signs an assertion for each token
	// (private_key_jwt); an assertion that somebody else renews. Files are read again when
	// they change, and that of an assertion for each token.
	SecretFile, KeyFile, AssertionFile string

	// TokenURL is where tokens come from. Empty: it is found out when the server first
	// refuses a request. Then its authorization server must stay the same.
	TokenURL string

	Scopes []string     // to ask for; nil: those that the server names
	Client *http.Client // for the authorization server; nil: the default
	Log    *slog.Logger // nil discards

	once   sync.Once
	tokens *tokens
	secret secretfile.File

	// Owned by fetch, which does not run twice at once.
	place  *Place    // nil: to be found out
	issuer string    // who has given us a token; "" before the first
	form   tokenForm // of requests for tokens

	mu     sync.Mutex // guards the fields below
	asked  Challenge  // of the server, last; the zero value before the first
	known  bool       // it is known, or can be found out, where tokens come from
	scopes []string   // to ask for beyond those of the challenge
	pace   pace       // of refused tokens
}

// A tokenForm is what a token endpoint takes.
type tokenForm struct {
	method string // how it takes a secret
	bare   bool   // it does not take the parameter resource
	tried  bool   // both are known of a TokenURL
}

// A pace is that at which tokens that a server refuses are replaced.
type pace struct {
	pause time.Duration // before a refused token is replaced by another one
	next  time.Time     // none is replaced before
}

// replace reports whether a token that the server refuses is to be replaced: not if it
// replaced one a moment ago. The token is not used any more then.
func (p *pace) replace(old *access) bool {
	now := time.Now()
	switch {
	case old == nil || old.refused.Load(): // and many hear of it
	case !now.Before(old.expires), now.Sub(old.born) > firstPause+2*p.pause: // it was good
		p.pause = 0
	case now.Before(p.next):
		return false
	}
	if old != nil && !old.refused.Swap(true) {
		p.pause = min(max(2*p.pause, firstPause), lastPause)
		p.next = now.Add(p.pause)
	}
	return true
}

func (c *ClientCredentials) prepare() {
	c.once.Do(func() {
		if c.Log == nil {
			c.Log = slog.New(slog.DiscardHandler)
		}
		c.Client = cmp.Or(c.Client, http.DefaultClient)
		c.secret.Path = cmp.Or(c.SecretFile, c.KeyFile, c.AssertionFile)
		c.known, c.scopes = c.TokenURL != "", c.Scopes
		c.tokens = newTokens(c.Log, c.fetch)
	})
}

// Authorize sets the header Authorization. It waits for a token, as long as ctx, unless there
// is a good one. Before the server has said where tokens come from there is none.
func (c *ClientCredentials) Authorize(ctx context.Context, header http.Header) error {
	c.prepare()
	if c.tokens.current.Load() == nil && !c.isKnown() {
		return nil
	}
	t, err := c.tokens.get(ctx)
	if err != nil {
		return err
	}
	header.Set("Authorization", t.header)
	return nil
}

func (c *ClientCredentials) isKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// Refused fetches another token, unless somebody has done so since the request was sent. A
// 403 is worth it if it names scopes that we have not asked for.
func (c *ClientCredentials) Refused(ctx context.Context, resp *http.Response, sent http.Header) (again bool, err error) {
	c.prepare()
	old := c.tokens.current.Load()
	challenge := ChallengeOf(resp.Header)
	switch {
	case old.good(time.Now()) && old.header != sent.Get("Authorization"):
		return true, nil
	case resp.StatusCode == http.StatusForbidden:
		return c.stepUp(ctx, old, challenge)
	case !c.mayReplace(old, challenge):
		return false, nil
	}
	_, err = c.tokens.renew(ctx, old)
	return err == nil, err
}

// mayReplace reports whether a token that the server refuses is to be replaced, and notes
// what the server asks for.
func (c *ClientCredentials) mayReplace(old *access, challenge Challenge) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pace.replace(old) {
		return false
	}
	c.asked, c.known = challenge, true
	return true
}

// stepUp fetches a token with the scopes that a request lacks, beside those that we have
// (2025-11-25 basic/authorization, "Scope Challenge Handling"). The old one stays in use if
// there is none.
func (c *ClientCredentials) stepUp(ctx context.Context, old *access, challenge Challenge) (bool, error) {
	if challenge.Code != "insufficient_scope" || old == nil {
		return false, nil
	}
	all := Union(old.scopes, challenge.Scopes)
	if len(all) == len(Union(old.scopes)) {
		return false, nil
	}
	c.setScopes(all)
	_, err := c.tokens.renew(ctx, old)
	if refusedWith(err, "invalid_scope") {
		c.setScopes(old.scopes)
		return false, nil
	}
	return err == nil, err
}

func (c *ClientCredentials) setScopes(scopes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scopes = scopes
}

// fetch gets a token.
func (c *ClientCredentials) fetch(ctx context.Context) (*access, error) {
	c.mu.Lock()
	asked, scopes := c.asked, c.scopes
	c.mu.Unlock()
	if err := c.find(ctx, asked); err != nil {
		return nil, err
	}
	if c.Scopes == nil {
		scopes = Union(scopes, asked.Scopes)
	}
	if len(scopes) == 0 {
		scopes = c.place.Scopes
	}
	t, err := c.ask(ctx, scopes)
	if err != nil {
		c.secret.Forget()
		c.place = nil // it may have moved
		return nil, withoutToken(err)
	}
	c.issuer = c.place.Issuer.Issuer
	var lifetime time.Duration
	if !t.Expiry.IsZero() {
		lifetime = max(time.Until(t.Expiry), minLifetime)
	}
	return newAccess(t.AccessToken, scopes, lifetime), nil
}

// ask asks for a token. What a TokenURL takes nobody says, so it is tried out: whether the
// secret is in a header, and, where scopes say whom the token is for, whether it knows the
// parameter resource. Entra ID does not.
func (c *ClientCredentials) ask(ctx context.Context, scopes []string) (*oauth2.Token, error) {
	t, err := c.askOnce(ctx, scopes)
	if c.TokenURL == "" || c.form.tried {
		return t, err
	}
	if c.SecretFile != "" && refusedWith(err, "invalid_client", "unauthorized_client", "") {
		c.form.method = methodPost
		t, err = c.askOnce(ctx, scopes)
	}
	if c.Scopes != nil && refusedWith(err, "invalid_target", "invalid_request") {
		c.form.bare = true
		t, err = c.askOnce(ctx, scopes)
	}
	if c.form.tried = err == nil; !c.form.tried {
		c.form.method, c.form.bare = methodBasic, false
	}
	return t, err
}

// askOnce asks for a token, for the server alone where that can be said (RFC 8707).
func (c *ClientCredentials) askOnce(ctx context.Context, scopes []string) (*oauth2.Token, error) {
	params := url.Values{}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	if !c.form.bare {
		params.Set("resource", c.place.Resource)
	}
	who, err := c.prove(params)
	if err != nil {
		return nil, noToken("what proves who we are cannot be read (no token)", true, err)
	}
	return who.request(ctx, c.Client, c.place.Issuer.TokenEndpoint, params)
}

// find finds out where tokens come from, if that is not known.
func (c *ClientCredentials) find(ctx context.Context, asked Challenge) error {
	if c.place != nil {
		return nil
	}
	if c.TokenURL != "" {
		server, err := serverURL(c.Server)
		if err != nil {
			return noToken("its URL cannot be read (no token)", true, err)
		}
		c.place = &Place{Resource: server.String(), Issuer: Issuer{TokenEndpoint: c.TokenURL}}
		if c.form.method == "" {
			c.form.method = methodBasic
		}
		return nil
	}
	place, err := (&Discovery{Server: c.Server, Client: c.Client}).Find(ctx, asked)
	switch {
	case err != nil:
		return noToken("its authorization server cannot be found (no token)", false, err)
	case c.issuer != "" && place.Issuer.Issuer != c.issuer: // which would get what is for the other
		return noToken("it names another authorization server than before (no token)", true, fmt.Errorf("%q, not %q", place.Issuer.Issuer, c.issuer))
	}
	c.place, c.form.method = place, methodFor(&place.Issuer, true)
	return nil
}

// prove returns who we are to the authorization server, and adds to params what proves it
// besides a secret. Its error names the file, and none of its content.
func (c *ClientCredentials) prove(params url.Values) (*client, error) {
	if c.AssertionFile != "" {
		c.secret.Forget()
	}
	secret, err := c.secret.Read()
	if err == nil && c.KeyFile != "" {
		secret, err = c.sign(secret)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.secret.Path, err)
	case c.SecretFile != "":
		return &client{ID: c.ClientID, Secret: secret, Method: c.form.method}, nil
	}
	params.Set("client_assertion_type", assertionJWT)
	params.Set("client_assertion", secret)
	return &client{ID: c.ClientID}, nil
}

// sign returns an assertion for the authorization server, which is its audience by its
// issuer, or, where that is not known, by its token endpoint (RFC 7523, 3).
func (c *ClientCredentials) sign(key string) (string, error) {
	k, err := jwt.ParseKey([]byte(key))
	if err != nil {
		return "", err
	}
	return k.Assertion(c.ClientID, cmp.Or(c.place.Issuer.Issuer, c.TokenURL))
}

// Close ends what is under way and waits for it. Requests that need a token fail then.
func (c *ClientCredentials) Close() {
	c.prepare()
	c.tokens.close()
}
