package frontend

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A POST waits for as long as it should, whatever POST had its alarm before, and its timer may still run.
func TestWaitPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := &alarm{} // for all, though a pool may lose some
		alarms := &sync.Pool{New: func() any { return one }}
		wait := func(d, answered, want time.Duration) {
			t.Helper()
			wake := make(chan struct{}, 1)
			begun := time.Now()
			if answered > 0 {
				time.AfterFunc(answered, func() { notify(wake) })
			}
			waitPlain(alarms, wake, nil, d)
			if took := time.Since(begun); took != want {
				t.Errorf("it took %s, want %s", took, want)
			}
		}
		wait(plainWait, 0, plainWait)
		wait(keepAlive, plainWait, plainWait)
		wait(plainWait, 0, plainWait)
		wait(keepAlive, 0, keepAlive)
		wait(plainWait, plainWait/2, plainWait/2)
		wait(plainWait, 0, plainWait)
		wait(plainWait, plainWait/2, plainWait/2)
		wait(keepAlive, 0, keepAlive)

		// A timer that fires for nobody wakes an idle program, and to set one for each POST costs a busy one more.
		for _, tt := range []struct {
			pause time.Duration
			goes  bool
		}{{plainWait, false}, {plainWait / 4, true}, {plainWait / 4, true}, {plainWait, false}} {
			time.Sleep(tt.pause)
			wait(plainWait, time.Millisecond, time.Millisecond)
			one.mu.Lock()
			goes := !one.fires.IsZero()
			one.mu.Unlock()
			if goes != tt.goes {
				t.Errorf("a POST %s after another: the timer goes on %v, want %v", tt.pause, goes, tt.goes)
			}
		}
	})
}
