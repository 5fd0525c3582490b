package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A web is the listeners of a configuration, and their server.
type web struct {
	addresses []string
	mode      fs.FileMode    // of Unix sockets; zero leaves it to the umask
	opened    []net.Listener // as in Options.Listeners
	listeners []net.Listener // set by listen
	server    *http.Server
	tls       *tlsFiles // nil for none
	log       *slog.Logger
	loops     gate         // of the server, one for each listener
	up        atomic.Int32 // running loops
	open      atomic.Int32 // connections that speak HTTP
}

func newWeb(cfg *config.Config, h http.Handler, o Options) (*web, error) {
	t, err := webTLS(cfg, o.Log)
	w := &web{addresses: cfg.Listen, tls: t, log: o.Log, server: &http.Server{
		Handler:           h,
		HTTP2:             frontend.HTTP2(),
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
		l = w.secured(&clientListener{Listener: l, log: w.log})
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
	return tls.NewListener(l, w.tls.listener())
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

// A clientListener logs that clients wait because the process or the system has no descriptors
// left. net/http retries silently. Its connections are [timers.Conn]s.
type clientListener struct {
	net.Listener
	log  *slog.Logger
	told time.Time // owned by Accept
}

// Accept implements [net.Listener].
func (l *clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	full := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
	if full && time.Since(l.told) > time.Minute {
		l.told = time.Now()
		l.log.Warn("no descriptors left, clients wait: raise the limit (ulimit -n), or lower limits.sessions", "err", err)
	}
	return timers.Cheap(c), err
}

// allowedHosts returns the configured hosts and that of publicURL.
func allowedHosts(cfg *config.Config) []string {
	public, err := url.Parse(cfg.PublicURL)
	if err != nil || public.Hostname() == "" {
		return cfg.AllowedHosts
	}
	return append(slices.Clip(cfg.AllowedHosts), public.Hostname())
}
