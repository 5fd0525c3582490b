package main

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
	(&collection{set: func(p int) int { return int(percent.Swap(int64(p))) }, rest: &rest{after: time.Hour}}).over()
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

var kept []byte

// Memory is given back when the program is at rest, and not before, and once.
func TestGivesBack(t *testing.T) {
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		given := 0
		r := &rest{after: time.Second, give: func() {
			given++
			kept = nil
			debug.FreeOSMemory()
		}}
		r.await()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		before := given // other tests may have left something
		kept = make([]byte, 8<<20)
		r.await()
		r.await()
		time.Sleep(time.Second / 2)
		kept = make([]byte, 8<<20) // it is busy
		time.Sleep(time.Second)
		synctest.Wait()
		if given != before {
			t.Error("memory was given back by a busy program")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if given != before+1 {
			t.Errorf("memory was given back %d times", given-before)
		}
		r.await()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if given != before+1 {
			t.Error("memory was given back although there was none")
		}
	})
}
