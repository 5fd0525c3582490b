package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
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
			return nil, err // says where
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// listen listens at HOST:PORT or unix:///path. A socket that a dead process left
// behind is replaced; one that answers is not.
func listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		return net.Listen("tcp", address)
	}
	l, err := net.Listen("unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if c, dialErr := net.Dial("unix", path); dialErr == nil {
		c.Close()
		return nil, err
	}
	if info, statErr := os.Stat(path); statErr != nil || info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen unix %s: exists and is not a socket", path)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
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
