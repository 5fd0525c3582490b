package link

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// BenchmarkRoundTrip sends a message there and back, one at a time.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{300, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := open(b, join(b, &Client{}, &Server{Handle: echo}).client)
			m := padded(size)
			b.SetBytes(int64(2 * size))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Send(m); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Recv(); err != nil {
					b.Fatal(err)
				}
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
