package wsconn

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/gorilla/websocket"
)

// newEchoServer returns the address of an echo server. It ends with the benchmark, after its clients.
func newEchoServer(b *testing.B) string {
	b.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Config{}.Accept(w, r, nil)
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			echo(c)
		}()
	}))
	b.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// BenchmarkWebSocket measures calls with several in flight.
func BenchmarkWebSocket(b *testing.B) {
	for _, inFlight := range []int{1, 64} {
		b.Run(fmt.Sprint(inFlight), func(b *testing.B) {
			client, _, err := websocket.DefaultDialer.Dial("ws://"+newEchoServer(b), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			request := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}`)
			b.ReportAllocs()
			b.ResetTimer()
			for sent, received := 0, 0; received < b.N; received++ {
				for ; sent < b.N && sent < received+inFlight; sent++ {
					client.WriteMessage(websocket.TextMessage, request)
				}
				if _, _, err := client.ReadMessage(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWebSocketMemory reports the memory of each of 1,000 idle clients: heap and stacks, after an exchange. The
// clients are in this process, but bare sockets need hardly more than their descriptors.
func BenchmarkWebSocketMemory(b *testing.B) {
	const clients = 1000
	addr := newEchoServer(b)
	for b.Loop() {
		before := inUse()
		var sockets [clients]net.Conn
		for i := range sockets {
			sockets[i] = dialBare(b, addr)
		}
		b.ReportMetric(float64(inUse()-before)/clients, "B/client")
		for _, s := range sockets {
			s.Close()
		}
	}
}

// dialBare upgrades by hand and exchanges one message.
func dialBare(b *testing.B, addr string) net.Conn {
	b.Helper()
	socket, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	fmt.Fprintf(socket, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", addr)
	r := bufio.NewReader(socket)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		if line == "\r\n" {
			break
		}
	}
	text := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	socket.Write(append([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)) // masked with zeros
	if _, err := io.ReadFull(r, make([]byte, 2+len(`{"jsonrpc":"2.0","id":1,"result":{}}`))); err != nil {
		b.Fatal(err)
	}
	return socket
}

// inUse returns the bytes of heap and stacks after a collection.
func inUse() int {
	runtime.GC()
	runtime.GC() // the first collection leaves the contents of pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}
