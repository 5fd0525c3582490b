package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// The tests here are about what yamux does badly. That a Close unblocks Recv is
// in TestConn, that a lost link is no clean end in TestEnds.

// TestRefusedStreamsKeepCredit opens more streams in vain than yamux has credits
// for; were one lost each time, the last OpenStream would block for ever.
func TestRefusedStreamsKeepCredit(t *testing.T) {
	p := join(t, &Client{}, &Server{Handle: echo, Known: func(name string) bool { return name == "files" }})
	t.Run("refused", func(t *testing.T) {
		times(acceptBacklog+300, func() {
			_, err := p.client.Open(t.Context(), Hello{Upstream: "nowhere"})
			wantNotOpened(t, err, "upstream changed")
		})
	})
	t.Run("abandoned", func(t *testing.T) {
		times(acceptBacklog+300, func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Microsecond)
			defer cancel()
			if c, err := p.client.Open(ctx, hello); err == nil {
				c.Close()
			}
		})
	})
	open(t, p.client).Close()
	onlyControl(t, current(t, p.client))
}

// times runs fn n times, in 16 goroutines.
func times(n int, fn func()) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	for range 16 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				fn()
			}
		})
	}
	wg.Wait()
}

// TestThousandStreams opens them, uses them all at once, and closes them.
func TestThousandStreams(t *testing.T) {
	const count = 1000
	p := join(t, &Client{}, &Server{Handle: echo})
	conns := make([]jsonrpc.Conn, count)
	var at atomic.Int64
	times(count, func() { conns[at.Add(1)-1] = open(t, p.client) })
	for n, c := range conns {
		if err := c.Send(numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
	for n, c := range conns {
		if m, err := c.Recv(); err != nil || m.ID != jsonrpc.IntID(int64(n)) {
			t.Fatalf("stream %d: %v, %v", n, m, err)
		}
	}
	for _, c := range conns {
		c.Close()
	}
	onlyControl(t, current(t, p.client))
}

// TestManyBlockedReaders cuts a link under hundreds of blocked readers.
func TestManyBlockedReaders(t *testing.T) {
	p := join(t, &Client{}, &Server{Handle: echo})
	var readers sync.WaitGroup
	for range 300 {
		c := open(t, p.client)
		readers.Go(func() { wantEnd(t, c, "link lost", true) })
	}
	p.near.Close()
	readers.Wait()
}

// TestCarrierClosesFirst checks the order in which a link is closed: yamux's
// Close alone would keep blocked readers spinning until its own reader is out.
func TestCarrierClosesFirst(t *testing.T) {
	near, _ := net.Pipe()
	spy := &closeSpy{Conn: near}
	l, err := newLink(spy, yamux.Client, newConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	spy.closing = l.y.IsClosed
	if err := l.close(io.EOF); !errors.Is(err, io.EOF) || !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("close: %v, want ErrClosed and io.EOF", err)
	}
	if spy.late {
		t.Error("the session was closed before its carrier")
	}
}

// closeSpy asks closing at its first Close.
type closeSpy struct {
	net.Conn
	once    sync.Once
	closing func() bool
	late    bool
}

func (s *closeSpy) Close() error {
	s.once.Do(func() { s.late = s.closing() })
	return s.Conn.Close()
}

// stalledLink returns a link whose carrier takes nothing, and the
// carrier's other end, from which nobody reads.
func stalledLink(t *testing.T) (*link, net.Conn) {
	t.Helper()
	config := newConfig(orDiscard(nil))
	config.ConnectionWriteTimeout = time.Second
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	l, err := newLink(near, yamux.Client, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.close(nil) })
	return l, far
}

// TestWriteTimeoutEndsLink has a carrier that takes nothing more: the frame
// that yamux gave up may still go out, so the link must not live on.
func TestWriteTimeoutEndsLink(t *testing.T) {
	t.Parallel()
	l, _ := stalledLink(t)
	y, err := l.y.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(l, y, jsonrpc.Limits{})
	big := padded(200 << 10)
	untilClosed(t, func() error { return c.Send(big) })
	await(t, l.y.CloseChan())
	wantEnd(t, c, "link lost", true)
}

// TestWindowTimeoutEndsLink has a carrier that takes nothing more while there is
// much to read: without the window update that yamux gave up the other side
// could never send again.
func TestWindowTimeoutEndsLink(t *testing.T) {
	t.Parallel()
	l, far := stalledLink(t)
	used, err := l.y.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	stalling, err := l.y.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // one is on its way, one waits for it, and there is no room for the third
		_, err = stalling.Write(make([]byte, coalesceSize))
	}
	if !errors.Is(err, yamux.ErrConnectionWriteTimeout) {
		t.Fatalf("Write to a full carrier: %v", err)
	}
	// One data frame with the flag ACK, of 200 KiB, for the first stream.
	frame := append([]byte{0, 0, 0, 2, 0, 0, 0, byte(used.StreamID()), 0, 3, 0x20, 0}, make([]byte, 200<<10)...)
	if _, err := far.Write(frame); err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() {
		_, err := newConn(l, used, jsonrpc.Limits{}).Recv()
		received <- err
	}()
	await(t, l.y.CloseChan())
	if err := await(t, received); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Recv: %v, want ErrClosed", err)
	}
}

