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
	// A refused token is replaced at once, its successor not before firstPause, and each next one after twice the
	// pause, up to lastPause: a server that refuses every token must not burden the authorization server.
	firstPause = time.Second
	lastPause  = time.Minute

	assertionJWT = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" // RFC 7523, 2.2
)

// ClientCredentials authenticate a program to a server: it gets tokens for itself (RFC 6749, 4.4). They implement the
// Credentials of packages remote and link. Fields must not change after the first use.
type ClientCredentials struct {
	Server   string // the URL of the server: http, https, ws or wss
	ClientID string // may be empty with an AssertionFile

	// One of these files authenticates us to the authorization server: a secret; a private key, which signs an
	// assertion for each token (private_key_jwt); or an assertion that another program renews. Files are read again
	// when they change, and the assertion is read for each token.
	SecretFile, KeyFile, AssertionFile string

	// TokenURL is the token endpoint. If it is empty it is discovered when the server first refuses a request; after
	// that the authorization server must stay the same.
	TokenURL string

	Scopes []string     // to ask for; nil: those that the server names
	Client *http.Client // for the authorization server; nil: the default
	Log    *slog.Logger // nil discards

	once   sync.Once
	tokens *tokens
	secret secretfile.File

	// Owned by fetch, which does not run twice at once.
	place      *place // nil: not discovered yet
	issuer     string // of the last token; "" before the first
	method     string // how the token endpoint takes a secret
	noResource bool   // the token endpoint does not take the parameter resource
	tried      bool   // both are known of a TokenURL

	mu     sync.Mutex    // guards the fields below
	asked  challenge     // the server's last one
	known  bool          // the token endpoint is known, or can be discovered
	scopes []string      // to ask for beyond those of the challenge
	pause  time.Duration // before a refused token is replaced by another one
	next   time.Time     // no refused token is replaced before
}

func (c *ClientCredentials) prepare() {
	c.once.Do(func() {
		c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
		c.Client = cmp.Or(c.Client, http.DefaultClient)
		c.secret.Path = cmp.Or(c.SecretFile, c.KeyFile, c.AssertionFile)
		c.known, c.scopes = c.TokenURL != "", c.Scopes
		c.tokens = newTokens(c.Log, c.fetch)
	})
}

// Authorize sets the header Authorization. If there is no valid token it waits for one until ctx ends. It sets
// nothing before the server has said where tokens come from.
func (c *ClientCredentials) Authorize(ctx context.Context, header http.Header) error {
	c.prepare()
	if c.tokens.current.Load() == nil && !c.isKnown() {
		return nil
	}
	t, err := c.tokens.get(ctx)
	if err != nil {
		return err
	}
	header.Set("Authorization", "Bearer "+t.Access)
	return nil
}

func (c *ClientCredentials) isKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// Refused fetches another token, unless another request has done so meanwhile. For a 403 it does so only if
// the server names scopes that we have not asked for.
func (c *ClientCredentials) Refused(ctx context.Context, resp *http.Response, sent http.Header) (bool, error) {
	c.prepare()
	old, asked := c.tokens.current.Load(), challengeOf(resp.Header)
	switch {
	case old.good() && "Bearer "+old.Access != sent.Get("Authorization"):
		return true, nil
	case resp.StatusCode == http.StatusForbidden:
		return c.stepUp(ctx, old, asked)
	case !c.discard(old, asked):
		return false, nil
	}
	_, err := c.tokens.renew(ctx, old)
	return err == nil, err
}

// discard reports whether to replace a token that the server refuses, and stops its use: it does not if the token
// itself replaced another one a moment ago. It records the challenge.
func (c *ClientCredentials) discard(old *token, asked challenge) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case old == nil || c.tokens.current.Load() != old: // a concurrent request discarded it
	case !old.good(), now.Sub(old.Granted) > firstPause+2*c.pause: // it was valid for a while
		c.pause = 0
	case now.Before(c.next):
		return false
	}
	if old != nil && c.tokens.current.CompareAndSwap(old, nil) {
		c.pause = min(max(2*c.pause, firstPause), lastPause)
		c.next = now.Add(c.pause)
	}
	c.asked, c.known = asked, true
	return true
}

