package timers_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// connect returns both ends of a TCP connection, the first one cheap.
func connect(t *testing.T) (c, peer net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c = timers.Cheap(accepted)
	t.Cleanup(func() { c.Close(); peer.Close() })
	return c, peer
}

func TestConnDeadlines(t *testing.T) {
	soon := 10 * time.Millisecond
	t.Run("read", func(t *testing.T) {
		c, peer := connect(t)
		for range 2 { // without and with an earlier one that has passed
			c.SetReadDeadline(time.Now().Add(soon))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("read: %v, want the deadline", err)
			}
		}
		c.SetReadDeadline(time.Time{})
		peer.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 1)); n != 1 {
			t.Fatalf("read after the deadline was removed: %v", err)
		}
	})
	t.Run("aborted", func(t *testing.T) {
		c, _ := connect(t)
		c.SetDeadline(time.Now().Add(time.Hour))
		go func() {
			time.Sleep(soon)
			c.SetDeadline(time.Unix(1, 0))
		}()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read: %v, want the deadline", err)
		}
	})
	t.Run("write", func(t *testing.T) {
		c, _ := connect(t)
		c.SetWriteDeadline(time.Now().Add(soon))
		var err error
		for err == nil { // until the peer's buffer is full
			_, err = c.Write(make([]byte, 1<<20))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("write: %v, want the deadline", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		c, _ := connect(t)
		c.SetDeadline(time.Now().Add(time.Hour))
		c.Close()
		if err := c.SetDeadline(time.Now().Add(time.Hour)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("set: %v", err)
		}
	})
	t.Run("others", func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		if c := timers.Cheap(a); c != a {
			t.Errorf("a pipe became a %T", c)
		}
		a.Close()
	})
}
