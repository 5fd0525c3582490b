package main

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The program uses one processor, all of them while many goroutines wait or one is busy all the time, and one again.
// It looks only for a while after a cycle, and while something waits or much is done.
func TestProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wait, looks, each, done atomic.Int64
		var did []string // guarded by p.mu
		p := &processors{
			one: func() { did = append(did, "one") }, all: func() { did = append(did, "all") },
			load: func() (int, uint64) {
				looks.Add(1)
				return int(wait.Load()), uint64(done.Add(each.Load()))
			},
		}
		total, last := 0.0, time.Now()
		cycle := func(busy float64) {
			total += busy * time.Since(last).Seconds()
			last = time.Now()
			p.begin(total)
		}
		becomes := func(waiting int, after time.Duration, want string) {
			t.Helper()
			wait.Store(int64(waiting))
			time.Sleep(after)
			p.mu.Lock()
			defer p.mu.Unlock()
			if got := strings.Join(did, " "); got != want {
				t.Errorf("with %d waiting for %s: %q, want %q", waiting, after, got, want)
			}
			did = nil
		}
		becomes(50, time.Hour, "")
		cycle(0)
		becomes(3, time.Hour, "")
		cycle(0.8)
		becomes(20, 5*lookEvery, "all")
		becomes(20, time.Hour, "")
		cycle(1.9)
		becomes(0, allFor/2, "") // it may be a moment without calls
		cycle(1.9)
		becomes(1, allFor/2, "")
		cycle(0.1)
		becomes(3, time.Hour, "")
		becomes(1, allFor+time.Second, "one")

		cycle(0.95)
		becomes(1, allFor/2, "all")
		cycle(1.8)
		becomes(0, allFor/2, "")
		cycle(1.3)
		becomes(0, allFor/2, "")
		becomes(0, allFor, "one") // no cycle came
		becomes(0, lookFor, "")

		looks.Store(0)
		if becomes(50, time.Hour, ""); looks.Load() != 0 {
			t.Errorf("looked %d times long after the last cycle", looks.Load())
		}

		cycle(0)
		each.Store(2 * muchDone)
		becomes(0, time.Minute, "")
		becomes(50, 2*lookEvery, "all") // no cycle came
		becomes(0, time.Minute, "one")
		each.Store(muchDone / 2)
		becomes(0, 3*lookFor, "")
		becomes(50, time.Hour, "")

		each.Store(0)
		cycle(0)
		for range 100 { // packets of other replicas, which take more at once
			done.Add(2 * muchDone)
			becomes(0, lookFor/4, "")
		}
		looks.Store(0)
		becomes(50, time.Hour, "")
		if looks.Load() != 0 {
			t.Errorf("looked %d times although little was done", looks.Load())
		}
	})
}

// Goroutines that wait for the only processor are counted.
func TestWaiting(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 100 { // the runtime may interrupt us meanwhile
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {})
		}
		n, _ := load()
		wg.Wait()
		if n >= 100 {
			return
		}
	}
	t.Error("100 goroutines wait, but are never counted")
}

// What the program does counts as busy, after the next cycle of the collector.
func TestBusy(t *testing.T) {
	runtime.GC()
	before := busy()
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
	}
	runtime.GC()
	if after := busy(); after <= before {
		t.Errorf("%v s busy before, %v s after", before, after)
	}
}
