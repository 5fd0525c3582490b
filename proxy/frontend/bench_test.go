package frontend

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkPost measures the round trip of a call of 300 bytes on keep-alive connections, with an
// echo instead of the proxy. The client is minimal, so that the benchmark measures the server.
func BenchmarkPost(b *testing.B) {
	benchmarkPosts(b, func(b *testing.B, addr string) func([]byte, int64) []byte {
		session := benchSession(b, addr)
		return func(out []byte, id int64) []byte { return benchRequest(out, session, id) }
	})
}

// BenchmarkModernPOST is BenchmarkPost for a client without a session.
func BenchmarkModernPOST(b *testing.B) {
	benchmarkPosts(b, func(*testing.B, string) func([]byte, int64) []byte { return benchModern })
}

// benchmarkPosts measures the requests that the second function appends. The first is called once,
// with the server's address.
func benchmarkPosts(b *testing.B, begin func(*testing.B, string) func([]byte, int64) []byte) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("inFlight=%d", clients), func(b *testing.B) { benchmarkPost(b, clients, begin) })
	}
}

func benchmarkPost(b *testing.B, clients int, begin func(*testing.B, string) func([]byte, int64) []byte) {
	h := &HTTP{Serve: untilDone(echo), ServePrincipal: principal(echo)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	defer server.Close()
	defer h.Close()
	request := begin(b, l.Addr().String())

	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range clients {
		wg.Go(func() {
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			var out []byte
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				out = request(out[:0], n)
				conn.Write(out)
				if err := skipResponse(r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func benchSession(b *testing.B, addr string) string {
	req, _ := http.NewRequest(http.MethodPost, "http://"+addr+"/mcp", strings.NewReader(strings.Replace(initializeText, "%", "2025-11-25", 1)))
	req.Header.Set("Content-Type", typeJSON)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return resp.Header.Get(headerSession)
}

var benchPad = strings.Repeat("x", 200)

func benchRequest(b []byte, session string, id int64) []byte {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"text":"%s"}}}`, id, benchPad)
	return fmt.Appendf(b, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nMcp-Session-Id: %s\r\nMCP-Protocol-Version: 2025-11-25\r\n"+
		"Content-Length: %d\r\n\r\n%s", session, len(body), body)
}

func benchModern(b []byte, id int64) []byte {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"text":"%s"},%s}}`, id, benchPad, metaText)
	return fmt.Appendf(b, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"+
		"Mcp-Name: echo\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// skipResponse reads one response with Content-Length.
func skipResponse(r *bufio.Reader) error {
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			_, err := io.CopyN(io.Discard, r, int64(length))
			return err
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
}
