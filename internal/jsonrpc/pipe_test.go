package jsonrpc_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestPipeHalfClose(t *testing.T) {
	a, b := jsonrpc.Pipe()
	m := jsonrpc.NewNotification("last", nil)
	if err := a.Send(m); err != nil {
		t.Fatal(err)
	}
	a.CloseWrite()
	a.CloseWrite()
	if got, err := b.Recv(); got != m || err != nil {
		t.Errorf("what was sent before the half-close: %v, %v", got, err)
	}
	for range 2 {
		if _, err := b.Recv(); err != io.EOF {
			t.Errorf("Recv at the half-close: %v, want io.EOF", err)
		}
	}
	if err := a.Send(m); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send after the own half-close: %v", err)
	}
	answer := jsonrpc.NewNotification("answer", nil)
	if err := b.Send(answer); err != nil {
		t.Errorf("Send towards the half-closed side: %v", err)
	}
	if got, err := a.Recv(); got != answer || err != nil {
		t.Errorf("the half-closed side received %v, %v", got, err)
	}
	b.Close()
	if _, err := a.Recv(); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Recv after the other side's Close: %v", err)
	}
}

func TestLineConnHalfClose(t *testing.T) {
	r, w := io.Pipe()
	var out counter
	out.good = 1
	c := jsonrpc.NewLineConn(r, &out, jsonrpc.Limits{}, r.Close)
	defer c.Close()
	go w.Close()
	if _, err := c.Recv(); err != io.EOF {
		t.Errorf("Recv at the end of input: %v, want io.EOF", err)
	}
	if err := c.Send(jsonrpc.NewNotification("answer", nil)); err != nil {
		t.Errorf("Send after the end of input: %v", err)
	}
}

func TestCloseWith(t *testing.T) {
	cause := &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3), Delivered: true}
	a, b := jsonrpc.Pipe()
	if err := jsonrpc.CloseWith(a, cause); err != nil {
		t.Error(err)
	}
	if _, err := b.Recv(); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("other side: %v", err)
	}
	told := &causeConn{Conn: a}
	jsonrpc.CloseWith(told, cause)
	if told.cause != error(cause) {
		t.Errorf("told %v", told.cause)
	}
}

type causeConn struct {
	jsonrpc.Conn
	cause error
}

func (c *causeConn) CloseCause(err error) error { c.cause = err; return nil }

// The error is the same, whichever side closed, and whichever noticed.
func TestRaceE_OneClosedError(t *testing.T) {
	for _, err := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed,
		&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		&os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE},
	} {
		if !errors.Is(jsonrpc.Closed(err), jsonrpc.ErrClosed) || !errors.Is(jsonrpc.Closed(err), err) {
			t.Errorf("%v is no end", err)
		}
	}
	for _, err := range []error{
		jsonrpc.Closed(nil), jsonrpc.Closed(io.EOF), &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost},
		jsonrpc.Closed(jsonrpc.Closed(io.ErrClosedPipe)),
	} {
		if !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("%v is not ErrClosed", err)
		}
	}
	if once := jsonrpc.Closed(io.EOF); jsonrpc.Closed(once) != once || !errors.Is(once, io.EOF) {
		t.Error("an end is wrapped twice, or its cause is lost")
	}
}
