package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestBadHello is what a host answers to others than this package's Client.
func TestBadHello(t *testing.T) {
	const good = `{"mcp-proxy":1,"upstream":"files","key":"k","era":"legacy"}`
	for _, tt := range []struct{ name, sent, refused string }{
		{"unknown upstream", strings.Replace(good, "files", "nowhere", 1) + "\n", "upstream changed"},
		{"another version", `{"mcp-proxy":2,"whatever":[]}` + "\n", "unknown link version"},
		{"not a hello", `{"jsonrpc":"2.0","id":1,"method":"initialize"}` + "\n", "bad hello"},
		{"not JSON", "GET / HTTP/1.1\r\n", "bad hello"},
		{"endless", strings.Repeat("x", maxHello), "hello too long"},
		{"more than a hello", good + "\n" + `{"jsonrpc":"2.0","method":"n"}` + "\n", "messages before the answer to the hello"},
		{"half a hello", good, "hello timeout"},
		{"silent", "", "hello timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log syncBuffer
			s := &Server{
				Handle: handled(func(context.Context, Hello, jsonrpc.Conn) error { t.Error("handled"); return nil }),
				Known:  func(upstream string) bool { return upstream == "files" },
				Log:    slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			}
			if tt.refused == errLateHello.Error() {
				s.HelloTimeout = 3 * time.Second // in which a busy machine brings the link up
			}
			y, err := serveRaw(t, s).OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(y, tt.sent)
			answer, err := io.ReadAll(io.LimitReader(y, int64(len(refusalLine(tt.refused)))))
			if err != nil || string(answer) != string(refusalLine(tt.refused)) {
				t.Errorf("answered %q, %v; want %q", answer, err, refusalLine(tt.refused))
			}
			y.Close()
			if lines := strings.Count(log.String(), "\n"); lines != 1 {
				t.Errorf("%d lines in the log, want 1:\n%s", lines, log.String())
			}
		})
	}
}

// TestHelloBrokenOff leaves before the hello is complete: no answer, no log.
func TestHelloBrokenOff(t *testing.T) {
	var log syncBuffer
	session := serveRaw(t, &Server{Handle: echo, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	y, err := session.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(y, `{"mcp-proxy"`)
	y.Close()
	if rest, err := io.ReadAll(y); len(rest) > 0 || err != nil {
		t.Errorf("read %q, %v", rest, err)
	}
	if log.String() != "" {
		t.Errorf("logged %s", log.String())
	}
}

// serveRaw returns a yamux session with s at its other end, after the hello of the link.
func serveRaw(t *testing.T, s *Server) *yamux.Session {
	near, far := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), far) }()
	session, err := yamux.Client(near, newConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		near.Close()
		session.Close()
		await(t, ended)
	})
	y, err := session.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := newControl(&link{y: session}, y).greet(""); err != nil {
		t.Fatal(err)
	}
	return session
}

// TestBadHost is what Open returns when the host is not this package's Server.
func TestBadHost(t *testing.T) {
	for _, tt := range []struct{ name, answer, cause string }{
		{"refuses", string(refusalLine("upstream changed")), "upstream changed"},
		{"talks nonsense", "hello\n", "bad answer to the hello"},
		{"sends a message", `{"jsonrpc":"2.0","method":"n"}` + "\n", "bad answer to the hello"},
		{"does not say ok", `{"mcp-proxy":1}` + "\n", "bad answer to the hello"},
		{"breaks its line", `{"mcp-proxy":1,` + "\n", "bad answer to the hello"},
		{"closes", "", "closed"},
		{"closes with a line", string(closingLine(errClosed)), "bad answer to the hello"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &Client{}
			session := clientRaw(t, c)
			go func() {
				if y, err := session.AcceptStream(); err == nil {
					bufio.NewReader(y).ReadString('\n')
					io.WriteString(y, tt.answer)
					y.Close()
				}
			}()
			_, err := c.Open(t.Context(), hello)
			wantNotOpened(t, err, tt.cause)
			onlyControl(t, current(t, c))
		})
	}
}

// clientRaw returns a yamux session with c at its other end, after the hello of the link.
func clientRaw(t *testing.T, c *Client) *yamux.Session {
	near, far := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(context.Background(), near) }()
	session, err := yamux.Server(far, newConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		far.Close()
		session.Close()
		await(t, ended)
	})
	if _, err := answerControl(session, string(pickedLine(1))); err != nil {
		t.Fatal(err)
	}
	return session
}