// stepUp fetches a token with the scopes that a request lacks, beside those that we have (2025-11-25
// basic/authorization, "Scope Challenge Handling"). If it fails the old token stays in use.
func (c *ClientCredentials) stepUp(ctx context.Context, old *token, asked challenge) (bool, error) {
	if asked.Code != "insufficient_scope" || old == nil {
		return false, nil
	}
	all := union(old.Asked, asked.Scopes)
	if len(all) == len(union(old.Asked)) {
		return false, nil
	}
	c.setScopes(all)
	_, err := c.tokens.renew(ctx, old)
	if refusedWith(err, "invalid_scope") {
		c.setScopes(old.Asked)
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
func (c *ClientCredentials) fetch(ctx context.Context) (*token, error) {
	c.mu.Lock()
	asked, scopes := c.asked, c.scopes
	c.mu.Unlock()
	if err := c.find(ctx, asked); err != nil {
		return nil, err
	}
	if c.Scopes == nil {
		scopes = union(scopes, asked.Scopes)
	}
	if len(scopes) == 0 {
		scopes = c.place.Scopes
	}
	t, err := c.ask(ctx, scopes)
	if err != nil {
		c.secret.Forget()
		c.place = nil // the authorization server may have moved
		return nil, requestFailed(err)
	}
	c.issuer = c.place.Server.Issuer
	var lifetime time.Duration
	if !t.Expiry.IsZero() {
		lifetime = max(time.Until(t.Expiry), minLifetime)
	}
	return newProgramToken(t.AccessToken, scopes, lifetime), nil
}

// ask asks for a token. A TokenURL has no metadata, so ask tries what the endpoint takes: the secret in a header or in
// the body, and, where scopes name the audience, with or without the parameter resource, which Entra ID refuses.
func (c *ClientCredentials) ask(ctx context.Context, scopes []string) (*oauth2.Token, error) {
	t, err := c.askOnce(ctx, scopes)
	if c.TokenURL == "" || c.tried {
		return t, err
	}
	if c.SecretFile != "" && refusedWith(err, "invalid_client", "unauthorized_client", "") {
		c.method = methodPost
		t, err = c.askOnce(ctx, scopes)
	}
	if c.Scopes != nil && refusedWith(err, "invalid_target", "invalid_request") {
		c.noResource = true
		t, err = c.askOnce(ctx, scopes)
	}
	if c.tried = err == nil; !c.tried {
		c.method, c.noResource = methodBasic, false
	}
	return t, err
}

// askOnce asks for a token that is for the server alone, where the endpoint can be told so (RFC 8707).
func (c *ClientCredentials) askOnce(ctx context.Context, scopes []string) (*oauth2.Token, error) {
	params := url.Values{}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	if !c.noResource {
		params.Set("resource", c.place.Resource)
	}
	who, err := c.prove(params)
	if err != nil {
		return nil, noToken("our credentials cannot be read (no token)", true, err)
	}
	return who.request(ctx, c.Client, c.place.Server.TokenEndpoint, params)
}

// find finds out where tokens come from, if that is unknown.
func (c *ClientCredentials) find(ctx context.Context, asked challenge) error {
	if c.place != nil {
		return nil
	}
	if c.TokenURL != "" {
		server, err := serverURL(c.Server)
		if err != nil {
			return noToken("its URL is invalid (no token)", true, err)
		}
		c.place = &place{Resource: server.String(), Server: authServer{TokenEndpoint: c.TokenURL}}
		c.method = cmp.Or(c.method, methodBasic)
		return nil
	}
	found, err := discover(ctx, c.Client, c.Server, asked)
	switch {
	case err != nil:
		return noToken("its authorization server cannot be found (no token)", false, err)
	case c.issuer != "" && found.Server.Issuer != c.issuer: // it would get the credentials for the other one
		return noToken("it names another authorization server than before (no token)", true,
			fmt.Errorf("%q, not %q", found.Server.Issuer, c.issuer))
	}
	c.place, c.method = found, methodFor(&found.Server, true)
	return nil
}

// prove returns our identity at the authorization server, and adds an assertion to params, if there is one. Its error
// names the file, and nothing of its content.
func (c *ClientCredentials) prove(params url.Values) (*client, error) {
	if c.AssertionFile != "" {
		c.secret.Forget()
	}
	secret, err := c.secret.Read()
	if err == nil && c.KeyFile != "" { // the audience is the issuer, or, if that is unknown, the endpoint (RFC 7523, 3)
		secret, err = jwt.Assertion([]byte(secret), c.ClientID, cmp.Or(c.place.Server.Issuer, c.TokenURL))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.secret.Path, err)
	case c.SecretFile != "":
		return &client{ID: c.ClientID, Secret: secret, Method: c.method}, nil
	}
	params.Set("client_assertion_type", assertionJWT)
	params.Set("client_assertion", secret)
	return &client{ID: c.ClientID}, nil
}

// Close ends a fetch and waits for it. Requests that need a token then fail.
func (c *ClientCredentials) Close() {
	c.prepare()
	c.tokens.close()
}
