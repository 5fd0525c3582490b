// Package timers holds what somebody has to do later, so that nothing of it is left when
// they end.
package timers

import (
	"sync"
	"time"
)

// A Set is what is to be done later. Nothing begins after End, and Wait waits for what has
// begun. The zero value is ready to use.
type Set struct {
	wg sync.WaitGroup // one for each that may still run

	mu   sync.Mutex // held for moments only; may be taken with any other lock held
	open map[*Timer]struct{}
	over bool
}

// A Timer is something that will be done, once. A nil Timer is nothing.
type Timer struct {
	of *Set
	t  *time.Timer
}

// After runs fn, d from now, unless it is stopped before. One that is stopped too late
// still runs: fn must look whether it is wanted.
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

// Len returns how many have not begun.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// End stops all that have not fired, and lets no more begin.
func (s *Set) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for t := range s.open {
		s.stop(t)
	}
}

// Wait waits for those that fired before the End. No lock may be held that they take.
func (s *Set) Wait() { s.wg.Wait() }
