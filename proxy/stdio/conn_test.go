package stdio

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// newConn returns a Conn and the client's ends of its pipes.
func newConn(t *testing.T) (s *Conn, stdin, stdout *os.File) {
	t.Helper()
	in, stdin, err1 := os.Pipe()
	stdout, out, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	s = New(in, out, jsonrpc.Limits{})
	t.Cleanup(func() {
		s.Close()
		stdin.Close()
		stdout.Close()
	})
	return s, stdin, stdout
}

func TestIsConn(t *testing.T) {
	t.Parallel()
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		s, stdin, stdout := newConn(t)
		client := jsonrpc.NewLineConn(stdout, stdin, jsonrpc.Limits{}, func() error {
			return errors.Join(stdin.Close(), stdout.Close())
		})
		return s, client
	})
}

func TestCloseAfterHalfClose(t *testing.T) {
	s, stdin, _ := newConn(t)
	stdin.Close()
	if _, err := conntest.RecvOrEnd(t, s); err != io.EOF {
		t.Fatalf("Recv at the end of stdin: %v", err)
	}
	conntest.During(t, func() {
		if _, err := conntest.RecvOrEnd(t, s); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Recv during Close: %v", err)
		}
	}, func() { s.Close() })
}

// A broken stdout fails Send, and then ends Recv, although stdin is open.
func TestBrokenStdout(t *testing.T) {
	s, _, stdout := newConn(t)
	stdout.Close()
	if err := s.Send(jsonrpc.NewNotification("a", nil)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	wantGone(t, s)
}

func TestInvalidLine(t *testing.T) {
	s, stdin, _ := newConn(t)
	io.WriteString(stdin, "garbage\n"+`{"jsonrpc":"2.0","method":"next"}`+"\n")
	_, err := conntest.RecvOrEnd(t, s)
	if _, invalid := errors.AsType[*jsonrpc.InvalidError](err); !invalid {
		t.Errorf("Recv returned %v, want an InvalidError", err)
	}
	if m := conntest.Recv(t, s); m.Method != "next" {
		t.Errorf("received %s", m.Append(nil))
	}
}

// Messages that Send accepted are written before Close returns, however large they are.
func TestCloseKeepsWhatWasSent(t *testing.T) {
	s, _, stdout := newConn(t)
	text := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(stdout)
		text <- string(all)
	}()
	var want strings.Builder
	for range 20 {
		m := sized(100_000)
		if err := s.Send(m); err != nil {
			t.Error(err)
		}
		want.Write(append(m.Append(nil), '\n'))
	}
	s.Close()
	if got := conntest.Await(t, "end of stdout", text); got != want.String() {
		t.Errorf("client read %d bytes, want %d", len(got), want.Len())
	}
}

func wantGone(t *testing.T, c jsonrpc.Conn) {
	t.Helper()
	for range 2 {
		if m, err := conntest.RecvOrEnd(t, c); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Recv returned %v, %v, want an error wrapping ErrClosed", m, err)
		}
	}
	if err := c.Send(jsonrpc.NewNotification("late", nil)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send returned %v, want an error wrapping ErrClosed", err)
	}
}

// sized returns a message that is size bytes larger than the smallest.
func sized(size int) *jsonrpc.Message {
	return jsonrpc.NewNotification("a", json.RawMessage(`["`+strings.Repeat("x", size)+`"]`))
}
