//go:build unix

package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A manager starts programs as systemd does: with open sockets, and one for their
// notifications.
type manager struct {
	t      *testing.T
	notify *net.UnixConn
	files  []*os.File
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { notify.Close(); os.RemoveAll(dir) })
	return &manager{t: t, notify: notify}
}

// open opens a socket for the program.
func (m *manager) open(network, address string) net.Addr {
	m.t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { l.Close() })
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
	m.files = append(m.files, f)
	return l.Addr()
}

func (m *manager) start(args ...string) (*exec.Cmd, *lines) {
	m.t.Helper()
	log := &lines{}
	// LISTEN_PID must be the id of the process that gets the sockets.
	c := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh", "mcp-proxy"}, args...)...)
	c.Env = append(os.Environ(), "LISTEN_FDS="+strconv.Itoa(len(m.files)), "NOTIFY_SOCKET="+m.notify.LocalAddr().String())
	c.ExtraFiles, c.Stderr = m.files, log
	if err := c.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c, log
}

// told returns the next notification of the program.
func (m *manager) told() string {
	m.t.Helper()
	b := make([]byte, 1000)
	m.notify.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, err := m.notify.Read(b)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b[:n])
}

// TestSystemd: serve listens at the sockets that systemd has opened, instead of those in the
// configuration, notifies systemd when it is ready and when it stops, and leaves the sockets
// open.
func TestSystemd(t *testing.T) {
	m := newManager(t)
	tcp := m.open("tcp", "127.0.0.1:0")
	socket := filepath.Join(filepath.Dir(m.notify.LocalAddr().String()), "u")
	m.open("unix", socket)
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(file, []byte("listen: ['192.0.2.1:1']\nupstreams: {a: {command: fakeserver, inheritEnv: [all], required: true}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, log := m.start("serve", "--config", file)
	if got := m.told(); got != "READY=1" {
		t.Fatalf("told %q", got)
	}
	for _, client := range []*http.Client{{}, {Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}} {
		resp, err := client.Get("http://" + tcp.String() + "/healthz")
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		resp.Body.Close()
		client.CloseIdleConnections()
	}
	c.Process.Signal(syscall.SIGTERM)
	if got := m.told(); got != "STOPPING=1" {
		t.Errorf("told %q", got)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log)
	}
	if c, err := net.Dial("unix", socket); err != nil { // a client that connects now waits for the next start
		t.Error(err)
	} else {
		c.Close()
	}
}

// Errors with systemd: flags beside sockets, a socket beyond loopback without authentication, and a
// file that is no listening socket.
func TestSystemdRefuses(t *testing.T) {
	for _, c := range []struct {
		open func(*manager)
		args []string
		want string
	}{
		{func(m *manager) { m.open("tcp", "127.0.0.1:0") }, []string{"--port", "1"}, "leave out --listen and --port"},
		{func(m *manager) { m.open("tcp", ":0") }, nil, "is reachable from other machines"},
		{func(m *manager) { m.files = append(m.files, os.Stdin) }, nil, "socket 1 of systemd is not a listening socket"},
	} {
		m := newManager(t)
		c.open(m)
		p, log := m.start(append(append([]string{"serve"}, c.args...), "--", "fakeserver")...)
		if err := p.Wait(); err == nil || !strings.Contains(log.String(), c.want) {
			t.Errorf("%v: want %q, got %v\n%s", c.args, c.want, err, log)
		}
	}
}
