package wsconn

import (
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// acceptKey returns the Sec-WebSocket-Accept for key.
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// newCarrierServer returns the address of a server, and its carriers.
func newCarrierServer(t *testing.T, start func(http.Handler) *httptest.Server) (*httptest.Server, string, <-chan net.Conn) {
	t.Helper()
	carriers := make(chan net.Conn, 16)
	server := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := AcceptCarrier(w, r); err == nil {
			carriers <- c
		}
	}))
	t.Cleanup(server.Close)
	return server, "ws" + strings.TrimPrefix(server.URL, "http"), carriers
}

// A pair is the two ends of a carrier.
type pair struct{ near, far net.Conn }

// newPair dials a server. The near end is the client's.
func newPair(t *testing.T, start func(http.Handler) *httptest.Server) pair {
	t.Helper()
	server, url, carriers := newCarrierServer(t, start)
	near, err := DialCarrier(t.Context(), url, nil, trusting(server))
	if err != nil {
		t.Fatal(err)
	}
	p := pair{near, conntest.Await(t, "carrier", carriers)}
	t.Cleanup(func() { p.near.Close(); p.far.Close() })
	return p
}

// eachPair runs fn with fresh pairs: over TCP and TLS, and with either end first.
func eachPair(t *testing.T, fn func(t *testing.T, p pair)) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{"TCP": httptest.NewServer, "TLS": httptest.NewTLSServer} {
		t.Run(name+"/Client", func(t *testing.T) { fn(t, newPair(t, start)) })
		t.Run(name+"/Server", func(t *testing.T) {
			p := newPair(t, start)
			fn(t, pair{p.far, p.near})
		})
	}
}

// Bytes arrive unchanged, in both directions at once, for all sizes of writes and reads, and in several frames.
func TestCarrierOrder(t *testing.T) {
	eachPair(t, func(t *testing.T, p pair) {
		data := make([]byte, 5<<20)
		rand.Read(data)
		original := bytes.Clone(data)
		var wg sync.WaitGroup
		for _, way := range []pair{p, {p.far, p.near}} {
			wg.Go(func() {
				for _, size := range []int{1, 125, 126, 65535, 65536, 65537, carrierPiece + 3, maxCarrierFrame, maxCarrierFrame + 1, len(data)} {
					if n, err := way.near.Write(data[:size]); n != size || err != nil {
						t.Errorf("Write of %d: %d, %v", size, n, err)
					}
				}
			})
			wg.Go(func() {
				for _, size := range []int{1, 125, 126, 65535, 65536, 65537, carrierPiece + 3, maxCarrierFrame, maxCarrierFrame + 1, len(data)} {
					got := make([]byte, size)
					if _, err := io.ReadFull(way.far, got); err != nil || !bytes.Equal(got, data[:size]) {
						t.Errorf("read of %d: %v, or other bytes", size, err)
					}
				}
			})
		}
		wg.Wait()
		if !bytes.Equal(data, original) {
			t.Error("Write changed its argument")
		}
	})
}

// Concurrent Writes do not mix.
func TestCarrierConcurrentWrites(t *testing.T) {
	eachPair(t, func(t *testing.T, p pair) {
		const writers, each, size = 8, 50, 3000
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range each {
					if _, err := p.near.Write(bytes.Repeat([]byte{byte(w)}, size)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		record := make([]byte, size)
		for range writers * each {
			if _, err := io.ReadFull(p.far, record); err != nil || bytes.Count(record, record[:1]) != size {
				t.Fatalf("torn record, %v", err)
			}
		}
		wg.Wait()
	})
}

// Data that was written before Close is read, and then io.EOF repeatedly.
func TestCarrierEOF(t *testing.T) {
	eachPair(t, func(t *testing.T, p pair) {
		p.near.Write([]byte("last words"))
		p.near.Close()
		if got, err := io.ReadAll(p.far); string(got) != "last words" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		if n, err := p.far.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("Read after the end: %d, %v", n, err)
		}
		if _, err := p.far.Write([]byte("late")); err == nil {
			t.Error("Write to a peer who took leave did not fail")
		}
	})
}

// Close unblocks Read and Write at both ends.
func TestCarrierCloseUnblocks(t *testing.T) {
	t.Parallel()
	eachPair(t, func(t *testing.T, p pair) {
		written, read, farRead := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() {
			for {
				if _, err := p.near.Write(make([]byte, 100_000)); err != nil {
					written <- err
					return
				}
			}
		}()
		go func() {
			_, err := p.near.Read(make([]byte, 1))
			read <- err
		}()
		awaitStall(t, p.near)
		start := time.Now()
		p.near.Close()
		if err := conntest.Await(t, "end of Write", written); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write returned %v", err)
		}
		if err := conntest.Await(t, "end of Read", read); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read returned %v", err)
		}
		if took := time.Since(start); took > 3*time.Second { // TLS alone would wait for 5 s
			t.Errorf("Close took %v", took)
		}
		go func() {
			_, err := io.Copy(io.Discard, p.far)
			farRead <- err
		}()
		conntest.Await(t, "end of the other side's Read", farRead)
		for range 2 {
			p.near.Close()
		}
		if _, err := p.near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read after Close returned %v", err)
		}
		if _, err := p.near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write after Close returned %v", err)
		}
	})
}