func wantNotOpened(t *testing.T, err error, cause string) {
	t.Helper()
	var end *jsonrpc.ClosedError
	if !errors.As(err, &end) || end.Cause.String() != cause || end.Delivered {
		t.Errorf("Open: %v, want cause %q, not delivered", err, cause)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	t.Run("ends with ctx while there is no link", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		opened := make(chan error, 1)
		c := &Client{}
		go func() { _, err := c.Open(ctx, hello); opened <- err }()
		cancel()
		err := await(t, opened)
		wantNotOpened(t, err, "link lost")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Open: %v, want context.Canceled", err)
		}
	})
	t.Run("waits for a link", func(t *testing.T) {
		c := &Client{}
		opened := make(chan error, 3)
		for range cap(opened) {
			go func() {
				conn, err := c.Open(t.Context(), hello)
				if err == nil {
					conn.Close()
				}
				opened <- err
			}()
		}
		waiting := func() bool { c.current.mu.Lock(); defer c.current.mu.Unlock(); return c.current.changed != nil }
		for !waiting() {
			time.Sleep(time.Millisecond)
		}
		join(t, c, &Server{Handle: echo})
		for range cap(opened) {
			if err := await(t, opened); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("ends with ctx while the host does not answer", func(t *testing.T) {
		c := &Client{}
		session := clientRaw(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		opened := make(chan error, 1)
		go func() { _, err := c.Open(ctx, hello); opened <- err }()
		y, err := session.AcceptStream()
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		wantNotOpened(t, await(t, opened), "not opened in time")
		if session.IsClosed() {
			t.Error("the link ended with one opening")
		}
		io.WriteString(y, okLine) // late, and now the client closes
		if _, err := io.Copy(io.Discard, y); err != nil {
			t.Error(err)
		}
		y.Close()
		onlyControl(t, current(t, c))
	})
	t.Run("fails when the link is lost", func(t *testing.T) {
		c := &Client{}
		session := clientRaw(t, c)
		go func() {
			session.AcceptStream()
			session.Close()
		}()
		_, err := c.Open(t.Context(), hello)
		wantNotOpened(t, err, "link lost")
	})
	t.Run("refuses a key that is too long", func(t *testing.T) {
		p := join(t, &Client{}, &Server{Handle: echo})
		_, err := p.client.Open(t.Context(), Hello{Key: strings.Repeat("k", maxHello)})
		wantNotOpened(t, err, "hello too long")
	})
	t.Run("works again after a lost link", func(t *testing.T) {
		c, s := &Client{current: currentLink{blip: patience}}, &Server{Handle: echo}
		for range 3 {
			p := join(t, c, s)
			conn := open(t, c)
			p.far.Close()
			wantEnd(t, conn, "link lost", true)
			err := await(t, p.clientEnd)
			p.clientEnd <- err
		}
	})
}

// TestHelloArrives checks that a handler gets what Open was given, and that the
// proxy's ctx is not the handler's.
func TestHelloArrives(t *testing.T) {
	hellos := make(chan Hello, 1)
	p := join(t, &Client{}, &Server{Handle: handled(func(ctx context.Context, h Hello, c jsonrpc.Conn) error {
		hellos <- h
		return echoing(ctx, h, c)
	})})
	want := Hello{Upstream: "files", Key: "k\n\"\u2028", Era: "legacy"}
	ctx, cancel := context.WithCancel(t.Context())
	c, err := p.client.Open(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cancel()
	if got := await(t, hellos); got != want {
		t.Errorf("handler got %+v, want %+v", got, want)
	}
	if err := c.Send(numbered(1)); err != nil {
		t.Error(err)
	}
	if _, err := c.Recv(); err != nil {
		t.Error(err)
	}
}

// A proxy of an older version may send headers of clients. Another process says nothing about
// clients: nobody gets them.
func TestHeadersOfAnotherProcess(t *testing.T) {
	heard, came := make(chan map[string][]string, 1), make(chan *jsonrpc.Message, 1)
	session := serveRaw(t, &Server{Handle: handled(func(ctx context.Context, _ Hello, c jsonrpc.Conn) error {
		heard <- jsonrpc.ForwardedIn(ctx)
		m, err := c.Recv()
		came <- m
		return err
	})})
	y, err := session.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(y, `{"mcp-proxy":1,"upstream":"files","key":"k","era":"legacy","headers":{"Authorization":["secret"]}}`+"\n")
	if got := await(t, heard); got != nil {
		t.Errorf("the hello had %v", got)
	}
	io.WriteString(y, `{"mcp-proxy":1,"re":7,"headers":{"X-Request-Id":["7"]}}`+"\n"+string(numbered(1).Append(nil))+"\n")
	if m := await(t, came); m == nil || m.Forwarded != nil || m.Related != jsonrpc.IntID(7) {
		t.Errorf("received %+v", m)
	}
	y.Close()
}

// TestHostOpensStream ends the link: only the proxy opens streams.
func TestHostOpensStream(t *testing.T) {
	near, far := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- (&Client{}).Serve(t.Context(), near) }()
	session, err := yamux.Server(far, newConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	session.OpenStream() // fails if the link ends that soon
	if err := await(t, ended); !errors.Is(err, errHostStreams) {
		t.Errorf("Serve: %v, want %v", err, errHostStreams)
	}
}

// syncBuffer is a log that goroutines write and the test reads.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
