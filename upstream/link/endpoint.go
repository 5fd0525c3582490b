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

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

const (
	// dialTimeout is how long a dial may take, the handshake of TLS or a
	// WebSocket included.
	dialTimeout = 10 * time.Second

	// handshakeTimeout is how long a peer that dialled us may take for TLS.
	handshakeTimeout = 10 * time.Second
)

// An Endpoint is where the two ends of a link find each other: one listens
// there, the other dials. Either may be the host.
type Endpoint struct {
	// URL is one of
	//
	//	unix:///path
	//	tcp://host:port    tls://host:port
	//	ws://host:port/path    wss://host:port/path
	URL string

	// TLS is for tls and wss. To dial, nil means the system's roots and the
	// host of the URL. A listener needs a certificate; with ClientCAs it also
	// demands one of the peer.
	TLS *tls.Config

	// Token returns the bearer token of ws and wss, which a dial shows and a
	// listener demands; nil is none. It is asked anew each time, since tokens
	// are rotated.
	Token func() (string, error)

	// Mode is that of a Unix socket which Listen makes; zero means 0600.
	Mode fs.FileMode
}

// String returns the URL without what could be secret in it.
func (e Endpoint) String() string {
	u, err := url.Parse(e.URL)
	if err != nil {
		return "of an invalid URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// parse returns the URL if it is complete.
func (e Endpoint) parse() (*url.URL, error) {
	u, err := url.Parse(e.URL)
	if err != nil {
		return nil, errors.New("invalid URL") // its error shows the whole of it
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

// Dial returns a new carrier. Its error names the endpoint, without secrets.
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
		return new(net.Dialer).DialContext(ctx, "unix", u.Path)
	case "tcp":
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	case "tls":
		return (&tls.Dialer{Config: e.TLS}).DialContext(ctx, "tcp", u.Host)
	}
	header := make(http.Header)
	if e.Token != nil {
		token, err := e.Token()
		if err != nil {
			return nil, err
		}
		header.Set("Authorization", "Bearer "+token)
	}
	return wsconn.DialCarrier(ctx, u.String(), header, e.TLS)
}

// brief drops the address from an error of package net, as it is named already.
func brief(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return cmp.Or(op.Err, err)
	}
	return err
}