// awaitStall waits until the peer's buffers are full, so that a Write holds the lock for long.
func awaitStall(t *testing.T, c net.Conn) {
	held := 0
	conntest.Eventually(t, "a blocked Write", func() bool {
		time.Sleep(5 * time.Millisecond)
		if w := &c.(*carrier).writing; w.TryLock() {
			w.Unlock()
			held = 0
		} else {
			held++
		}
		return held == 40
	})
}

func TestCarrierNetConn(t *testing.T) {
	p := newPair(t, httptest.NewServer)
	if err := errors.Join(p.near.SetDeadline(time.Now()), p.near.SetReadDeadline(time.Now()), p.near.SetWriteDeadline(time.Now())); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("deadlines: %v", err)
	}
	if p.near.LocalAddr().String() != p.far.RemoteAddr().String() || p.near.RemoteAddr().String() != p.far.LocalAddr().String() {
		t.Errorf("%v – %v, %v – %v", p.near.LocalAddr(), p.near.RemoteAddr(), p.far.RemoteAddr(), p.far.LocalAddr())
	}
	if n, err := p.near.Write(nil); n != 0 || err != nil {
		t.Errorf("empty Write: %d, %v", n, err)
	}
	if n, err := p.near.Read(nil); n != 0 || err != nil {
		t.Errorf("empty Read: %d, %v", n, err)
	}
}

// Both ends need the subprotocol.
func TestCarrierSubprotocol(t *testing.T) {
	_, url, _ := newCarrierServer(t, httptest.NewServer)
	for _, offered := range [][]string{nil, {"mcp"}} {
		dialer := websocket.Dialer{Subprotocols: offered}
		_, resp, err := dialer.Dial(url, nil)
		if err == nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("offering %q: %v", offered, err)
		}
	}
	if _, err := (Config{}).Dial(t.Context(), url, nil, nil); err == nil || err.Error() != "HTTP 400" {
		t.Errorf("a Conn to a carrier: %v", err)
	}
	url, conns := newForeignServer(t, websocket.Upgrader{})
	if _, err := DialCarrier(t.Context(), url, nil, nil); !errors.Is(err, errSubprotocol) {
		t.Errorf("a carrier to any WebSocket: %v", err)
	}
	conntest.Await(t, "connection", conns).Close()
}

// foreignCarriers runs fn with a carrier of ours and a foreign peer, in both roles.
func foreignCarriers(t *testing.T, fn func(t *testing.T, c net.Conn, peer *websocket.Conn)) {
	t.Run("Server", func(t *testing.T) {
		_, url, carriers := newCarrierServer(t, httptest.NewServer)
		dialer := websocket.Dialer{Subprotocols: []string{subprotocolLink}}
		peer, _, err := dialer.Dial(url, nil)
		if err != nil {
			t.Fatal(err)
		}
		withForeign(t, conntest.Await(t, "carrier", carriers), peer, fn)
	})
	t.Run("Client", func(t *testing.T) {
		url, conns := newForeignServer(t, websocket.Upgrader{Subprotocols: []string{subprotocolLink}})
		c, err := DialCarrier(t.Context(), url, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		withForeign(t, c, conntest.Await(t, "connection", conns), fn)
	})
}

func withForeign(t *testing.T, c net.Conn, peer *websocket.Conn, fn func(*testing.T, net.Conn, *websocket.Conn)) {
	t.Helper()
	defer c.Close()
	defer peer.Close()
	peer.SetReadDeadline(time.Now().Add(conntest.Patience))
	fn(t, c, peer)
}

// One Write is one frame. Fragments and empty frames are accepted.
func TestCarrierForeignPeer(t *testing.T) {
	foreignCarriers(t, func(t *testing.T, c net.Conn, peer *websocket.Conn) {
		big := bytes.Repeat([]byte("0123456789"), 20_000)
		go c.Write(big)
		if kind, data, err := peer.ReadMessage(); kind != websocket.BinaryMessage || !bytes.Equal(data, big) {
			t.Errorf("peer read %d, %d bytes, %v", kind, len(data), err)
		}
		peer.WriteMessage(websocket.BinaryMessage, nil)
		w, _ := peer.NextWriter(websocket.BinaryMessage)
		for range 10 {
			w.Write(bytes.Repeat([]byte("x"), 5000))
		}
		w.Close()
		got := make([]byte, 50_000)
		if _, err := io.ReadFull(c, got); err != nil || strings.Trim(string(got), "x") != "" {
			t.Errorf("read %v, or other bytes", err)
		}
		peer.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Time{})
		if n, err := c.Read(got); n != 0 || err != io.EOF {
			t.Errorf("Read returned %d, %v, want io.EOF", n, err)
		}
		wantCode(t, peer, 1000)
	})
}

