package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
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
