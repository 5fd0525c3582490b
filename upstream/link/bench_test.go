package link

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// wires are the carriers that benchmarks compare.
var wires = []string{"pipe", "unix", "tcp", "tls", "ws"}

// wired returns a Client that is linked to an echo over a carrier.
func wired(b *testing.B, name string) *Client {
	c, s := &Client{}, &Server{Handle: echo}
	for _, wire := range carriers {
		if wire.name == name {
			listen, dial := wire.endpoints(b)
			l, dial := listenAt(b, listen, dial)
			near, far := connect(b, l, dial)
			return joinOver(b, c, s, near, far).client
		}
	}
	return join(b, c, s).client
}

// BenchmarkRoundTrip sends a message there and back, one at a time.
func BenchmarkRoundTrip(b *testing.B) {
	for _, wire := range wires {
		for _, size := range []int{300, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%d", wire, size), func(b *testing.B) {
				c := open(b, wired(b, wire))
				m := padded(size)
				b.SetBytes(int64(2 * size))
				b.ReportAllocs()
				for b.Loop() {
					call(b, c, m)
				}
			})
		}
	}
}

// BenchmarkManyStreams has 64 streams at once, each sending there and back.
func BenchmarkManyStreams(b *testing.B) {
	for _, wire := range wires {
		b.Run(wire, func(b *testing.B) {
			client := wired(b, wire)
			m := padded(300)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			conns := make([]jsonrpc.Conn, 64)
			for i := range conns {
				conns[i] = open(b, client)
			}
			b.ResetTimer()
			for _, c := range conns {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						call(b, c, m)
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkThousandStreams reports the memory of each of 1,000 streams on one
// link, both ends and their goroutines, after it was used and while both ends
// wait in Recv.
func BenchmarkThousandStreams(b *testing.B) {
	const count = 1000
	for _, wire := range wires {
		b.Run(wire, func(b *testing.B) {
			for range b.N {
				client := wired(b, wire)
				open(b, client).Close()
				before := inUse()
				var readers sync.WaitGroup
				for range count {
					c := open(b, client)
					call(b, c, padded(300))
					readers.Go(func() { c.Recv() })
				}
				b.ReportMetric(float64(inUse()-before)/count, "B/stream")
				b.ReportMetric(0, "ns/op")
				current(b, client).carrier.Close()
				readers.Wait()
			}
		})
	}
}

// BenchmarkOpen opens a stream, and closes it.
func BenchmarkOpen(b *testing.B) {
	p := join(b, &Client{}, &Server{Handle: echo})
	b.ReportAllocs()
	for b.Loop() {
		c, err := p.client.Open(b.Context(), hello)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkIdleStream reports the memory of a stream, both ends and their
// goroutines, after it was used and while both ends wait in Recv.
func BenchmarkIdleStream(b *testing.B) {
	for _, size := range []int{300, 200 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := join(b, &Client{}, &Server{Handle: echo})
			before := inUse()
			var readers sync.WaitGroup
			for b.Loop() {
				c := open(b, p.client)
				if err := c.Send(padded(size)); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Recv(); err != nil {
					b.Fatal(err)
				}
				readers.Go(func() { c.Recv() })
			}
			time.Sleep(2 * shrinkAfter) // idle is what has been idle for a moment
			b.ReportMetric(float64(inUse()-before)/float64(b.N), "B/stream")
			b.ReportMetric(0, "ns/op")
			p.near.Close()
			readers.Wait()
		})
	}
}

// inUse returns the bytes of the heap and of stacks that are in use.
func inUse() uint64 {
	runtime.GC()
	runtime.GC() // the first one only moves pools to their victim
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}