// TestStalledStreamIsAlone has a stream that nobody reads, beside one in use.
func TestStalledStreamIsAlone(t *testing.T) {
	handle, conns := handOver()
	p := join(t, &Client{}, &Server{Handle: handle})
	stalled, busy := open(t, p.client), open(t, p.client)
	a, b := await(t, conns), await(t, conns)
	for _, far := range []jsonrpc.Conn{a, b} {
		go echoing(t.Context(), Hello{}, far)
	}
	big := padded(100 << 10)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		untilClosed(t, func() error { return stalled.Send(big) }) // and never receives
	}()
	for n := range 1000 {
		if err := busy.Send(numbered(n)); err != nil {
			t.Fatal(err)
		}
		if _, err := busy.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	busy.Close()
	stalled.Close()
	await(t, sent)
}

// TestBurstIsForgotten checks that streams do not keep the buffers of their
// largest bursts. It measures the whole process, so no test runs beside it.
func TestBurstIsForgotten(t *testing.T) {
	const count = 40
	p := join(t, &Client{}, &Server{Handle: echo})
	before := inUse()
	for range count {
		c := open(t, p.client)
		if err := c.Send(padded(200 << 10)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(patience)
	for inUse() > before+count*(100<<10) {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams keep %d KiB", count, (inUse()-before)>>10)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestForcedServer stops a server whose handler does not care.
func TestForcedServer(t *testing.T) {
	t.Parallel()
	p := join(t, &Client{}, &Server{Handle: handled(func(_ context.Context, h Hello, c jsonrpc.Conn) error {
		return echoing(context.Background(), h, c)
	})})
	c := open(t, p.client)
	p.stop()
	wantEnd(t, c, "link lost", true)
}

// TestCancelledClient cuts the link.
func TestCancelledClient(t *testing.T) {
	near, far := net.Pipe()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &Client{}
	ends := make(chan error, 2)
	go func() { ends <- (&Server{Handle: echo}).Serve(context.Background(), far) }()
	go func() { ends <- c.Serve(ctx, near) }()
	conn := open(t, c)
	cancel(cause)
	wantEnd(t, conn, "link lost", true)
	if a, b := await(t, ends), await(t, ends); !errors.Is(a, cause) && !errors.Is(b, cause) {
		t.Errorf("Serve returned %v and %v, one must be %v", a, b, cause)
	}
}

// TestGarbageOnCarrier is another protocol: the link ends and nothing is logged
// above debugging.
func TestGarbageOnCarrier(t *testing.T) {
	near, far := net.Pipe()
	var log syncBuffer
	ended := make(chan error, 1)
	go func() {
		s := &Server{Handle: echo, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		ended <- s.Serve(t.Context(), far)
	}()
	io.WriteString(near, "GET / HTTP/1.1\r\n\r\n")
	if err := await(t, ended); !errors.Is(err, jsonrpc.ErrClosed) || !errors.Is(err, yamux.ErrInvalidVersion) {
		t.Errorf("Serve: %v, want ErrClosed and yamux's cause", err)
	}
	near.Close()
	if text := log.String(); !strings.Contains(text, "level=DEBUG msg=yamux") || strings.Contains(text, "level=WARN") {
		t.Errorf("logged %s", text)
	}
}

// TestMessages passes what a stream must not mistake, lose or change.
func TestMessages(t *testing.T) {
	near, far := rawPair(t, newConfig(orDiscard(nil)))
	spoof := jsonrpc.NewNotification("n", []byte("{\"mcp-proxy\":1,\n\"closed\":{\"cause\":\"x\"}}"))
	spoof.Extra = []byte(`,"mcp-proxy":1`)
	related := numbered(1)
	related.Related = jsonrpcID(`"a\nb"`)
	all := []*jsonrpc.Message{spoof, related, numbered(2), {Batch: []*jsonrpc.Message{numbered(3), numbered(4)}}}
	for _, send := range []func() error{
		func() error { return far.SendAll(all) },
		func() error {
			for _, m := range all {
				if err := far.Send(m); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		for _, want := range all {
			got, err := near.Recv()
			if err != nil || !bytes.Equal(got.Append(nil), want.Append(nil)) || got.Related != want.Related {
				t.Fatalf("received %v, %v; want %v", got, err, want)
			}
		}
	}
}

// TestInvalidLines costs a line each, and no more.
func TestInvalidLines(t *testing.T) {
	near, far := rawPair(t, newConfig(orDiscard(nil)))
	near.lines = jsonrpc.NewLineReader(near.stream, jsonrpc.Limits{Message: 100 << 10})
	for _, line := range []string{"nonsense", `{"mcp-proxy":1,"closed":7}`, strings.Repeat("x", 300<<10), `{"jsonrpc":"1.0","id":7,"result":{}}`} {
		go far.out.WriteLines([]byte(line + "\n" + `{"mcp-proxy":1,"later":true}` + "\n" + `{"jsonrpc":"2.0","method":"n"}` + "\n"))
		if _, err := near.Recv(); !errors.As(err, new(*jsonrpc.InvalidError)) {
			t.Errorf("%.20s: %v, want an InvalidError", line, err)
		}
		if m, err := near.Recv(); err != nil || m.Method != "n" {
			t.Errorf("after %.20s: %v, %v", line, m, err)
		}
	}
}
