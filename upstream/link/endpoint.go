package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// dialTimeout is how long a dial may take, including the handshake of TLS or a WebSocket.
const dialTimeout = 10 * time.Second

// An Endpoint is the address of a link: one end listens there, the other dials. Either may
// be the host.
type Endpoint struct {
	// URL is one of
	//
	//	unix:///path
	//	tcp://host:port    tls://host:port
	//	ws://host:port/path    wss://host:port/path
	URL string

	// TLS is for tls and wss. For Dial, nil means the system's roots and the host of the
	// URL. For Listen, it needs a certificate; with ClientCAs it also requires one of
	// the peer.
	TLS *tls.Config

	// Token returns the bearer token of ws and wss that Dial sends and Listen requires;
	// nil is none. It is called for each connection, since tokens are rotated.
	Token func() (string, error)

	// Credentials authenticate Dial at ws or wss, instead of Token; nil is none. Many dials
	// may share them.
	Credentials Credentials

	// Mode is the mode of a Unix socket that Listen makes; zero means 0600.
	Mode fs.FileMode
}

// String returns the URL without parts that may be secret.
func (e Endpoint) String() string {
	u, err := url.Parse(e.URL)
	if err != nil {
		return "of an invalid URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// parse returns the URL, or an error if it is not complete.
func (e Endpoint) parse() (*url.URL, error) {
	u, err := url.Parse(e.URL)
	if err != nil {
		return nil, errors.New("invalid URL") // err quotes the URL
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || u.Path == "" {
			return nil, errors.New("want unix:///path")
		}
	case "tcp", "tls":
		if u.Port() == "" || u.Path != "" {
			return nil, fmt.Errorf("want %s://host:port", u.Scheme)
		}
	case "ws", "wss":
		if u.Host == "" {
			return nil, fmt.Errorf("want %s://host:port/path", u.Scheme)
		}
	default:
		return nil, errors.New("want unix, tcp, tls, ws or wss")
	}
	return u, nil
}

// Dial returns a new carrier. Its error names the endpoint without secrets.
func (e Endpoint) Dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := e.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial link %s: %w", e, brief(err))
	}
	return c, nil
}

func (e Endpoint) dial(ctx context.Context) (net.Conn, error) {
	u, err := e.parse()
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "unix":
		return dialUnix(ctx, u.Path)
	case "tcp":
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	case "tls":
		return (&tls.Dialer{Config: e.TLS}).DialContext(ctx, "tcp", u.Host)
	}
	return e.dialWeb(ctx, u.String())
}

// maxProofs is how often a dial is repeated because its credentials were rejected.
const maxProofs = 3

// dialWeb dials a WebSocket, with Credentials or Token.
func (e Endpoint) dialWeb(ctx context.Context, url string) (net.Conn, error) {
	for round := 0; ; round++ {
		header := make(http.Header)
		if err := e.authorize(ctx, header); err != nil {
			return nil, &unprovenError{err}
		}
		c, err := wsconn.DialCarrier(ctx, url, header, e.TLS)
		status, answered := errors.AsType[*wsconn.StatusError](err)
		refused := answered && (status.Code == http.StatusUnauthorized || status.Code == http.StatusForbidden)
		if !refused || e.Credentials == nil || round == maxProofs {
			return c, err
		}
		resp := &http.Response{StatusCode: status.Code, Header: http.Header{"Www-Authenticate": status.Challenge}, Body: http.NoBody}
		again, lacking := e.Credentials.Refused(ctx, resp, header)
		switch {
		case lacking != nil:
			return nil, &unprovenError{lacking}
		case !again:
			return nil, err
		}
	}
}

// An unprovenError is a dial that could not get a token.
type unprovenError struct{ err error }

// Error implements error.
func (e *unprovenError) Error() string {
	end, ok := errors.AsType[*jsonrpc.ClosedError](e.err)
	switch {
	case !ok:
		return e.err.Error()
	case end.Err == nil:
		return end.About("the other end")
	}
	return end.About("the other end") + ": " + end.Err.Error()
}

// Unwrap returns why.
func (e *unprovenError) Unwrap() error { return e.err }

// authorize adds Credentials or Token to the header of a dial.
func (e Endpoint) authorize(ctx context.Context, header http.Header) error {
	switch {
	case e.Credentials != nil:
		return e.Credentials.Authorize(ctx, header)
	case e.Token == nil:
		return nil
	}
	token, err := e.Token()
	if err == nil {
		header.Set("Authorization", "Bearer "+token)
	}
	return err
}

// Credentials are like those of package upstream/remote, for the WebSocket of a link.
// Authorize sets the header Authorization. Refused is called after a 401 or 403, and
// reports whether to dial again.
type Credentials interface {
	Authorize(ctx context.Context, header http.Header) error
	Refused(ctx context.Context, resp *http.Response, sent http.Header) (again bool, err error)
}

// brief drops the address from an error of package net: the caller names it. An alert of TLS has none, and is nothing but
// a [net.OpError].
func brief(err error) error {
	if _, unproven := errors.AsType[*unprovenError](err); unproven { // an error of the authorization server
		return err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Net != "" {
		return cmp.Or(op.Err, err)
	}
	return err
}

// Listen returns a listener for carriers. It replaces a Unix socket of a dead process, but
// not one that accepts connections. Accept does not make the TLS handshake: Serve does. A
// listener for WebSockets runs an HTTP server in a goroutine, which its Close waits for.
func (e Endpoint) Listen() (net.Listener, error) {
	l, err := e.listen()
	if err != nil {
		return nil, fmt.Errorf("listen at link %s: %w", e, brief(err))
	}
	return l, nil
}

func (e Endpoint) listen() (net.Listener, error) {
	u, err := e.parse()
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "unix":
		return ListenUnix(u.Path, cmp.Or(e.Mode, 0o600))
	case "tcp":
		return net.Listen("tcp", u.Host)
	case "ws":
		l, err := net.Listen("tcp", withPort(u, "80"))
		if err != nil {
			return nil, err
		}
		return newWebListener(l, u.Path, e.Token), nil
	}
	config, err := serverTLS(e.TLS)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", withPort(u, "443"))
	if err != nil {
		return nil, err
	}
	l = tls.NewListener(l, config)
	if u.Scheme == "wss" {
		return newWebListener(l, u.Path, e.Token), nil
	}
	return l, nil
}

func withPort(u *url.URL, port string) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// serverTLS returns a listener's config. With ClientCAs it requires client certificates.
func serverTLS(config *tls.Config) (*tls.Config, error) {
	if config == nil || len(config.Certificates) == 0 && config.GetCertificate == nil && config.GetConfigForClient == nil {
		return nil, errors.New("no certificate")
	}
	config = config.Clone()
	config.NextProtos = nil // a WebSocket needs HTTP/1.1
	if config.ClientCAs != nil && config.ClientAuth == tls.NoClientCert {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}
