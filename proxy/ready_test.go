package proxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// atSocket returns an HTTP client for a Unix socket.
func atSocket(t *testing.T, path string) *http.Client {
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(web.CloseIdleConnections)
	return web
}

// awaitReady waits until readiness at a Unix socket is so.
func awaitReady(t *testing.T, socket, want string) {
	t.Helper()
	web, got := atSocket(t, socket), ""
	defer func() {
		if t.Failed() {
			t.Logf("readiness is %q", got)
		}
	}()
	eventually(t, "readiness that says "+want, func() bool {
		resp, err := web.Get("http://localhost/readyz")
		if err != nil {
			return false // it has not begun
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		got = resp.Status + ": " + string(text)
		return err == nil && got == want
	})
}

const (
	isReady      = "200 OK: ok\n"
	listenerDown = "503 Service Unavailable: listeners: not all are up\nnot ready\n"
)

// A proxy that has lost one of its listeners is not ready, though it serves at the others and
// lives.
func TestReadinessWithAListenerDown(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	var at [2]net.Listener
	for i := range at {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at[i] = l
	}
	p, err := proxy.New(&config.Config{}, proxy.Options{AdminSocket: socket, Listeners: at[:]})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve() }()
	awaitReady(t, socket, isReady)
	at[1].Close()
	awaitReady(t, socket, listenerDown)
	if err := <-served; err == nil {
		t.Error("nobody was told why")
	}
	if healthy := visit(t, "http://"+at[0].Addr().String()+"/healthz"); healthy.status != http.StatusOK {
		t.Errorf("the other listener: %+v", healthy)
	}
	if text := string(operatorGets(t, socket, "/livez")); text != "ok\n" {
		t.Errorf("livez: %q", text)
	}
}
