package proxy

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
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
		l := &fullListener{Listener: brokenListener{err: err}, log: slog.New(slog.NewTextHandler(&log, nil))}
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
	if _, err := listen(address("proxy.sock"), 0); err == nil || !strings.Contains(err.Error(), "address already in use") {
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
		if _, err := listen(address(name), 0); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := os.Stat("file"); err != nil {
		t.Error("the file is gone")
	}
}
