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

// The program uses one processor, all of them while many goroutines wait, and one again. It looks only for a while
// after a cycle.
func TestProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wait, looks atomic.Int64
		var did []string // guarded by p.mu
		p := &processors{
			one: func() { did = append(did, "one") }, all: func() { did = append(did, "all") },
			waiting: func() int { looks.Add(1); return int(wait.Load()) },
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
		p.begin()
		becomes(3, lookFor/2, "")
		p.begin()
		becomes(20, 5*lookEvery, "all")
		becomes(20, time.Hour, "")
		becomes(3, time.Second, "")
		becomes(0, time.Second, "one")
		looks.Store(0)
		if becomes(50, time.Hour, ""); looks.Load() != 0 {
			t.Errorf("looked %d times without a cycle", looks.Load())
		}
	})
}

// Goroutines that wait for the only processor are counted.
func TestWaiting(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 100 {
		wg.Go(func() {})
	}
	if n := waiting(); n < 50 { // the runtime may have interrupted us meanwhile
		t.Errorf("%d goroutines wait, want 100", n)
	}
}
