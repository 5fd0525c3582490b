package link

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// Reasons to refuse a request for a link.
var (
	errBrowser    = errors.New("a browser cannot use a link")
	errNoToken    = errors.New("a bearer token is required")
	errWrongToken = errors.New("the bearer token is wrong")
	errTwice      = errors.New("the header Origin or Authorization comes twice")
)

// Upgrade makes a carrier of a request for a WebSocket. It returns the index of the token
// that the request carries; without tokens it requires none. If it returns an error, it has
// answered the request: 403 if there is an Origin or Sec-Fetch-Site, since a browser cannot
// use a link; 401 without a valid token; 503 if a token cannot be read; 400 if the header
// Origin or Authorization comes twice.
func Upgrade(
	w http.ResponseWriter, r *http.Request, tokens ...func() (string, error),
) (c net.Conn, which int, err error) {
	if len(r.Header["Origin"]) > 1 || len(r.Header["Authorization"]) > 1 {
		http.Error(w, errTwice.Error(), http.StatusBadRequest)
		return nil, 0, errTwice
	}
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		http.Error(w, errBrowser.Error(), http.StatusForbidden)
		return nil, 0, errBrowser
	}
	if which, err = matchToken(r, tokens); err != nil {
		refuseToken(w, err)
		return nil, 0, err
	}
	c, err = wsconn.AcceptCarrier(w, r)
	return c, which, err
}

// refuseToken answers a request without a valid token.
func refuseToken(w http.ResponseWriter, err error) {
	const challenge = `Bearer realm="mcp-proxy link"`
	switch {
	case errors.Is(err, errNoToken):
		w.Header().Set("WWW-Authenticate", challenge)
	case errors.Is(err, errWrongToken):
		w.Header().Set("WWW-Authenticate", challenge+`, error="invalid_token"`)
	default:
		http.Error(w, "tokens cannot be checked", http.StatusServiceUnavailable)
		return
	}
	http.Error(w, err.Error(), http.StatusUnauthorized)
}

// matchToken returns the index of the token that r carries. It compares the hashes of all
// tokens in constant time.
func matchToken(r *http.Request, tokens []func() (string, error)) (which int, err error) {
	if len(tokens) == 0 {
		return 0, nil
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if given = strings.TrimSpace(given); given == "" || !strings.EqualFold(scheme, "Bearer") {
		return 0, errNoToken
	}
	got := sha256.Sum256([]byte(given))
	which, err = -1, errWrongToken
	for i, token := range tokens {
		text, unknown := token()
		if unknown != nil {
			err = unknown
			continue
		}
		want := sha256.Sum256([]byte(text))
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 && text != "" {
			which = i
		}
	}
	if which < 0 {
		return 0, err
	}
	return which, nil
}

// A webListener is an HTTP server whose Accept returns WebSockets.
type webListener struct {
	net.Listener
	path   string
	tokens []func() (string, error)
	server http.Server

	carriers chan net.Conn // to Accept; never closed
	refused  chan error    // to Accept, if it waits; never closed
	closed   chan struct{} // closed by Close
	closing  sync.Once
	wg       sync.WaitGroup // server.Serve
}

func newWebListener(l net.Listener, path string, token func() (string, error)) *webListener {
	w := &webListener{Listener: l, path: path, carriers: make(chan net.Conn), refused: make(chan error), closed: make(chan struct{})}
	if token != nil {
		w.tokens = append(w.tokens, token)
	}
	w.server = http.Server{
		Handler:           w,
		ReadHeaderTimeout: handshakeTimeout, // TLS included
		IdleTimeout:       handshakeTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(w, "", 0),
	}
	w.wg.Go(func() { w.server.Serve(l) })
	return w
}

// A refusedError says why a listener made no carrier of a connection. The next may be one.
type refusedError struct{ error }

// Unwrap returns why.
func (e *refusedError) Unwrap() error { return e.error }

func isRefused(err error) bool {
	_, refused := errors.AsType[*refusedError](err)
	return refused
}

// Write implements [io.Writer] for net/http, which writes a line for each connection that failed,
// as in its TLS handshake.
func (w *webListener) Write(line []byte) (int, error) {
	w.refuse(errors.New(strings.TrimPrefix(strings.TrimSpace(string(line)), "http: ")))
	return len(line), nil
}

func (w *webListener) refuse(why error) {
	select {
	case w.refused <- &refusedError{why}:
	default: // it is dealing with another
	}
}

// Accept implements [net.Listener]. An error is a [*refusedError] if the listener goes on.
func (w *webListener) Accept() (net.Conn, error) {
	select {
	case c := <-w.carriers:
		return c, nil
	case err := <-w.refused:
		return nil, err
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (w *webListener) Close() error {
	w.closing.Do(func() { close(w.closed) })
	err := w.server.Close()
	w.wg.Wait()
	return err
}

// ServeHTTP passes a WebSocket to Accept, or closes it after handshakeTimeout.
func (w *webListener) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !isPath(w.path, r.URL.Path) {
		http.NotFound(rw, r)
		return
	}
	c, _, err := Upgrade(rw, r, w.tokens...)
	if err != nil { // answered
		w.refuse(fmt.Errorf("%s: %w", r.RemoteAddr, err))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	select {
	case w.carriers <- c:
	case <-w.closed:
		c.Close()
	case <-ctx.Done():
		c.Close()
	}
}

// isPath reports whether a listener at the path want serves a request for got. Without a
// path it serves all.
func isPath(want, got string) bool {
	return strings.Trim(want, "/") == "" || want == got
}
