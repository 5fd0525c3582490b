package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A streamListener passes the streams of a link on to an http.Server.
type streamListener struct {
	streams chan net.Conn
	closed  context.Context
	cancel  context.CancelFunc
}

func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.streams:
		return c, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

func (l *streamListener) Close() error {
	l.cancel()
	return nil
}

func (l *streamListener) Addr() net.Addr { return &net.TCPAddr{} }

// bytesOver returns a Client of a link over TCP whose other end passes streams of bytes to serve, and the function
// that cuts the link.
func bytesOver(t *testing.T, serve func(net.Conn)) (client *Client, cut func()) {
	t.Helper()
	l, err := Endpoint{URL: "tcp://127.0.0.1:0"}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(stop)
	server := &Server{Bytes: serve, Handle: handled(func(context.Context, Hello, jsonrpc.Conn) error { return nil })}
	wg.Go(func() { server.Accept(ctx, l) })
	client = &Client{}
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { client.Serve(ctx, near) })
	return client, func() { near.Close() }
}

func dialBytes(t *testing.T, c *Client) net.Conn {
	t.Helper()
	conn, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestBytes(t *testing.T) {
	client, _ := bytesOver(t, func(c net.Conn) { io.Copy(c, c) })
	c := dialBytes(t, client)
	text := strings.Repeat("no line feeds {\"mcp-proxy\":1,\"closed\":{}} \n", 40_000) // more than a window
	go io.WriteString(c, text)
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("an echo of %d bytes: %v, unchanged: %t", len(text), err, string(got) == text)
	}
}

// TestBytesEnd tests that a stream of bytes ends as a net.Conn must.
func TestBytesEnd(t *testing.T) {
	client, cut := bytesOver(t, func(c net.Conn) {
		var how [1]byte
		io.ReadFull(c, how[:])
		if how[0] == 'w' {
			io.Copy(io.Discard, c)
		}
	})
	c := dialBytes(t, client)
	c.Write([]byte("e"))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the other side has closed: %v", err)
	}
	c = dialBytes(t, client)
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a deadline: %v", err)
	}
	c.SetReadDeadline(time.Time{})
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		waiting <- err
	}()
	c.Close()
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a Read during Close: %v", err)
	}
	if _, err := c.Write([]byte("e")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a Write after Close: %v", err)
	}
	c = dialBytes(t, client)
	c.Write([]byte("w"))
	cut()
	_, err := c.Read(make([]byte, 1))
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); !ok || end.Cause != jsonrpc.CauseLinkLost || end.Event == "" {
		t.Errorf("after the link was lost: %v", err)
	}
}

func TestBytesRefused(t *testing.T) {
	client, _ := bytesOver(t, nil)
	if c, err := client.Dial(t.Context()); err == nil {
		c.Close()
		t.Error("a server without Bytes has accepted a stream of bytes")
	}
}

// TestBytesCarryHTTP tests that net/http works over streams of bytes: kept connections, streamed responses, and clients
// that leave.
func TestBytesCarryHTTP(t *testing.T) {
	left := make(chan struct{})
	listener := &streamListener{streams: make(chan net.Conn)}
	listener.closed, listener.cancel = context.WithCancel(t.Context())
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(left)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.Method, body)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) })
	client, _ := bytesOver(t, func(c net.Conn) {
		done := make(chan struct{})
		listener.streams <- closeNotifier{c, sync.OnceFunc(func() { close(done) })}
		<-done
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return client.Dial(ctx) }}
	defer func() {
		transport.CloseIdleConnections()
		server.Close()
		serving.Wait()
	}()
	for n := range 3 {
		resp, err := (&http.Client{Transport: transport}).Post("http://replica/", "text/plain", strings.NewReader(fmt.Sprint(n)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != fmt.Sprintf("POST %d", n) {
			t.Errorf("request %d: %q, %v", n, body, err)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://replica/wait", nil)
	resp, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	<-left
}

// A closeNotifier calls a function when it is closed.
type closeNotifier struct {
	net.Conn
	closed func()
}

func (c closeNotifier) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
