package proxy

import (
	"context"
	"fmt"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth"
)

// A LoginPrompt is what a person has to do to log in to a server.
type LoginPrompt = oauth.Prompt

// A LoginError is about the name of an upstream or link, or what is configured there.
type LoginError struct{ text string }

func (e *LoginError) Error() string { return e.text }

// LoginOptions say how a person logs in.
type LoginOptions struct {
	Device    bool     // with a browser elsewhere, by a code
	NoBrowser bool     // no browser is opened: the person does that
	Scopes    []string // to ask for instead of those that are configured; nil for these
	ClientID  string   // where none is configured

	Show func(LoginPrompt) // called with what to do; not nil for Login
}

// Login has a person log in to an upstream or link of cfg, and returns where its tokens are
// kept. Running proxies find them there. An upstream that cannot have a login is a
// [*LoginError].
func Login(ctx context.Context, cfg *config.Config, name string, o LoginOptions) (kept string, err error) {
	l, err := loginOf(cfg, name, o)
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.LogIn(ctx, o.Device)
}

// Logout revokes the tokens of a login where that is offered, and deletes them. It returns
// where they were kept. unrevoked is why they may be good still. Without a login the error
// is [ErrNoLogin].
func Logout(ctx context.Context, cfg *config.Config, name string, o LoginOptions) (kept string, unrevoked, err error) {
	l, err := loginOf(cfg, name, o)
	if err != nil {
		return "", nil, err
	}
	defer l.Close()
	return l.LogOut(ctx)
}

// ErrNoLogin is the error of a logout where nobody has logged in.
var ErrNoLogin = oauth.ErrNoLogin

// loginOf returns the login at what has that name.
func loginOf(cfg *config.Config, name string, o LoginOptions) (*oauth.Login, error) {
	url, auth, files, err := loginAt(cfg, name)
	if err != nil {
		return nil, err
	}
	client, err := issuerClient(files)
	if err != nil {
		return nil, err
	}
	c := configOf(auth.OAuth)
	c.Server, c.Store, c.Client, c.Show, c.NoBrowser = url, storeOf(cfg), client, o.Show, o.NoBrowser
	if o.Scopes != nil {
		c.Scopes = o.Scopes
	}
	if c.ClientID == "" {
		c.ClientID = o.ClientID
	}
	return oauth.NewLogin(c), nil
}

// loginAt finds what has a name.
func loginAt(cfg *config.Config, name string) (url string, auth config.UpstreamAuth, files config.TLS, err error) {
	var names []string
	for _, u := range cfg.Upstreams {
		names = append(names, u.Name)
		if u.Name == name {
			url, auth, files = u.URL, u.Auth, u.TLS
		}
	}
	for _, l := range cfg.Links {
		names = append(names, l.Name)
		if l.Name == name {
			auth, files = l.Auth, l.TLS
			if auth.OAuth != nil {
				url = l.Dial
			}
		}
	}
	switch {
	case auth.ClientCredentials != nil:
		err = &LoginError{fmt.Sprintf("%s gets its tokens by client credentials: nobody logs in there", name)}
	case url == "" && slices.Contains(names, name):
		err = &LoginError{fmt.Sprintf("%s has no login: it is not a server at a URL", name)}
	case url == "":
		err = &LoginError{fmt.Sprintf("there is no upstream %q%s", name, config.DidYouMean(name, names))}
	}
	return url, auth, files, err
}

// storeOf returns where logins are kept.
func storeOf(cfg *config.Config) *oauth.Store {
	return &oauth.Store{Dir: oauth.DefaultDir(), Keyring: cfg.TokenStore == "keyring"}
}

// configOf is what is configured of a login; nil for nothing.
func configOf(o *config.OAuth) oauth.LoginConfig {
	if o == nil {
		return oauth.LoginConfig{Implicit: true}
	}
	return oauth.LoginConfig{ClientID: o.ClientID, ClientSecretFile: o.ClientSecretFile, Scopes: o.Scopes}
}
