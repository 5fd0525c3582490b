package proxy

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// lookAgain is the interval in which handshakes of clients check at most once whether files have changed.
const lookAgain = time.Second

// maxAuthorities bounds a file of authorities in bytes. All authorities of a browser need a quarter.
const maxAuthorities = 1 << 20

// A tlsFiles is the TLS of a listener, or that of a client of servers. It reads changed files again for
// new connections. While they are unusable it keeps the previous ones: certificate and key do not change
// at the same moment, and an old certificate is not a withdrawn secret.
type tlsFiles struct {
	// Static after construction.
	cert, key, ca secretfile.File // without a Path if there is none
	protocols     []string        // of a listener
	log           *slog.Logger

	mu      sync.Mutex         // guards the fields below; held while files are read
	clients tls.ClientAuthType // of a listener
	looked  time.Time
	text    [3]string // of the files behind current
	current *tls.Config
	failing bool
}

func newTLSFiles(files config.TLS, log *slog.Logger) *tlsFiles {
	t := &tlsFiles{log: log, looked: time.Now()}
	t.cert.Path, t.key.Path, t.ca.Path, t.ca.MaxSize = files.Cert, files.Key, files.CA, maxAuthorities
	return t
}

// webTLS returns the TLS of clients on HTTP, nil if no files are configured. With authorities, clients
// need a certificate, unless a token can authenticate them as well. Clients choose between HTTP/2 and
// HTTP/1.1; WebSockets need the latter.
func webTLS(cfg *config.Config, log *slog.Logger) (*tlsFiles, error) {
	if cfg.TLS == (config.ListenTLS{}) {
		return nil, nil
	}
	t := newTLSFiles(config.TLS{CA: cfg.TLS.ClientCA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key}, log)
	t.protocols = []string{"h2", "http/1.1"}
	t.clients = t.clientsOf(cfg)
	if err := t.read(); err != nil {
		return nil, config.Problems{{Source: cfg.File, Key: "tls", Text: err.Error()}}
	}
	return t, nil
}

// clientsOf returns which clients on HTTP need a certificate.
func (t *tlsFiles) clientsOf(cfg *config.Config) tls.ClientAuthType {
	switch tokens := cfg.TokenFile != "" || len(cfg.Auth.Tokens) > 0 || len(cfg.Auth.JWT) > 0; {
	case t.ca.Path == "":
		return tls.NoClientCert
	case tokens:
		return tls.VerifyClientCertIfGiven
	}
	return tls.RequireAndVerifyClientCert
}

// adopt applies the tokens of cfg to t, which may be nil: with the first one, clients without a certificate may come.
func (t *tlsFiles) adopt(cfg *config.Config) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients = t.clientsOf(cfg)
	t.current = t.current.Clone()
	t.current.ClientAuth = t.clients
}

// listenTLS returns the TLS of a listener for links, nil for no certificate. With a CA, clients need
// certificates.
func listenTLS(files config.TLS, log *slog.Logger) (*tls.Config, error) {
	if files.Cert == "" {
		return nil, nil
	}
	t := newTLSFiles(files, log)
	if files.CA != "" {
		t.clients = tls.RequireAndVerifyClientCert
	}
	return t.listener(), t.read()
}

// clientTLS returns the TLS of a client of the server at address, a URL; nil for no files.
func clientTLS(files config.TLS, address string, log *slog.Logger) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	server, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("invalid URL") // err quotes the URL
	}
	t, c := newTLSFiles(files, log), &tls.Config{MinVersion: tls.VersionTLS12}
	if files.Cert != "" {
		c.GetClientCertificate = t.certificate
	}
	if files.CA != "" {
		c.InsecureSkipVerify = true // VerifyConnection does it, with the authorities of that time
		c.VerifyConnection = func(s tls.ConnectionState) error { return t.verify(s, server.Hostname()) }
	}
	return c, t.read()
}

// listener returns the configuration of a listener.
func (t *tlsFiles) listener() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: t.forClient}
}

// forClient is called for each handshake with a client.
func (t *tlsFiles) forClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	return t.latest(lookAgain), nil
}

// certificate is called for each handshake with a server that asks for our certificate. As crypto/tls
// does, it shows none if the server would not accept ours.
func (t *tlsFiles) certificate(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	own := &t.latest(0).Certificates[0]
	if r.SupportsCertificate(own) != nil {
		return new(tls.Certificate), nil
	}
	return own, nil
}

// verify verifies the certificate of a server as crypto/tls does. The name that we have asked for is not
// host if the connection is to an HTTPS proxy, and is not sent if it is an IP address.
func (t *tlsFiles) verify(s tls.ConnectionState, host string) error {
	leaf, between := s.PeerCertificates[0], x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: t.latest(0).ClientCAs, Intermediates: between})
	if err == nil {
		err = leaf.VerifyHostname(cmp.Or(s.ServerName, host))
	}
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return nil
}

// latest returns what the files say now, or said at most so long ago.
func (t *tlsFiles) latest(ago time.Duration) *tls.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.looked) >= ago {
		t.looked = now
		t.reread()
	}
	return t.current
}

// reread reads the files, and logs once that they are unusable and once that they are usable again.
func (t *tlsFiles) reread() {
	before := t.current
	err := t.read()
	switch bad := err != nil; {
	case bad && !t.failing:
		t.log.Error("changed TLS files are unusable; keeping the previous ones", "err", err)
	case !bad && t.failing:
		t.log.Info("TLS files can be used again")
	case t.current != before:
		t.log.Info("TLS files have changed, new connections use them")
	}
	t.failing = err != nil
}

// read sets current from the files. After an error current stays as it was.
func (t *tlsFiles) read() error {
	var text [3]string
	var err error
	for i, f := range []*secretfile.File{&t.cert, &t.key, &t.ca} {
		if f.Path == "" {
			continue
		}
		if text[i], err = f.Read(); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if t.current != nil && text == t.text {
		return nil
	}
	made, err := t.make(text)
	if err != nil {
		return err
	}
	t.text, t.current = text, made
	return nil
}

// make returns the configuration of a listener. For a client its parts count.
func (t *tlsFiles) make(text [3]string) (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: t.protocols,
		ClientAuth: t.clients,

		// A ticket would admit a client whose authority was removed from the file.
		SessionTicketsDisabled: t.ca.Path != "",
	}
	if t.cert.Path != "" {
		cert, err := tls.X509KeyPair([]byte(text[0]), []byte(text[1]))
		if err != nil { // it has no part of the key
			return nil, fmt.Errorf("%s: does not match its key: %w", t.cert.Path, err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	if t.ca.Path == "" {
		return c, nil
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM([]byte(text[2])) {
		return nil, fmt.Errorf("%s: %w", t.ca.Path, errNoCertificate)
	}
	return c, nil
}

func readCA(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %w", file, errNoCertificate)
	}
	return pool, nil
}

var (
	errEmpty         = errors.New("is empty")
	errNoCertificate = errors.New("holds no certificate in PEM")
)

// readPEM reads a file, which must not be empty. Without a name it returns nil.
func readPEM(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err == nil && len(text) == 0 {
		err = errEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return text, nil
}
