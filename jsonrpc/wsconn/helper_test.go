package wsconn

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// await receives from a channel with patience.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

// during runs the second function while the first runs, and waits for both.
func during(t *testing.T, first, second func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		second()
	}()
	first()
	await(t, "end of the other side", done)
}

// recv returns the next message of a Conn, which must be there soon.
func recv(t *testing.T, c jsonrpc.Conn) *jsonrpc.Message {
	t.Helper()
	m, err := recvOrEnd(t, c)
	if err != nil {
		t.Fatalf("Recv: %v", err)
	}
	return m
}

func recvOrEnd(t *testing.T, c jsonrpc.Conn) (*jsonrpc.Message, error) {
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
	r := await(t, "message", got)
	return r.m, r.err
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// wantText compares a message with its JSON text.
func wantText(t *testing.T, m *jsonrpc.Message, want string) {
	t.Helper()
	if got := string(m.Append(nil)); got != want {
		t.Errorf("received %.200s, want %.200s", got, want)
	}
}

// echo answers requests with their params until c ends.
func echo(c jsonrpc.Conn) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if result := m.Params; m.IsRequest() && result != nil {
			c.Send(jsonrpc.NewResult(m.ID, result))
		} else if m.IsRequest() {
			c.Send(jsonrpc.NewResult(m.ID, json.RawMessage("{}")))
		}
	}
}
