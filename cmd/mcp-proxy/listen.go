package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// listenAll listens at all addresses, or at none.
func listenAll(addresses []string) ([]net.Listener, error) {
	var listeners []net.Listener
	for _, address := range addresses {
		l, err := listen(address)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, inUse(err) // says where
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// listen listens at HOST:PORT or unix:///path.
func listen(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return link.ListenUnix(path, 0)
	}
	return net.Listen("tcp", address)
}

// inUse says what to do about an error of listening where somebody else does.
func inUse(err error) error {
	const windows = syscall.Errno(10048) // what WSAEADDRINUSE is there
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windows) {
		return fmt.Errorf("%w: another program listens there; stop that one, or choose another address with --listen", err)
	}
	return err
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

// announceListeners prints where clients reach us, on stdout: the port may have
// been chosen by the system.
func announceListeners(listeners []net.Listener) {
	for _, l := range listeners {
		switch a := l.Addr(); a.Network() {
		case "unix":
			fmt.Printf("listening on unix://%s (/mcp, /ws, /sse)\n", a)
		default:
			fmt.Printf("listening on http://%s/mcp, ws://%s/ws and http://%s/sse\n", a, a, a)
		}
	}
}
