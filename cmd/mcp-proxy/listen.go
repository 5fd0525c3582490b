package main

import (
	"fmt"
	"net"
	"strings"

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
			return nil, err // says where
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
