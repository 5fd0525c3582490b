package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A brokenListener has no connections.
type brokenListener struct {
	net.Listener
	err error
}

func (l brokenListener) Accept() (net.Conn, error) {
	return nil, &net.OpError{Op: "accept", Err: l.err}
}

func TestNoDescriptors(t *testing.T) {
	for err, want := range map[error]int{syscall.EMFILE: 1, syscall.ENFILE: 1, net.ErrClosed: 0} {
		var log bytes.Buffer
		l := &clientListener{Listener: brokenListener{err: err}, log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 100 {
			if _, got := l.Accept(); !errors.Is(got, err) {
				t.Errorf("%v became %v", err, got)
			}
		}
		if n := strings.Count(log.String(), "no descriptors left"); n != want {
			t.Errorf("%v: %d lines, want %d", err, n, want)
		}
	}
}

func TestListenAtASocket(t *testing.T) {
	t.Chdir(t.TempDir()) // the path of a socket must be short
	address := func(name string) string { return "unix://" + name }

	l, err := listen(address("proxy.sock"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(address("proxy.sock"), 0); err == nil || !strings.Contains(err.Error(), "proxy.sock: address already in use") {
		t.Errorf("one that answers: %v", err)
	}
	l.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: "proxy.sock"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if l, err = listen(address("proxy.sock"), 0); err != nil {
		t.Fatalf("one that was left behind: %v", err)
	}
	l.Close()

	if err := os.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "."} {
		if _, err := listen(address(name), 0); err == nil || !strings.Contains(err.Error(), name+": exists and is not a socket") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := os.Stat("file"); err != nil {
		t.Error("the file is gone")
	}
}

// A loneListener accepts one connection.
type loneListener struct {
	net.Listener
	conns chan net.Conn // closed by Close
}

func (l loneListener) Accept() (net.Conn, error) {
	if c := <-l.conns; c != nil {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l loneListener) Close() error { close(l.conns); return nil }

func (loneListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestUnreadHTTP2: a client that reads nothing from its connection is disconnected, not only its streams.
func TestUnreadHTTP2(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.pair(t)
	files := config.ListenTLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key)}
	cfg := &config.Config{Frontend: config.Frontend{TLS: files}}
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		flood := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
			var err error
			for err == nil {
				_, err = w.Write(make([]byte, 1<<10))
			}
			ended <- err
		})
		l := loneListener{conns: make(chan net.Conn, 1)}
		log := slog.New(slog.DiscardHandler)
		w, err := newWeb(cfg, flood, Options{Log: log, anonymous: newAnonymousLog(log)})
		if err != nil {
			t.Fatal(err)
		}
		w.listeners = []net.Listener{l}
		go w.serve()
		client, server := net.Pipe() // without a buffer
		l.conns <- server
		c := tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		// An empty SETTINGS frame, and HEADERS of stream 1: GET https /, :authority x, with static indexes.
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
			"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x87\x84\x41\x01x"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("its response has not ended")
		}
		client.Close()
		w.server.Close()
		w.loops.wait()
	})
}