func TestCarrierAnswersPings(t *testing.T) {
	foreignCarriers(t, func(t *testing.T, c net.Conn, peer *websocket.Conn) {
		go io.Copy(io.Discard, c)
		pongs := make(chan string, 1)
		peer.SetPongHandler(func(data string) error { pongs <- data; return nil })
		peer.WriteControl(websocket.PingMessage, []byte("are you there"), time.Time{})
		go peer.ReadMessage()
		if data := conntest.Await(t, "pong", pongs); data != "are you there" {
			t.Errorf("pong carries %q", data)
		}
	})
}

// frame returns a frame of the peer of c: a client masks it with zeros.
func frame(c net.Conn, first byte, payload []byte, size uint64) []byte {
	b := []byte{first, 127}
	b = binary.BigEndian.AppendUint64(b, size)
	if !c.(*carrier).masks {
		b[1] |= 0x80
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

// Invalid frames end the carrier with a matching code.
func TestHostileCarrierPeer(t *testing.T) {
	for name, tt := range map[string]struct {
		send  func(c net.Conn, peer *websocket.Conn)
		code  int
		cause error
	}{
		"Text": {func(_ net.Conn, peer *websocket.Conn) {
			peer.WriteMessage(websocket.TextMessage, []byte("hello"))
		}, 1003, errText},
		"OverLimit": {func(_ net.Conn, peer *websocket.Conn) {
			peer.WriteMessage(websocket.BinaryMessage, make([]byte, maxCarrierFrame+1))
		}, 1009, ErrTooLarge},
		"100MiBByHeader": {func(c net.Conn, peer *websocket.Conn) {
			peer.NetConn().Write(frame(c, 0x82, nil, 100<<20))
		}, 1009, ErrTooLarge},
		"WrongMask": {func(c net.Conn, peer *websocket.Conn) {
			b := frame(c, 0x82, nil, 1)
			b[1] ^= 0x80
			peer.NetConn().Write(b)
		}, 1002, nil},
		"Reserved": {func(c net.Conn, peer *websocket.Conn) {
			peer.NetConn().Write(frame(c, 0xf2, nil, 1))
		}, 1002, nil},
	} {
		t.Run(name, func(t *testing.T) {
			foreignCarriers(t, func(t *testing.T, c net.Conn, peer *websocket.Conn) {
				peer.WriteMessage(websocket.BinaryMessage, []byte("ok"))
				go tt.send(c, peer)
				got, err := io.ReadAll(c)
				if !strings.HasPrefix(string(got), "ok") || !errors.Is(err, jsonrpc.ErrClosed) || tt.cause != nil && !errors.Is(err, tt.cause) {
					t.Errorf("read %d bytes, %v, want %v", len(got), err, tt.cause)
				}
				if _, err := c.Write([]byte("x")); err == nil {
					t.Error("Write after the end did not fail")
				}
				wantCode(t, peer, tt.code)
			})
		})
	}
}

// A peer that resets the connection is not io.EOF.
func TestCarrierPeerDies(t *testing.T) {
	foreignCarriers(t, func(t *testing.T, c net.Conn, peer *websocket.Conn) {
		half := frame(c, 0x82, []byte("ab"), 5)
		peer.NetConn().Write(half)
		peer.NetConn().Close()
		got, err := io.ReadAll(c)
		if string(got) != "ab" || !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("read %q, %v, want an error that is no clean end", got, err)
		}
	})
	foreignCarriers(t, func(t *testing.T, c net.Conn, peer *websocket.Conn) {
		peer.NetConn().Close()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
			t.Errorf("Read returned %d, %v, want an error that is no clean end", n, err)
		}
	})
}
