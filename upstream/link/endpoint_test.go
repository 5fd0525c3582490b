package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestBadEndpoints(t *testing.T) {
	const secret = "s3cret"
	for url, want := range map[string]string{
		"unix://relative/path":                  "link unix://relative/path: want unix:///path",
		"unix://":                               "want unix:///path",
		"tcp://127.0.0.1":                       "link tcp://127.0.0.1: want tcp://host:port",
		"tls://127.0.0.1:1/path":                "want tls://host:port",
		"ws:///path":                            "want ws://host:port/path",
		"http://127.0.0.1:1/":                   "want unix, tcp, tls, ws or wss",
		"127.0.0.1:1":                           "invalid URL",
		"tcp://user:" + secret + "@127.0.0.1":   "link tcp://127.0.0.1: want",
		"ws://[::1/" + secret:                   "invalid URL",
		"ftp://x/?token=" + secret:              "link ftp://x/: want",
		"unix:///nowhere/at/all/" + "link.sock": "link unix:///nowhere/at/all/link.sock: ",
	} {
		e := Endpoint{URL: url}
		_, err := e.Dial(t.Context())
		wantEndOf(t, err, want)
		_, listenErr := e.Listen()
		wantEndOf(t, listenErr, want)
		if text := err.Error() + listenErr.Error(); strings.Contains(text, secret) {
			t.Errorf("%s tells a secret", text)
		}
	}
	for _, url := range []string{"tls://127.0.0.1:0", "wss://127.0.0.1:0"} {
		_, err := Endpoint{URL: url, TLS: &tls.Config{}}.Listen()
		wantEndOf(t, err, "no certificate")
	}
}

func TestDialNobody(t *testing.T) {
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	l.Close()
	_, err := dial.Dial(t.Context())
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(err.Error(), "dial link "+dial.URL+": ") {
		t.Errorf("Dial: %v", err)
	}
}

// TestUnixSocket replaces a socket that nobody answers on, and nothing else.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := Endpoint{URL: "unix://" + path}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()

	l, err := e.Listen()
	if err != nil {
		t.Fatalf("Listen at a dead socket: %v", err)
	}
	wantMode(t, path, 0o600)
	_, err = e.Listen()
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen at a living socket: %v", err)
	}
	if l.Close(); exists(path) {
		t.Error("the socket is still there")
	}

	e.Mode = 0o660
	if l, err = e.Listen(); err != nil {
		t.Fatal(err)
	}
	wantMode(t, path, 0o660)
	l.Close()

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = e.Listen()
	wantEndOf(t, err, "exists and is not a socket")
}

// TestLongSocketPath: the longest path can be used, and for a longer one the error names the limit.
func TestLongSocketPath(t *testing.T) {
	t.Chdir(t.TempDir())
	longest := strings.Repeat("a", maxSocketPath)
	l, err := ListenUnix(longest, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialUnix(t.Context(), longest)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	e := Endpoint{URL: "unix:///" + longest}
	want := fmt.Sprintf("link %s: the path of a socket may have %d bytes", e, maxSocketPath)
	_, err = e.Listen()
	wantEndOf(t, err, want)
	_, err = e.Dial(t.Context())
	wantEndOf(t, err, want)
}

// TestReplacedSocket: a listener that ends leaves the socket of its successor, also if it is closed again.
func TestReplacedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := Endpoint{URL: "unix://" + path}
	l, err := e.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	next, err := e.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for range 2 {
		l.Close()
		c, err := e.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != want {
		t.Errorf("%v, %v; want mode %v", info, err, want)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
