package main

import (
	"runtime"
	"sync/atomic"
	"testing"
)

func TestPercentFor(t *testing.T) {
	const mib = 1 << 20
	for used, want := range map[uint64]int{
		0: 400, mib: 400, 100 * mib: 400, 128 * mib: 300, 256 * mib: 100, 512 * mib: 100, 10_000 * mib: 100,
	} {
		if got := percentFor(used); got != want {
			t.Errorf("%d MiB: %d, want %d", used/mib, got, want)
		}
	}
}

// GOGC follows the memory in use.
func TestCollection(t *testing.T) {
	var percent atomic.Int64
	(&collection{set: func(p int) int { return int(percent.Swap(int64(p))) }}).over()
	becomes := func(want int64) {
		t.Helper()
		for range 100 { // the finalizer runs soon after a cycle, and may be some cycles late
			if percent.Load() == want {
				return
			}
			runtime.GC()
		}
		t.Fatalf("GOGC %d after 100 collections, want %d", percent.Load(), want)
	}
	becomes(gcPercent)
	much := make([]byte, 300<<20) // untouched, so it takes no memory
	becomes(goPercent)
	runtime.KeepAlive(much)
	becomes(gcPercent)
}
