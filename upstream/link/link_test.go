package link

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

func TestMain(m *testing.M) {
	conntest.Parallel(8)
	goleak.VerifyTestMain(m)
}

// patience bounds the wait for an event that must happen.
const patience = 30 * time.Second

var hello = Hello{Upstream: "files", Key: "k1", Era: "legacy"}

// A pair is a Client and a Server that are joined by a net.Pipe.
type pair struct {
	client           *Client
	server           *Server
	near, far        net.Conn
	stop             context.CancelFunc // forces the server
	clientEnd, ended chan error         // what each Serve returned
}

// join runs both ends in memory until the test ends, and then checks that both
// return.
func join(t testing.TB, c *Client, s *Server) *pair {
	near, far := net.Pipe()
	return joinOver(t, c, s, near, far)
}

func joinOver(t testing.TB, c *Client, s *Server, near, far net.Conn) *pair {
	ctx, stop := context.WithCancel(context.Background())
	p := &pair{c, s, near, far, stop, make(chan error, 1), make(chan error, 1)}
	go func() { p.ended <- s.Serve(ctx, far) }()
	go func() { p.clientEnd <- c.Serve(context.Background(), near) }()
	t.Cleanup(func() {
		stop()
		for _, end := range []chan error{p.ended, p.clientEnd} {
			if err := await(t, end); !errors.Is(err, jsonrpc.ErrClosed) {
				t.Errorf("Serve returned %v, want ErrClosed", err)
			}
			end <- jsonrpc.ErrClosed
		}
	})
	return p
}

// await returns the next value of ch.
func await[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing happened")
		panic("unreachable")
	}
}

func open(t testing.TB, c *Client) jsonrpc.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := c.Open(ctx, hello)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echoing answers each message with itself until the stream or ctx ends.
func echoing(ctx context.Context, _ Hello, c jsonrpc.Conn) error {
	defer context.AfterFunc(ctx, func() { c.Close() })()
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if err := c.Send(m); err != nil {
			return err
		}
	}
}

var echo = handled(echoing)

// handled returns the Handler that fn is, which serves a stream until it returns.
func handled(fn func(context.Context, Hello, jsonrpc.Conn) error) Handler {
	return func(ctx context.Context, h Hello, c jsonrpc.Conn, over func(error)) { over(fn(ctx, h, c)) }
}

// handOver gives the test the host's end of each stream, whose handler stays
// until the server is stopped.
func handOver() (Handler, <-chan jsonrpc.Conn) {
	conns := make(chan jsonrpc.Conn, 2048)
	return handled(func(ctx context.Context, _ Hello, c jsonrpc.Conn) error {
		conns <- c
		<-ctx.Done()
		return &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("stopped"), Delivered: true}
	}), conns
}

func TestEcho(t *testing.T) {
	p := join(t, &Client{}, &Server{Handle: echo})
	c := open(t, p.client)
	for i := range 100 {
		want := jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), "tools/call", []byte(`{"name":"x"}`))
		if err := c.Send(want); err != nil {
			t.Fatal(err)
		}
		got, err := c.Recv()
		if err != nil || string(got.Append(nil)) != string(want.Append(nil)) {
			t.Fatalf("got %v, %v", got, err)
		}
	}
	c.Close()
}
