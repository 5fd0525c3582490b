package wsconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

const (
	handshakeTimeout = 10 * time.Second

	// maxHandshake bounds the bytes of a server's handshake: certificates and response headers, and those of a proxy.
	maxHandshake = 256 << 10
)

// A StatusError is the answer of a server that refuses the upgrade. It may be a redirect, which is not followed.
type StatusError struct {
	Code      int      // the HTTP status
	Challenge []string // the values of WWW-Authenticate
}

// Error implements error.
func (e *StatusError) Error() string { return "HTTP " + strconv.Itoa(e.Code) }

// ErrHandshake means that the server's answer is not a valid WebSocket handshake for our request.
var ErrHandshake = errors.New("invalid handshake")

var (
	errNoWebSocket  = fmt.Errorf("%w: the server does not speak WebSocket", ErrHandshake)
	errExtension    = fmt.Errorf("%w: the server chose an extension that was not offered", ErrHandshake)
	errSubprotocol  = fmt.Errorf("%w: the server chose another subprotocol", ErrHandshake)
	errLongGreeting = fmt.Errorf("%w: it is too long", ErrHandshake)
)

// Dial connects to the server at url, ws or wss, with header in the request. t is for wss; nil means the system's
// roots. It uses the HTTP or SOCKS5 proxy of the environment. It offers the subprotocol "mcp", which the server need not
// choose.
//
// The handshake takes at most 10 s, and ends when ctx does. Later ctx has no effect. If the server refuses, the error
// is a [*StatusError].
func (cfg Config) Dial(ctx context.Context, url string, header http.Header, t *tls.Config) (*Conn, error) {
	d := dialer{subprotocol: subprotocolMCP, buffer: readBuffer, tls: t}
	frames, err := d.dial(ctx, url, header)
	if err != nil {
		return nil, err
	}
	return cfg.newConn(frames, d.socket(frames), true), nil
}

// DialCarrier connects to a server that answers with [AcceptCarrier]. Arguments and errors are as of [Config.Dial], but
// the server must choose the subprotocol of links.
func DialCarrier(ctx context.Context, url string, header http.Header, t *tls.Config) (net.Conn, error) {
	d := dialer{subprotocol: subprotocolLink, required: true, buffer: carrierBuffer, tls: t}
	frames, err := d.dial(ctx, url, header)
	if err != nil {
		return nil, err
	}
	return newCarrier(frames, d.socket(frames), true), nil
}

// A dialer makes one connection.
type dialer struct {
	subprotocol string
	required    bool // the server must choose the subprotocol
	buffer      int
	tls         *tls.Config

	ctx      context.Context // of the handshake
	greeting *greeting       // set by connect
	unwatch  func() bool     // set by connect; stops ctx from closing the socket
}

// dial returns a connection after the handshake.
func (d *dialer) dial(ctx context.Context, url string, header http.Header) (*websocket.Conn, error) {
	d.ctx = ctx
	wd := websocket.Dialer{
		NetDialContext:   d.connect,
		Proxy:            http.ProxyFromEnvironment,
		TLSClientConfig:  http1(d.tls),
		HandshakeTimeout: handshakeTimeout,
		ReadBufferSize:   d.buffer,
		WriteBufferSize:  1, // the frames that gorilla writes go without a buffer
		WriteBufferPool:  &writeless,
		Subprotocols:     []string{d.subprotocol},
	}
	frames, resp, err := wd.DialContext(ctx, url, header)
	if resp != nil {
		resp.Body.Close()
	}
	if d.unwatch != nil && !d.unwatch() {
		err = context.Cause(ctx) // instead of the error of the closed socket
	}
	if err == nil {
		err = d.check(resp)
	}
	if err != nil {
		if frames != nil {
			frames.Close()
		}
		return nil, refusal(resp, err)
	}
	d.greeting.left = unbounded
	return frames, nil
}

// connect is the first step of the handshake, and the last one for which gorilla uses a ctx. The ctx of dial outlives
// that of connect.
func (d *dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	socket, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.unwatch = context.AfterFunc(d.ctx, func() { socket.Close() })
	d.greeting = &greeting{Conn: socket, left: maxHandshake}
	return d.greeting, nil
}

// check checks what gorilla does not: what the server chose.
func (d *dialer) check(resp *http.Response) error {
	if resp.Header.Get("Sec-Websocket-Extensions") != "" {
		return errExtension
	}
	chosen := resp.Header.Values("Sec-Websocket-Protocol")
	if !slices.Equal(chosen, []string{d.subprotocol}) && (d.required || len(chosen) > 0) {
		return errSubprotocol
	}
	return nil
}

// refusal classifies err, the failure of a handshake.
func refusal(resp *http.Response, err error) error {
	switch {
	case !errors.Is(err, websocket.ErrBadHandshake):
		return fmt.Errorf("dial WebSocket: %w", unquoted(err))
	case resp.StatusCode != http.StatusSwitchingProtocols:
		return &StatusError{resp.StatusCode, resp.Header.Values("Www-Authenticate")}
	}
	return errNoWebSocket
}

// unquoted returns err without quotations of the answer, in which a server can repeat our headers.
func unquoted(err error) error {
	_, isTLS := errors.AsType[*tls.CertificateVerificationError](err) // quotes a certificate
	text, _, quotes := strings.Cut(err.Error(), `"`)
	if !quotes || isTLS {
		return err
	}
	return errors.New(strings.TrimRight(text, " :[("))
}

// http1 returns t with HTTP/1.1 only, because other versions have no upgrade.
func http1(t *tls.Config) *tls.Config {
	if t == nil {
		t = &tls.Config{}
	}
	t = t.Clone()
	t.NextProtos = []string{"http/1.1"}
	return t
}

// socket returns the TCP or TLS connection below frames.
func (d *dialer) socket(frames *websocket.Conn) net.Conn {
	if socket := frames.NetConn(); socket != d.greeting {
		return socket
	}
	return d.greeting.Conn
}

// unbounded is greeting.left after the handshake.
const unbounded = -1

// A greeting is a socket that bounds the bytes of the handshake.
type greeting struct {
	net.Conn
	left int // bytes that may still be read; set to unbounded before frames are read
}

// Read implements net.Conn.
func (g *greeting) Read(p []byte) (int, error) {
	switch g.left {
	case unbounded:
		return g.Conn.Read(p)
	case 0:
		return 0, errLongGreeting
	}
	n, err := g.Conn.Read(p[:min(len(p), g.left)])
	g.left -= n
	return n, err
}
