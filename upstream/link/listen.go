package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// Listen returns a listener for carriers. A Unix socket that a dead process left
// behind is replaced; one that answers is not. The handshake of TLS is not
// Accept's: whoever serves the carrier makes it. A listener for WebSockets runs
// an HTTP server in a goroutine, which its Close waits for.
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
		return ListenUnix(u.Path, e.mode())
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

// serverTLS returns config as a listener's: with ClientCAs, mutual.
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

func (e Endpoint) mode() fs.FileMode {
	if e.Mode == 0 {
		return 0o600
	}
	return e.Mode
}

// ListenUnix listens at a Unix socket. One that a dead process left behind is
// replaced; one that answers is not. A mode of zero leaves it to the umask.
func ListenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if mode == 0 {
		return l, nil
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// removeStale removes the socket at path if nobody answers there.
func removeStale(path string) error {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return syscall.EADDRINUSE
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("exists and is not a socket")
	}
	return os.Remove(path)
}

// isPath reports whether a listener at want serves a request for got; one
// without a path serves all.
func isPath(want, got string) bool {
	return strings.Trim(want, "/") == "" || want == got
}
