package timers

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

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
