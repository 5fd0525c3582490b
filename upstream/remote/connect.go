package remote

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	dialTimeout    = 10 * time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 256 << 10 // of a response
	maxIdleConns   = 256       // kept for reuse
	maxRedirects   = 5

	// pingAfter is the silence on an HTTP/2 connection after which a ping is sent, and the time for its answer. A
	// connection that is dead without an error would keep all requests to the server.
	pingAfter = 15 * time.Second

	// writeChunk is how much must be written within the write timeout.
	writeChunk = 64 << 10
)

// newClient returns the HTTP client of all sessions with a server. It has no timeout for
// responses, since a call may take any time. It decompresses nothing, since the size of
// the result would have no bound.
func newClient(config *tls.Config, writeTimeout time.Duration) *http.Client {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &timeoutConn{Conn: timers.Cheap(c), timeout: writeTimeout}, nil
		},
		TLSHandshakeTimeout:    dialTimeout,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{WriteByteTimeout: writeTimeout, SendPingTimeout: pingAfter, PingTimeout: pingAfter},
	}
	if config != nil {
		t.TLSClientConfig = config.Clone()
	}
	return &http.Client{Transport: onceTransport{t}, CheckRedirect: checkRedirect}
}

// A onceTransport sends a request with a body once. net/http would send it again without a bound while a
// server resets its stream on HTTP/2 with PROTOCOL_ERROR, and if it has an Idempotency-Key: it may have run.
// [transport.send] sends it again where that is safe.
type onceTransport struct{ *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (t onceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.GetBody != nil {
		once := *r
		once.GetBody = nil
		r = &once
	}
	return t.Transport.RoundTrip(r)
}

// A timeoutConn fails writes when the server does not read for the timeout.
type timeoutConn struct {
	net.Conn
	timeout time.Duration
	sent    atomic.Int64 // bytes
}

// Write implements net.Conn.
func (c *timeoutConn) Write(b []byte) (n int, err error) {
	for first := true; first || n < len(b) && err == nil; first = false {
		c.SetWriteDeadline(time.Now().Add(c.timeout))
		var m int
		m, err = c.Conn.Write(b[n:min(n+writeChunk, len(b))])
		n += m
		c.sent.Add(int64(m))
	}
	return n, err
}

// checkRedirect follows a redirect only if it keeps method and body and stays on the
// configured origin: another server must not see credentials or calls. Otherwise the
// redirect itself is the response.
func checkRedirect(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	keeps := r.Response.StatusCode == http.StatusTemporaryRedirect || r.Response.StatusCode == http.StatusPermanentRedirect
	if !keeps || len(via) > maxRedirects || r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
		return http.ErrUseLastResponse
	}
	return nil
}
