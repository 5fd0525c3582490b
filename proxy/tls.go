package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// clientTLS returns what the files say, nil for none.
func clientTLS(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.RootCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	c.Certificates, err = readCertificate(files)
	return c, err
}

// serverTLS returns a listener's side: with a CA it demands certificates of
// clients.
func serverTLS(files config.TLS) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.ClientCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	c.Certificates, err = readCertificate(files)
	return c, err
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

func readCertificate(files config.TLS) ([]tls.Certificate, error) {
	if files.Cert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{cert}, nil
}

var errEmpty = errors.New("is empty")

// readPEM reads a file, if one is named, that must hold something.
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

// lookAgain is how often handshakes look whether files have changed, at most.
const lookAgain = time.Second

// maxAuthorities bounds the bytes of a file of authorities: all that browsers know are a
// quarter of it.
const maxAuthorities = 1 << 20

// A webTLS is the TLS of clients on HTTP. Its files are read again when they change, and
// then go for new connections. While they cannot be used the last good ones stay: cert and
// key do not change in the same moment, and a certificate is no secret that was withdrawn.
type webTLS struct {
	// Static after construction.
	cert, key, ca secretfile.File // ca without a Path: none
	clients       tls.ClientAuthType
	log           *slog.Logger

	mu      sync.Mutex // guards the fields below; held while files are read
	looked  time.Time
	text    [3]string // of the files that current was made of
	current *tls.Config
	failing bool
}

// newWebTLS reads the files; nil if none are named. With authorities, clients have to
// show a certificate of one, unless they can prove who they are with a token as well.
func newWebTLS(cfg *config.Config, log *slog.Logger) (*webTLS, error) {
	if cfg.TLS == (config.ListenTLS{}) {
		return nil, nil
	}
	t := &webTLS{log: log, looked: time.Now()}
	t.cert.Path, t.key.Path, t.ca.Path, t.ca.MaxSize = cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA, maxAuthorities
	switch tokens := cfg.TokenFile != "" || len(cfg.Auth.Tokens) > 0 || len(cfg.Auth.JWT) > 0; {
	case t.ca.Path == "":
	case tokens:
		t.clients = tls.VerifyClientCertIfGiven
	default:
		t.clients = tls.RequireAndVerifyClientCert
	}
	if err := t.read(); err != nil {
		return nil, config.Problems{{Source: cfg.File, Key: "tls", Text: err.Error()}}
	}
	return t, nil
}

// listener returns l with TLS on its connections. Clients choose between HTTP/2 and
// HTTP/1.1; those that want a WebSocket ask for the latter, which alone has upgrades.
func (t *webTLS) listener(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: t.forClient})
}

// forClient is called for each handshake.
func (t *webTLS) forClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.looked) >= lookAgain {
		t.looked = now
		t.reread()
	}
	return t.current, nil
}

// reread says once that the files cannot be used, and once that they can be again.
func (t *webTLS) reread() {
	before := t.current
	err := t.read()
	switch bad := err != nil; {
	case bad && !t.failing:
		t.log.Error("changed TLS files cannot be used, the last good ones stay", "err", err)
	case !bad && t.failing:
		t.log.Info("TLS files can be used again")
	case t.current != before:
		t.log.Info("TLS files have changed, new connections use them")
	}
	t.failing = err != nil
}

// read makes current what the files say, or leaves it.
func (t *webTLS) read() error {
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

func (t *webTLS) make(text [3]string) (*tls.Config, error) {
	cert, err := tls.X509KeyPair([]byte(text[0]), []byte(text[1]))
	if err != nil { // the errors of tls have nothing of the key
		return nil, fmt.Errorf("%s: does not make a certificate with its key: %w", t.cert.Path, err)
	}
	c := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{cert},
		ClientAuth:   t.clients,

		// A ticket would let a client in again whose authority was taken out of the file.
		SessionTicketsDisabled: t.ca.Path != "",
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

var errNoCertificate = errors.New("holds no certificate in PEM")
