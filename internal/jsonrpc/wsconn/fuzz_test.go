package wsconn

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A recording is a socket from which certain bytes come.
type recording struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (r *recording) Read(p []byte) (int, error)       { return r.in.Read(p) }
func (r *recording) Write(p []byte) (int, error)      { return r.out.Write(p) }
func (r *recording) Close() error                     { return nil }
func (r *recording) SetDeadline(time.Time) error      { return nil }
func (r *recording) SetReadDeadline(time.Time) error  { return nil }
func (r *recording) SetWriteDeadline(time.Time) error { return nil }

// Hijack implements http.Hijacker for upgrades of a recording.
func (u upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return u.socket, bufio.NewReadWriter(bufio.NewReader(bytes.NewReader(nil)), bufio.NewWriter(io.Discard)), nil
}

type upgrade struct {
	*httptest.ResponseRecorder
	socket *recording
}

// request is one for an upgrade, and what writes its answer.
func request(subprotocol string, frames []byte) (upgrade, *http.Request) {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Sec-Websocket-Protocol": {subprotocol},
	}
	return upgrade{httptest.NewRecorder(), &recording{in: bytes.NewReader(frames)}}, r
}

var seeds = []string{
	"\x81\x82\x00\x00\x00\x00{}",
	"\x81\xa9\x01\x02\x03\x04" + string(masked(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)),
	"\x01\x81\x00\x00\x00\x00{\x89\x80\x00\x00\x00\x00\x80\x81\x00\x00\x00\x00}",
	"\x82\x85\x00\x00\x00\x00hello\x82\x80\x00\x00\x00\x00\x88\x82\x00\x00\x00\x00\x03\xe8",
	"\x82\xff\x00\x00\x00\x00\x00\x10\x00\x01\x00\x00\x00\x00",
	"\x81\xfe\x10\x00\x00\x00\x00\x00",
	"\x88\x80\x00\x00\x00\x00", "\x8a\x81\x00\x00\x00\x00p", "\x83\x80", "\x81\x02{}",
}

func masked(text string) []byte {
	b := []byte(text)
	(&framer{masks: true}).mask(b, []byte{1, 2, 3, 4})
	return b
}

// Whatever a client sends, a Conn ends, and what it answers are close frames and
// pongs.
func FuzzConnReads(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frames []byte) {
		w, r := request("mcp", frames)
		const limit = 1000
		c, err := Config{Limits: jsonrpc.Limits{Message: limit}}.Accept(w, r, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w.socket.out.Reset()
		for {
			m, err := c.Recv()
			if err != nil && !isInvalid(err) {
				if !errors.Is(err, jsonrpc.ErrClosed) {
					t.Errorf("Recv returned %v", err)
				}
				break
			}
			if m != nil && m.Size() > 2*limit {
				t.Errorf("message of %d bytes", m.Size())
			}
		}
		wantControls(t, w.socket.out.Bytes())
	})
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*jsonrpc.InvalidError](err)
	return ok
}

// wantControls checks that b is frames which a server may send here.
func wantControls(t *testing.T, b []byte) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 2 || b[0] != 0x88 && b[0] != 0x8a || b[1] > 125 || len(b) < 2+int(b[1]) {
			t.Errorf("wrote % x", b)
			return
		}
		b = b[2+int(b[1]):]
	}
}

// Whatever a client sends, a carrier yields no more bytes than came, and ends.
func FuzzCarrierReads(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frames []byte) {
		w, r := request(subprotocolLink, frames)
		c, err := AcceptCarrier(w, r)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w.socket.out.Reset()
		data, err := io.ReadAll(c)
		if len(data) > len(frames) {
			t.Errorf("%d bytes of %d", len(data), len(frames))
		}
		if err != nil && !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Read returned %v", err)
		}
		wantControls(t, w.socket.out.Bytes())
	})
}
