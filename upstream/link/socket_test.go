package link

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestFramesAreSmall looks at what a large message becomes on a carrier.
func TestFramesAreSmall(t *testing.T) {
	near, far := tcpPair(t)
	l, err := newLink(near, yamux.Client, newConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close(nil)
	y, err := l.y.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	const size = 200 << 10 // within the window
	go newConn(l, y, jsonrpc.Limits{}).Send(padded(size))
	for total := 0; total < size; {
		var header [12]byte
		if _, err := io.ReadFull(far, header[:]); err != nil {
			t.Fatal(err)
		}
		if header[1] != frameData {
			continue
		}
		n := binary.BigEndian.Uint32(header[8:])
		if n > maxFrame {
			t.Errorf("a frame of %d bytes", n)
		}
		io.CopyN(io.Discard, far, int64(n))
		total += int(n)
	}
}

// TestStrictMessages sends what no link of ours would.
func TestStrictMessages(t *testing.T) {
	near, far := rawPair(t, newConfig(orDiscard(nil)))
	for _, line := range []string{
		`{"jsonrpc":"2.0","method":"n","params":{"a":1,}}`,
		`{"jsonrpc":"2.0","method":"n","params":7}`,
		`{"jsonrpc":"2.0","id":1,"Method":"n","method":"n"}`,
		`{"jsonrpc":"2.0","id":1,"result":"` + "\xff" + `"}`,
	} {
		far.out.WriteLines([]byte(line + "\n" + `{"jsonrpc":"2.0","method":"n"}` + "\n"))
		if m, err := near.Recv(); !errors.As(err, new(*jsonrpc.InvalidError)) {
			t.Errorf("%s: %v, %v; want an InvalidError", line, m, err)
		}
		if m, err := near.Recv(); err != nil || m.Method != "n" {
			t.Errorf("after %s: %v, %v", line, m, err)
		}
	}
}

// A slow carrier takes its time for each Write, and holds nothing itself.
type slow struct{ net.Conn }

func (s slow) Write(p []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return s.Conn.Write(p)
}

// TestLastWordsOnSlowCarrier cancels the proxy's end while what it said last is
// still on its way.
func TestLastWordsOnSlowCarrier(t *testing.T) {
	near, far := net.Pipe()
	received := make(chan int, 1)
	s := &Server{Handle: handled(func(_ context.Context, _ Hello, c jsonrpc.Conn) error {
		for n := 0; ; n++ {
			if _, err := c.Recv(); err != nil {
				received <- n
				return err
			}
		}
	})}
	c := &Client{}
	ctx, stop := context.WithCancel(t.Context())
	ends := make(chan error, 2)
	go func() { ends <- s.Serve(context.Background(), far) }()
	go func() { ends <- c.Serve(ctx, slow{near}) }()
	conn := open(t, c)
	for n := range 10 {
		if err := conn.Send(numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	stop()
	if got := await(t, received); got != 10 {
		t.Errorf("%d of 10 messages arrived", got)
	}
	await(t, ends)
	await(t, ends)
}

// A heldConn is a connection whose reader is late with one text.
type heldConn struct {
	net.Conn
	text  string
	came  chan struct{} // closed when text was read, which then waits
	late  chan struct{} // until this is closed
	mute  chan struct{} // closed when a write has failed
	muted sync.Once
}

func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if strings.Contains(string(p[:n]), c.text) {
		close(c.came)
		<-c.late
	}
	return n, err
}

func (c *heldConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.muted.Do(func() { close(c.mute) })
	}
	return n, err
}

// unixSocket listens at a Unix socket, whose path it returns: shorter than one in t.TempDir.
func unixSocket(t *testing.T) (l net.Listener, at string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "link")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if l, err = net.Listen("unix", dir+"/s"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, dir + "/s"
}

// TestLastAnswersOfClosedLink: what the other side sent before it closed arrives, even if a write fails
// first, as it does in a process that was stopped meanwhile.
func TestLastAnswersOfClosedLink(t *testing.T) {
	l, at := unixSocket(t)
	a, err := net.Dial("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	held := &heldConn{Conn: a, text: `"ok":true`, came: make(chan struct{}), late: make(chan struct{}), mute: make(chan struct{})}
	near, host := rawPairOver(t, newConfig(orDiscard(nil)), held, b)
	release := sync.OnceFunc(func() { close(held.late) })
	t.Cleanup(release)
	if err := host.Send(numbered(7)); err != nil {
		t.Fatal(err)
	}
	await(t, held.came)
	b.Close()
	if err := near.Send(numbered(8)); err != nil {
		t.Fatal(err)
	}
	await(t, held.mute)
	for range 20 { // the link notices it at the latest with one of these
		near.Send(numbered(9))
	}
	release()
	m, err := near.Recv()
	if err != nil || m.ID != jsonrpc.IntID(7) {
		t.Errorf("Recv: %v, %v; want the answer", m, err)
	}
	wantEnd(t, near, "link lost", true)
}
