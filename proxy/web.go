package proxy

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A web is the listeners of a configuration, and the server at them.
type web struct {
	addresses []string
	mode      fs.FileMode    // of Unix sockets; zero: what the umask leaves
	opened    []net.Listener // by others; none: listen opens them
	listeners []net.Listener // set by listen
	server    *http.Server
	tls       *webTLS // nil: plain
	log       *slog.Logger
	loops     gate         // of the server, one for each listener
	up        atomic.Int32 // loops that run
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

// count counts connections until they are closed or a WebSocket's.
func (w *web) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		w.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		w.open.Add(-1)
	}
}

// listen listens at all addresses, or at none.
func (w *web) listen() error {
	w.listeners = w.opened
	if len(w.opened) > 0 {
		return nil
	}
	for _, address := range w.addresses {
		l, err := listen(address, w.mode)
		if err != nil {
			w.closeListeners()
			return err // says where
		}
		w.listeners = append(w.listeners, l)
	}
	return nil
}

// listen listens at HOST:PORT or unix:///path, where the socket gets the mode.
func listen(address string, mode fs.FileMode) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return link.ListenUnix(path, mode)
	}
	return net.Listen("tcp", address)
}

// serve returns the first error of a listener, or nil when close has ended all.
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

// allUp reports whether clients are served at all listeners there are.
func (w *web) allUp() bool { return int(w.up.Load()) == len(w.listeners) }

// secured returns l with TLS, if that is configured and l is no Unix socket: nobody
// listens in on that.
func (w *web) secured(l net.Listener) net.Listener {
	if w.tls == nil || l.Addr().Network() == "unix" {
		return l
	}
	return w.tls.listener(l)
}

// lingerTime is how long clients are answered that it is all over, if they have connections.
const lingerTime = 200 * time.Millisecond

// linger goes on answering for a moment, unless ctx is done or nobody is connected: who
// sends something just now should hear that it is over, and not find a connection broken.
func (w *web) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	for w.open.Load() > 0 && ctx.Err() == nil {
		rest(ctx, 10*time.Millisecond)
	}
}

// close lets handlers write their last bytes, and ends those that cannot.
func (w *web) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		w.server.Close()
	}
	w.closeListeners() // at which nobody served
	w.loops.wait()
}

func (w *web) closeListeners() {
	for _, l := range w.listeners {
		l.Close()
	}
}

// A fullListener lets the log know that clients wait because this process, or the
// system, has no descriptors left. net/http tries again, and keeps it for itself.
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
