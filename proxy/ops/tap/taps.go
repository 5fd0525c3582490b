package tap

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// maxTaps bounds the concurrent taps: each costs every message something.
const maxTaps = 16

// Errors of [Taps.Open] and [Tap.Lines].
var (
	ErrMany   = errors.New("too many taps at a time")
	ErrEnded  = errors.New("the process stops")
	ErrMissed = errors.New("the recording is too slow for the messages")
)

// Taps are all taps of a process. The zero value is ready. Nil Taps wrap no Conn.
type Taps struct {
	now atomic.Pointer[activeTaps] // nil if there are none

	mu    sync.Mutex // guards the fields below, and changes of now
	times int        // how often a first Tap was opened
	ended bool
}

// activeTaps are the taps at one time. It is immutable.
type activeTaps struct {
	taps []*Tap
	time int // Taps.times when the first of them was opened
}

// Open opens a Tap, which the caller closes. The error is [ErrMany] or [ErrEnded].
func (t *Taps) Open(o Options) (*Tap, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*Tap
	if now := t.now.Load(); now != nil {
		all = now.taps
	} else {
		t.times++
	}
	switch {
	case t.ended:
		return nil, ErrEnded
	case len(all) >= maxTaps:
		return nil, ErrMany
	}
	tap := newTap(t, o)
	t.now.Store(&activeTaps{append(slices.Clone(all), tap), t.times})
	return tap, nil
}

// Close ends all taps when their lines are read, and lets no more be opened.
func (t *Taps) Close() {
	t.mu.Lock()
	t.ended = true
	now := t.now.Swap(nil)
	t.mu.Unlock()
	if now == nil {
		return
	}
	for _, tap := range now.taps {
		tap.end(ErrEnded)
	}
}

func (t *Taps) leave(tap *Tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now.Load()
	if now == nil {
		return
	}
	if now = (&activeTaps{slices.DeleteFunc(slices.Clone(now.taps), func(o *Tap) bool { return o == tap }), now.time}); len(now.taps) == 0 {
		now = nil
	}
	t.now.Store(now)
}
