package frontend

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// certificate returns a certificate for tests. It is created outside of bubbles.
func certificate() tls.Certificate {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return server.TLS.Certificates[0]
}

// newHTTP2Server is newBubbleServer with TLS and HTTP/2.
func newHTTP2Server(t *testing.T, cert tls.Certificate, setUp func(*HTTP)) *testServer {
	ts := newHTTP(t, setUp)
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	transport := &http.Transport{DialContext: l.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	server := &http.Server{Handler: ts.HTTP}
	ts.url, ts.client = "https://localhost", &http.Client{Transport: transport}
	go server.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}))
	t.Cleanup(func() {
		ts.HTTP.Close()
		server.Close()
		transport.CloseIdleConnections()
	})
	return ts
}

// TestHTTP2: streams last as over HTTP/1.1, however long they are idle, and a modern client cancels
// by closing one of many.
func TestHTTP2(t *testing.T) {
	cert := certificate()
	synctest.Test(t, func(t *testing.T) {
		var sessions, principals <-chan jsonrpc.Conn
		ts := newHTTP2Server(t, cert, func(h *HTTP) { sessions, principals = manual(h), manualPrincipal(h) })
		c := ts.at("/mcp")
		go func() {
			conn := <-sessions
			m, _ := conn.Recv()
			conn.Send(initializeResult(m))
			conn.Recv()
			time.Sleep(10 * time.Minute)
			conn.Send(note("notifications/late"))
			conn.Send(result(1))
		}()
		c.initialize("2025-06-18")
		get := c.get()
		if get.ProtoMajor != 2 {
			t.Fatal(get.Proto)
		}
		answered := make(chan *jsonrpc.Message, 1)
		go func() { answered <- onlyMessage(t, c.post(fmt.Sprintf(call, 1))) }()
		ev := newEvents(t, get)
		wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","method":"notifications/late"}`)
		wantText(t, <-answered, `{"jsonrpc":"2.0","id":1,"result":"done"}`)
		ev.close()

		modern := ts.at("/mcp")
		first := modern.send(modern.modern("1", "x", ""))
		conn := <-principals
		kept, _ := conn.Recv()
		ctx, cancel := context.WithCancel(t.Context())
		modern.send(modern.modern("2", "x", "").WithContext(ctx))
		dropped, _ := conn.Recv()
		cancel()
		wantCancel(t, conn, dropped)
		conn.Send(jsonrpc.NewResult(kept.ID, []byte(`{}`)))
		wantText(t, onlyMessage(t, <-first), `{"jsonrpc":"2.0","id":1,"result":{}}`)
		wantRefusal(t, ts.at("/ws").get(), 400, -32600) // HTTP/2 has no upgrades
	})
}
