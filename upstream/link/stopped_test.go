//go:build unix

package link

import (
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// stoppedEnv has the address that a child of TestStoppedProcess dials.
const stoppedEnv = "LINK_TEST_STOPPED"

// TestStoppedChild is that child: it serves one link.
func TestStoppedChild(t *testing.T) {
	at := os.Getenv(stoppedEnv)
	if at == "" {
		t.Skip("it is for a child")
	}
	carrier, err := net.Dial("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	const dead = time.Second // longer than a busy machine is silent
	c := &Client{Heartbeat: Heartbeat{Every: 20 * time.Millisecond, Dead: dead}}
	t.Log(c.Serve(t.Context(), carrier))
}

// A counted is a carrier that counts what passes.
type counted struct {
	net.Conn
	in, out atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.Add(1)
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	c.out.Add(1)
	return c.Conn.Write(p)
}

// A process that was stopped for longer than it waits for a sign of life keeps its link, as
// there is something to read when it runs again.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	l, at := unixSocket(t)
	child := exec.Command(os.Args[0], "-test.run=^TestStoppedChild$", "-test.v")
	child.Env = append(os.Environ(), stoppedEnv+"="+at)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	socket, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	carrier := &counted{Conn: socket}
	defer carrier.Close()
	s := &Server{Heartbeat: Heartbeat{Every: 10 * time.Millisecond, Dead: time.Hour}}
	over := make(chan error, 1)
	go func() { over <- s.Serve(t.Context(), carrier) }()
	passes := func(n *atomic.Int64, more int64) {
		t.Helper()
		for want, end := n.Load()+more, time.Now().Add(conntest.Patience); n.Load() < want; time.Sleep(time.Millisecond) {
			select {
			case err := <-over:
				t.Fatal("the link ended: ", err)
			default:
			}
			if time.Now().After(end) {
				t.Fatal("nothing passes")
			}
		}
	}
	for range 3 {
		passes(&carrier.in, 5)
		child.Process.Signal(syscall.SIGSTOP)
		passes(&carrier.out, 120) // at least 1.2 s
		child.Process.Signal(syscall.SIGCONT)
	}
	passes(&carrier.in, 5)
	carrier.Close()
	<-over
}
