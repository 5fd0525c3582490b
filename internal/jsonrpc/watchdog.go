package jsonrpc

import "time"

// A Watchdog decides when a silent peer is gone. If this process itself was stopped or frozen, what
// the peer sent meanwhile still waits to be read. So a Look that comes late restarts the silence,
// and a Look that finds the peer gone is confirmed by another one.
type Watchdog struct {
	Every time.Duration // between two calls of Look
	Dead  time.Duration // the silence after which a peer is gone; a multiple of Every

	due   time.Time // the next look; zero before the first
	awake time.Time // this process has been running since then, as far as is known
	doubt bool      // the last Look found the peer gone
}

// Look is called when a wait is over, and returns the next wait; zero means that the peer is gone.
// silence is the time since the peer last sent something.
func (v *Watchdog) Look(now time.Time, silence time.Duration) (wait time.Duration) {
	if !v.due.IsZero() && now.Sub(v.due) >= v.Every {
		v.awake = now
	}
	left := v.Dead - min(silence, now.Sub(v.awake))
	switch {
	case left > 0:
		v.doubt = false
	case v.doubt:
		return 0
	default:
		v.doubt, left = true, min(v.Every, time.Second)
	}
	left = min(left, v.Every)
	v.due = now.Add(left)
	return left
}
