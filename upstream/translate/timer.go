package translate

import (
	"sync"
	"time"
)

// Timers are what a stream, or the pool, has to do later. None begins after end, and
// wait waits for those that have begun. The zero value is ready to use.
type timers struct {
	wg sync.WaitGroup // one for each that may still run

	mu   sync.Mutex // held for moments only; may be taken with any other lock held
	open map[*timer]struct{}
	over bool
}

// A timer is something that will be done, once. A nil timer is nothing.
type timer struct {
	of *timers
	t  *time.Timer
}

// after runs fn, d from now, unless it is stopped before. One that is stopped too late
// still runs: fn must look whether it is wanted.
func (ts *timers) after(d time.Duration, fn func()) *timer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.over {
		return nil
	}
	if ts.open == nil {
		ts.open = make(map[*timer]struct{})
	}
	t := &timer{of: ts}
	ts.open[t] = struct{}{}
	ts.wg.Add(1)
	t.t = time.AfterFunc(d, func() {
		defer ts.wg.Done()
		ts.mu.Lock()
		delete(ts.open, t)
		ts.mu.Unlock()
		fn()
	})
	return t
}

// stop may be called repeatedly, and after the timer has fired.
func (t *timer) stop() {
	if t == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.stopLocked()
}

func (t *timer) stopLocked() {
	if _, ok := t.of.open[t]; !ok {
		return
	}
	delete(t.of.open, t)
	if t.t.Stop() {
		t.of.wg.Done()
	}
}

// end stops all that have not fired, and lets no more begin.
func (ts *timers) end() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.over = true
	for t := range ts.open {
		t.stopLocked()
	}
}

// wait waits for those that fired before the end. No lock may be held that they take.
func (ts *timers) wait() { ts.wg.Wait() }
