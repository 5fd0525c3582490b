package link

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// slowLines opens streams on one link whose proxy begins a large line on each, and returns both
// ends of each and what becomes of them at the host. The first is there for other things.
func slowLines(t *testing.T, n int, within time.Duration) (near []*conn, far []*conn, ends chan error) {
	a, b := tcpPair(t)
	first, host := rawPairOver(t, newConfig(orDiscard(nil)), a, b)
	l := host.stream.link
	l.within = within
	near, far, ends = []*conn{first}, []*conn{host}, make(chan error, n)
	for range n {
		y, err := first.stream.link.y.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(first.stream.link, y, jsonrpc.Limits{})
		if err := c.out.WriteLines([]byte(strings.Repeat(" ", 100<<10))); err != nil {
			t.Fatal(err)
		}
		if y, err = l.y.AcceptStream(); err != nil {
			t.Fatal(err)
		}
		h := newConn(l, y, jsonrpc.Limits{})
		h.host = true
		near, far = append(near, c), append(far, h)
		go func() { _, err := h.Recv(); ends <- err }()
	}
	return near, far, ends
}

func wantFull(t *testing.T, l *link) {
	t.Helper()
	conntest.Eventually(t, "all places are taken", func() bool { return len(l.large) == maxLarge })
}

// Unfinished large lines have so many places on a link. The others wait until one is free.
func TestLargeLinesAreBounded(t *testing.T) {
	near, far, ends := slowLines(t, maxLarge+1, time.Hour)
	wantFull(t, far[0].stream.link)
	for _, c := range near[1:] {
		if err := c.out.WriteLines([]byte(`{"jsonrpc":"2.0","method":"n"}` + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	for range maxLarge + 1 {
		if err := await(t, ends); err != nil {
			t.Error(err)
		}
	}
	if n := len(far[0].stream.link.large); n != 0 {
		t.Errorf("%d places are taken by nobody", n)
	}
}

// A large line that does not come in time, or finds no place, ends its stream, both ends of it
// with the cause, and no other.
func TestSlowLargeLines(t *testing.T) {
	near, far, ends := slowLines(t, maxLarge+4, 100*time.Millisecond)
	for range maxLarge + 4 {
		if err := await(t, ends); !errors.Is(err, errSlowLine) {
			t.Error("the host reads", err)
		}
	}
	for _, c := range near[1:] {
		_, err := c.Recv()
		if end, ok := errors.AsType[*jsonrpc.ClosedError](err); !ok || end.Cause != jsonrpc.CauseTimeout {
			t.Error("the proxy reads", err)
		}
	}
	if err := near[0].Send(numbered(1)); err != nil {
		t.Fatal(err)
	}
	if m, err := far[0].Recv(); err != nil || m.ID != jsonrpc.IntID(1) {
		t.Error(m, err)
	}
	if n := len(far[0].stream.link.large); n != 0 {
		t.Errorf("%d places are taken by nobody", n)
	}
}

// Who waits for a place, or has one, ends with the stream and with the link.
func TestLargeLinesEnd(t *testing.T) {
	_, far, ends := slowLines(t, maxLarge+4, time.Hour)
	wantFull(t, far[0].stream.link)
	for _, c := range far[1:] { // some of them wait
		c.Close()
	}
	for range maxLarge + 4 {
		if err := await(t, ends); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Error(err)
		}
	}
	_, far, ends = slowLines(t, maxLarge+4, time.Hour)
	wantFull(t, far[0].stream.link)
	far[0].stream.link.fail(errLeft)
	for range maxLarge + 4 {
		if end, ok := errors.AsType[*jsonrpc.ClosedError](await(t, ends)); !ok || end.Cause != jsonrpc.CauseLinkLost {
			t.Error(end)
		}
	}
}
