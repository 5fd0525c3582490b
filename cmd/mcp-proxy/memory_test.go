package main

import (
	"runtime"
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
func TestHeapGoal(t *testing.T) {
	var percent atomic.Int64
	c := &heapGoal{set: func(p int) int { return int(percent.Swap(int64(p))) }, rest: &rest{after: time.Hour, heap: heap}}
	(&cycle{c.tune}).over()
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

// Memory is given back when the program is at rest, and not before, and once.
func TestGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allocated, idle, leaves, given atomic.Uint64
		r := &rest{after: time.Second, heap: func() (uint64, uint64) { return allocated.Load(), idle.Load() }}
		r.give = func() {
			given.Add(1)
			r.begin(worthIt) // it is a cycle of the collector
			idle.Store(leaves.Swap(0))
		}
		idle.Store(worthIt - 1)
		r.begin(worthIt)
		time.Sleep(10 * time.Second)
		if given.Load() != 0 {
			t.Error("too little was given back")
		}
		r.begin(0)
		time.Sleep(10 * time.Second)
		if given.Swap(0) != 1 {
			t.Error("what the start has left was not given back")
		}
		r.begin(worthIt)
		r.begin(worthIt)
		time.Sleep(time.Second / 2)
		idle.Store(worthIt)          // since the cycle
		allocated.Add(restBelow + 1) // it is busy
		time.Sleep(time.Second)
		if given.Load() != 0 {
			t.Error("memory was given back by a busy program")
		}
		time.Sleep(10 * time.Second)
		if n := given.Swap(0); n != 1 {
			t.Errorf("memory was given back %d times", n)
		}
		idle.Store(worthIt)
		leaves.Store(worthIt)
		r.begin(worthIt)
		time.Sleep(10 * time.Second)
		if n := given.Load(); n != 2 {
			t.Errorf("memory was given back %d times, want once more for a crowd that left meanwhile", n)
		}
	})
}

// What is free, and what the next cycle would find to be garbage, could be given back.
func TestHeap(t *testing.T) {
	before, _ := heap()
	garbage := make([]byte, 8<<20)
	runtime.KeepAlive(garbage)
	if after, _ := heap(); after-before < 8<<20 {
		t.Errorf("%d bytes were allocated", after-before)
	}
}
