// Package timers runs functions later for one owner, and leaves none behind when the owner ends. Its connections have deadlines
// that can be moved for little.
package timers

import (
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// A Set is a set of timers. No function starts after End, and Wait waits for those that have started. The zero value is
// ready to use.
type Set struct {
	wg sync.WaitGroup // one for each timer whose function may still run

	mu   sync.Mutex // held briefly; may be taken while any other lock is held
	open map[*Timer]struct{}
	over bool
}

// A Timer runs a function once. A nil Timer does nothing.
type Timer struct {
	of *Set
	t  *time.Timer
}

// After runs fn after d, unless it is stopped before. If Stop comes too late fn still runs, so fn must check whether it
// is still wanted.
func (s *Set) After(d time.Duration, fn func()) *Timer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	if s.open == nil {
		s.open = make(map[*Timer]struct{})
	}
	t := &Timer{of: s}
	s.open[t] = struct{}{}
	s.wg.Add(1)
	t.t = time.AfterFunc(d, func() {
		defer s.wg.Done()
		s.mu.Lock()
		delete(s.open, t)
		s.mu.Unlock()
		fn()
	})
	return t
}

// Stop may be called repeatedly, and after the timer has fired.
func (t *Timer) Stop() {
	if t == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.stop(t)
}

func (s *Set) stop(t *Timer) {
	if _, ok := s.open[t]; !ok {
		return
	}
	delete(s.open, t)
	if t.t.Stop() {
		s.wg.Done()
	}
}

// Len returns the number of timers that have not fired.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// End stops all timers that have not fired, and lets no more start.
func (s *Set) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for t := range s.open {
		s.stop(t)
	}
}

// Wait waits for the functions that started before End. The caller must not hold a lock that they take.
func (s *Set) Wait() { s.wg.Wait() }

// A Retry runs a function after a pause that doubles with each run, from 500 ms up to 30 s. The zero value is ready to
// use. Its owner guards it.
type Retry struct {
	Jitter float64 // each pause differs by up to this part of it, at random

	*Timer // of the run that waits; nil before the first
	pause  backoff.ExponentialBackOff
}

// After has after, which may be [Set.After], run fn after the next pause.
func (r *Retry) After(after func(time.Duration, func()) *Timer, fn func()) {
	r.pause.InitialInterval, r.pause.MaxInterval = 500*time.Millisecond, 30*time.Second
	r.pause.Multiplier, r.pause.RandomizationFactor = 2, r.Jitter
	r.Stop()
	r.Timer = after(r.pause.NextBackOff(), fn)
}

// Reset makes the next pause the first one again.
func (r *Retry) Reset() { r.pause.Reset() }
