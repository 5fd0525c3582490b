package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A web is the listeners of a configuration, and their server.
type web struct {
	addresses []string
	mode      fs.FileMode    // of Unix sockets; zero leaves it to the umask
	opened    []net.Listener // as in Options.Listeners
	listeners []net.Listener // set by listen
	server    *http.Server
	tls       *webTLS // nil for none
	log       *slog.Logger
	loops     gate         // of the server, one for each listener
	up        atomic.Int32 // running loops
	open      atomic.Int32 // connections that speak HTTP
}

func newWeb(cfg *config.Config, h http.Handler, o Options) (*web, error) {
	t, err := newWebTLS(cfg, o.Log)
	w := &web{addresses: cfg.Listen, tls: t, log: o.Log, server: &http.Server{
		Handler:           h,
		ConnContext:       identity.WithSocket,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          o.anonymous.httpErrors(),
	}}
	w.server.ConnState = w.count
	return w, err
}

// count counts connections until they are closed or become WebSockets.
func (w *web) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		w.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		w.open.Add(-1)
	}
}

// listen listens at all addresses or at none.
func (w *web) listen() error {
	w.listeners = w.opened
	if len(w.opened) > 0 {
		return nil
	}
	for _, address := range w.addresses {
		l, err := listen(address, w.mode)
		if err != nil {
			w.closeListeners()
			return err // has the address
		}
		w.listeners = append(w.listeners, l)
	}
	return nil
}

// listen listens at HOST:PORT, or at unix:///path with a socket of that mode.
func listen(address string, mode fs.FileMode) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return link.ListenUnix(path, mode)
	}
	return net.Listen("tcp", address)
}

// serve serves until close and then returns nil, or returns the first error of a listener.
func (w *web) serve() error {
	ends := make(chan error, len(w.listeners))
	for _, l := range w.listeners {
		l = w.secured(&fullListener{Listener: l, log: w.log})
		if !w.loops.run(func() { ends <- w.serveAt(l) }) {
			ends <- http.ErrServerClosed
		}
	}
	for range w.listeners {
		if err := <-ends; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
}

func (w *web) serveAt(l net.Listener) error {
	w.up.Add(1)
	defer w.up.Add(-1)
	return w.server.Serve(l)
}

// allUp reports whether the server serves all listeners.
func (w *web) allUp() bool { return int(w.up.Load()) == len(w.listeners) }

// secured returns l with TLS if that is configured, unless l is a Unix socket, which needs none.
func (w *web) secured(l net.Listener) net.Listener {
	if w.tls == nil || l.Addr().Network() == "unix" {
		return l
	}
	return w.tls.listener(l)
}

// lingerTime bounds linger.
const lingerTime = 200 * time.Millisecond

// linger keeps answering for a moment while clients are connected and ctx is not done, so that a
// client that sends something now gets an error instead of a broken connection.
func (w *web) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	for w.open.Load() > 0 && ctx.Err() == nil {
		rest(ctx, 10*time.Millisecond)
	}
}

// close lets handlers finish for a moment, then closes all connections and listeners.
func (w *web) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		w.server.Close()
	}
	w.closeListeners() // Shutdown closes only those that were served
	w.loops.wait()
}

func (w *web) closeListeners() {
	for _, l := range w.listeners {
		l.Close()
	}
}

// A fullListener logs that clients wait because the process or the system has no descriptors
// left. net/http retries silently.
type fullListener struct {
	net.Listener
	log  *slog.Logger
	told time.Time // owned by Accept
}

// Accept implements [net.Listener].
func (l *fullListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	full := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
	if full && time.Since(l.told) > time.Minute {
		l.told = time.Now()
		l.log.Warn("no descriptors left, clients wait: raise the limit (ulimit -n), or lower limits.sessions", "err", err)
	}
	return c, err
}

// clientTLS returns the TLS configuration of a client, nil for no files.
func clientTLS(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	c, err := serverTLS(files)
	if err != nil {
		return nil, err
	}
	c.RootCAs, c.ClientCAs = c.ClientCAs, nil
	return c, nil
}

// serverTLS returns the TLS configuration of a listener. With a CA, clients need certificates.
func serverTLS(files config.TLS) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.ClientCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	if files.Cert == "" {
		return c, nil
	}
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	c.Certificates = []tls.Certificate{cert}
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

var errEmpty = errors.New("is empty")

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

// lookAgain is the interval in which handshakes check at most once whether files have changed.
const lookAgain = time.Second

// maxAuthorities bounds a file of authorities in bytes. All authorities of a browser need a quarter.
const maxAuthorities = 1 << 20

// A webTLS is the TLS of clients on HTTP. It reads changed files again for new connections. While
// they are unusable it keeps the previous ones: certificate and key do not change at the same
// moment, and an old certificate is not a withdrawn secret.
type webTLS struct {
	// Static after construction.
	cert, key, ca secretfile.File // ca has no Path if there is none
	clients       tls.ClientAuthType
	log           *slog.Logger

	mu      sync.Mutex // guards the fields below; held while files are read
	looked  time.Time
	text    [3]string // of the files behind current
	current *tls.Config
	failing bool
}

// newWebTLS reads the files, and returns nil if none are configured. With authorities, clients
// need a certificate, unless a token can authenticate them as well.
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

// listener returns l with TLS on its connections. Clients choose between HTTP/2 and HTTP/1.1;
// WebSockets need the latter.
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

// reread reads the files, and logs once that they are unusable and once that they are usable again.
func (t *webTLS) reread() {
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
	if err != nil { // it has no part of the key
		return nil, fmt.Errorf("%s: does not match its key: %w", t.cert.Path, err)
	}
	c := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{cert},
		ClientAuth:   t.clients,

		// A ticket would admit a client whose authority was removed from the file.
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

// allowedHosts returns the configured hosts and that of publicURL.
func allowedHosts(cfg *config.Config) []string {
	public, err := url.Parse(cfg.PublicURL)
	if err != nil || public.Hostname() == "" {
		return cfg.AllowedHosts
	}
	return append(slices.Clip(cfg.AllowedHosts), public.Hostname())
}
