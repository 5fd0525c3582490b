package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// Credentials prove who we are to a remote server, or to a host that is dialled. Close ends
// what they do by themselves, and waits for it; a good token can be used all the same.
type credentials interface {
	remote.Credentials
	Close()
}

// A prover makes the credentials for servers, and for hosts that are dialled.
type prover struct {
	log      *slog.Logger
	store    *oauth.Store
	ask      func(LoginPrompt)     // as in Options
	returned func(upstream string) // called when a person has logged in later than a request waited; nil: nobody wants to know
}

func newProver(cfg *config.Config, o Options) *prover {
	return &prover{log: o.Log, store: storeOf(cfg), ask: o.AskLogin}
}

// upstream returns the credentials for a remote server. Where nothing is configured the
// server may ask for a login all the same.
func (p *prover) upstream(u config.Upstream) (credentials, error) {
	if u.Auth == (config.UpstreamAuth{}) && (p.store.Dir == "" || authorized(u)) {
		return nil, nil
	}
	command := u.Name
	if u.Key == "URL" {
		command = u.Key
	}
	return p.credentials(u.Name, command, u.URL, u.Auth, u.TLS, u.StartTimeout)
}

// link returns those for a link that is dialled, nil if none are configured.
func (p *prover) link(l config.Link) (credentials, error) {
	if l.Auth == (config.UpstreamAuth{}) {
		return nil, nil
	}
	return p.credentials(l.Name, l.Name, l.Dial, l.Auth, l.TLS, 0)
}

// credentials returns the credentials for what is at url. name is of the upstream or link,
// command what the command login takes for it, and files say whom to trust there. start
// bounds a start, within which requests give up to wait for a person.
func (p *prover) credentials(name, command, url string, auth config.UpstreamAuth, files config.TLS, start time.Duration) (credentials, error) {
	client, err := issuerClient(files)
	if err != nil {
		return nil, err
	}
	if m := auth.ClientCredentials; m != nil {
		return &oauth.ClientCredentials{
			Server: url, ClientID: m.ClientID, SecretFile: m.ClientSecretFile, KeyFile: m.PrivateKeyFile, AssertionFile: m.AssertionFile,
			TokenURL: m.TokenURL, Scopes: m.Scopes, Client: client, Log: p.log.With("upstream", name),
		}, nil
	}
	c := configOf(auth.OAuth)
	c.Server, c.Store, c.Client, c.Command, c.Show = url, p.store, client, "mcp-proxy login "+command, p.ask
	c.Wait, c.Log = start*3/4, p.log.With("upstream", name)
	c.Done = func() {
		if p.returned != nil {
			p.returned(name)
		}
	}
	return oauth.NewLogin(c), nil
}

// authorized reports whether headers of the configuration say who we are.
func authorized(u config.Upstream) bool {
	for name := range u.Headers {
		if strings.EqualFold(name, "Authorization") {
			return true
		}
	}
	for name := range u.HeadersFrom {
		if strings.EqualFold(name, "Authorization") {
			return true
		}
	}
	return false
}

// issuerClient returns what asks authorization servers. They are seldom asked, so that no
// connection is kept. Whom we trust at the server we trust there too, but they are more often
// public; they do not see our certificate.
func issuerClient(files config.TLS) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	t.MaxResponseHeaderBytes = 256 << 10
	if files.CA != "" {
		text, err := readPEM(files.CA)
		if err != nil {
			return nil, err
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(text) // which was checked for the server itself
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	}
	return &http.Client{Transport: t}, nil
}

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
		err = &LoginError{fmt.Sprintf("%s uses client credentials and needs no login", name)}
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
