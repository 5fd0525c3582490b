package jsonrpc_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

func TestPipeIsConn(t *testing.T) {
	conntest.Run(t, func(*testing.T) (a, b jsonrpc.Conn) { return jsonrpc.Pipe() })
}

func TestLineConnIsConn(t *testing.T) {
	carriers := map[string]func(t *testing.T) (a, b io.ReadWriteCloser){
		"NetPipe": func(*testing.T) (a, b io.ReadWriteCloser) { return net.Pipe() },
		"OSPipe":  osPipes,
		"TCP":     tcpPair,
	}
	for name, carrier := range carriers {
		t.Run(name, func(t *testing.T) {
			conntest.Run(t, func(t *testing.T) (jsonrpc.Conn, jsonrpc.Conn) {
				a, b := carrier(t)
				return jsonrpc.NewLineConn(a, a, jsonrpc.Limits{}, a.Close), jsonrpc.NewLineConn(b, b, jsonrpc.Limits{}, b.Close)
			})
		})
	}
}

// duplex is a pair of files as one carrier.
type duplex struct {
	io.Reader
	io.Writer
	in, out *os.File
}

func (d *duplex) Close() error { return errors.Join(d.in.Close(), d.out.Close()) }

func osPipes(t *testing.T) (a, b io.ReadWriteCloser) {
	t.Helper()
	ar, bw, err1 := os.Pipe()
	br, aw, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &duplex{ar, aw, ar, aw}, &duplex{br, bw, br, bw}
}

func tcpPair(t *testing.T) (a, b io.ReadWriteCloser) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}
