package conntest

import (
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Patience is how long a test waits for an event.
const Patience = 20 * time.Second

// Await receives from a channel, for at most Patience.
func Await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Patience):
		t.Fatalf("no %s within %v", what, Patience)
		panic("unreachable")
	}
}

// Eventually waits until ok returns true.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// During runs second while first runs, and waits for both.
func During(t *testing.T, first, second func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		second()
	}()
	first()
	Await(t, "end of the other side", done)
}

// Recv returns the next message of a Conn, which must come soon.
func Recv(t *testing.T, c jsonrpc.Conn) *jsonrpc.Message {
	t.Helper()
	m, err := RecvOrEnd(t, c)
	if err != nil {
		t.Fatalf("Recv: %v", err)
	}
	return m
}

// RecvOrEnd returns the result of Recv of a Conn, which must come soon.
func RecvOrEnd(t *testing.T, c jsonrpc.Conn) (*jsonrpc.Message, error) {
	t.Helper()
	type result struct {
		m   *jsonrpc.Message
		err error
	}
	got := make(chan result, 1)
	go func() {
		m, err := c.Recv()
		got <- result{m, err}
	}()
	r := Await(t, "message", got)
	return r.m, r.err
}
