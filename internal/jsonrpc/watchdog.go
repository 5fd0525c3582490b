package jsonrpc

import "time"

// A Watchdog decides when a silent peer is gone. It takes no peer for gone because this process
// did not run, stopped or frozen: what the peer said meanwhile waits to be read. So a look that
// comes late begins the silence anew, and one that finds the peer gone is followed by another.
type Watchdog struct {
	Every time.Duration // between two looks
	Dead  time.Duration // is a peer after this silence, a multiple of Every

	due   time.Time // the next look; zero before the first
	awake time.Time // since then this process runs, as far as is known
	doubt bool      // the last look found the peer gone
}

// Look is called when a wait is over, and returns the next; zero: the peer is gone. Silence is
// how long nothing has come from it.
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
