package frontend

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc/conntest"
)

// newStdio returns a Stdio and the client's ends of its pipes.
func newStdio(t *testing.T) (s *Stdio, stdin, stdout *os.File) {
	t.Helper()
	in, stdin, err1 := os.Pipe()
	stdout, out, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	s = NewStdio(in, out, jsonrpc.Limits{})
	t.Cleanup(func() {
		s.Close()
		stdin.Close()
		stdout.Close()
	})
	return s, stdin, stdout
}

func TestStdioIsConn(t *testing.T) {
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		s, stdin, stdout := newStdio(t)
		client := jsonrpc.NewLineConn(stdout, stdin, jsonrpc.Limits{}, func() error {
			return errors.Join(stdin.Close(), stdout.Close())
		})
		return s, client
	})
}

// After the end of stdin the client still gets its answers, and Recv tells when
// it is gone.
func TestD02_StdioHalfClose(t *testing.T) {
	s, stdin, stdout := newStdio(t)
	io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"a"}`+"\n"+`{"jsonrpc":"2.0","id":2,"method":"b"}`)
	stdin.Close()
	for _, want := range []string{"a", "b"} { // the second without a newline
		if m := recv(t, s); m.Method != want {
			t.Errorf("received %s, want %s", m.Append(nil), want)
		}
	}
	if _, err := recvOrEnd(t, s); err != io.EOF {
		t.Fatalf("Recv at the end of stdin: %v, want io.EOF", err)
	}
	end := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		end <- err
	}()
	lines := jsonrpc.NewLineReader(stdout, jsonrpc.Limits{})
	for id := range int64(3) {
		if err := s.Send(jsonrpc.NewResult(jsonrpc.IntID(id), []byte("{}"))); err != nil {
			t.Errorf("Send after the half-close: %v", err)
		}
		if m, err := lines.Read(); err != nil || m.ID != jsonrpc.IntID(id) {
			t.Errorf("client reads %v, %v", m, err)
		}
	}
	select {
	case err := <-end:
		t.Errorf("Recv returned %v while the client was there", err)
	default:
	}
	stdout.Close()
	if err := await(t, "end of Recv", end); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Recv after stdout broke: %v", err)
	}
	if err := s.Send(jsonrpc.NewNotification("late", nil)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send after stdout broke: %v", err)
	}
}

func TestStdioCloseAfterHalfClose(t *testing.T) {
	s, stdin, _ := newStdio(t)
	stdin.Close()
	if _, err := recvOrEnd(t, s); err != io.EOF {
		t.Fatalf("Recv at the end of stdin: %v", err)
	}
	during(t, func() {
		if _, err := recvOrEnd(t, s); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Recv during Close: %v", err)
		}
	}, func() { s.Close() })
}

// Both ends at once, with answers on the way: gone, whichever shows first.
func TestD01_StdioFullClose(t *testing.T) {
	s, stdin, stdout := newStdio(t)
	stdin.Close()
	stdout.Close()
	if _, err := recvOrEnd(t, s); err != io.EOF {
		t.Errorf("Recv: %v, want io.EOF", err)
	}
	wantGone(t, s)
}

// A broken stdout shows in a Send, and then ends Recv, though stdin is open.
func TestStdioBrokenStdout(t *testing.T) {
	s, _, stdout := newStdio(t)
	stdout.Close()
	if err := s.Send(jsonrpc.NewNotification("a", nil)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	wantGone(t, s)
}

func TestStdioInvalidLine(t *testing.T) {
	s, stdin, _ := newStdio(t)
	io.WriteString(stdin, "garbage\n"+`{"jsonrpc":"2.0","method":"next"}`+"\n")
	if _, err := recvOrEnd(t, s); !isInvalid(err) {
		t.Errorf("Recv returned %v, want an InvalidError", err)
	}
	if m := recv(t, s); m.Method != "next" {
		t.Errorf("received %s", m.Append(nil))
	}
}

// What Send accepted is there after Close, however much that is.
func TestStdioCloseKeepsWhatWasSent(t *testing.T) {
	s, _, stdout := newStdio(t)
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
	if got := await(t, "end of stdout", text); got != want.String() {
		t.Errorf("client read %d bytes, want %d", len(got), want.Len())
	}
}
