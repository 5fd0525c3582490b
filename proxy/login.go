package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// credentials authenticate this proxy to a remote server or to a dialled host. Close ends their
// background work and waits for it; a valid token stays usable.
type credentials interface {
	remote.Credentials
	Close()
}

// A prover makes the credentials for servers, and for hosts that are dialled.
type prover struct {
	log      *slog.Logger
	store    *oauth.Store
	ask      func(LoginPrompt)     // as in Options
	returned func(upstream string) // called when a login comes after a request has stopped waiting for it; may be nil
}

func newProver(cfg *config.Config, o Options) *prover {
	return &prover{log: o.Log, store: storeOf(cfg), ask: o.AskLogin}
}

// upstream returns the credentials for a remote server, nil for none. A server may ask for a
// login even if nothing is configured.
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

// link returns the credentials for a dialled link, nil if none are configured.
func (p *prover) link(l config.Link) (credentials, error) {
	if l.Auth == (config.UpstreamAuth{}) {
		return nil, nil
	}
	return p.credentials(l.Name, l.Name, l.Dial, l.Auth, l.TLS, 0)
}

// credentials returns the credentials for url. The name is that of the upstream or link, command
// is its argument to the login command, and files are the TLS files for url. Requests stop waiting
// for a person before the time start is over.
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

// authorized reports whether the configured headers, or those of clients, have an Authorization.
func authorized(u config.Upstream) bool {
	names := slices.Concat(slices.Collect(maps.Keys(u.Headers)), slices.Collect(maps.Keys(u.HeadersFrom)), targetsOf(u))
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, "Authorization") })
}

// issuerClient returns the client for authorization servers. It keeps no connections, because
// requests are rare, and speaks HTTP/1. It trusts the authorities of files besides the system's, because most
// authorization servers are public, and it does not show our certificate.
func issuerClient(files config.TLS) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)                                    // on HTTP/2 net/http repeats a request whose stream is reset, without a bound
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12} // that of the default asks for HTTP/2
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
		pool.AppendCertsFromPEM(text) // clientTLS has checked it
		t.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: t}, nil
}

// A LoginError says why an upstream or link cannot have a login.
type LoginError struct{ text string }

func (e *LoginError) Error() string { return e.text }

// LoginOptions say how a person logs in.
type LoginOptions struct {
	Device    bool     // by a code, in a browser on another device
	NoBrowser bool     // do not open a browser
	Scopes    []string // instead of the configured ones and those granted before; nil for both
	ClientID  string   // used if none is configured, and kept with the login

	Show func(LoginPrompt) // shows the prompt; not nil for Login
}

// Login lets a person log in to an upstream or link of cfg, and returns the place of its tokens,
// where running proxies find them. The error is a [*LoginError] if it cannot have a login.
func Login(ctx context.Context, cfg *config.Config, name string, o LoginOptions) (kept string, err error) {
	l, err := loginOf(cfg, name, o)
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.LogIn(ctx, o.Device)
}

// Logout revokes the tokens of a login if the server offers that, and deletes them. It returns
// their place, and as unrevoked why they may still be valid. Without a login the error is
// [ErrNoLogin].
func Logout(ctx context.Context, cfg *config.Config, name string, o LoginOptions) (kept string, unrevoked, err error) {
	l, err := loginOf(cfg, name, o)
	if err != nil {
		return "", nil, err
	}
	defer l.Close()
	return l.LogOut(ctx)
}

// ErrNoLogin is the error of a logout without a login.
var ErrNoLogin = oauth.ErrNoLogin

// loginOf returns the login of the upstream or link with that name.
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
	c.Server, c.Store, c.Client, c.Show, c.NoBrowser, c.GivenID = url, storeOf(cfg), client, o.Show, o.NoBrowser, o.ClientID
	if o.Scopes != nil {
		c.Scopes, c.OnlyScopes = o.Scopes, true
	}
	return oauth.NewLogin(c), nil
}

// loginAt returns the settings of the upstream or link with that name.
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

// storeOf returns the store of logins.
func storeOf(cfg *config.Config) *oauth.Store {
	return &oauth.Store{Dir: oauth.DefaultDir(), Keyring: cfg.TokenStore == "keyring"}
}

// configOf converts the configuration of a login; nil is none.
func configOf(o *config.OAuth) oauth.LoginConfig {
	if o == nil {
		return oauth.LoginConfig{Implicit: true}
	}
	return oauth.LoginConfig{ClientID: o.ClientID, ClientSecretFile: o.ClientSecretFile, Scopes: o.Scopes}
}

// closeCredentials ends the background work of the credentials for servers, of which some may be nil. It may wait
// for an authorization server. No session of one may begin afterwards.
func closeCredentials(all ...*remote.Server) {
	for _, r := range all {
		if r == nil {
			continue
		}
		if c, ok := r.Credentials.(credentials); ok {
			c.Close()
		}
	}
}
