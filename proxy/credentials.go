package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"

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

// credentialsOf returns the credentials for what is at url, nil if none are configured. name
// is of the upstream or link, and files say whom to trust there.
func credentialsOf(name, url string, auth config.UpstreamAuth, files config.TLS, log *slog.Logger) (credentials, error) {
	m := auth.ClientCredentials
	if m == nil {
		return nil, nil
	}
	client, err := issuerClient(files)
	if err != nil {
		return nil, err
	}
	return &oauth.ClientCredentials{
		Server: url, ClientID: m.ClientID, SecretFile: m.ClientSecretFile, KeyFile: m.PrivateKeyFile, AssertionFile: m.AssertionFile,
		TokenURL: m.TokenURL, Scopes: m.Scopes, Client: client, Log: log.With("upstream", name),
	}, nil
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
