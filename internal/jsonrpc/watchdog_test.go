package jsonrpc

import (
	"testing"
	"time"
)

// A peer is gone after its silence and one more Look, but not because this process was stopped,
// however long and whenever, if the peer has sent something.
func TestVigil(t *testing.T) {
	const second = time.Second
	began := time.Now()
	// watch calls Look until the peer is gone, and returns when that is. The process is stopped
	// from one time to another, and reads what has come only some time later.
	watch := func(spoke func(at time.Duration) time.Duration, stopped, resumed time.Duration) time.Duration {
		v := Watchdog{Every: 5 * second, Dead: 15 * second}
		for at := v.Look(began, 0); at < time.Hour; {
			run := at
			if at >= stopped && at < resumed {
				run = resumed
			}
			heard := spoke(run)
			if run == resumed { // the look is before the read
				heard = spoke(stopped)
			}
			wait := v.Look(began.Add(run), run-heard)
			if wait == 0 {
				return run
			}
			at = run + wait
		}
		return 0
	}
	always := func(at time.Duration) time.Duration { return at - at%(5*second) }
	for stopped := second; stopped < 16*second; stopped += second {
		for resumed := stopped; resumed < 2*time.Minute; resumed += second / 2 {
			if gone := watch(always, stopped, resumed); gone != 0 {
				t.Fatalf("stopped from %v to %v, it takes a peer that speaks for gone at %v", stopped, resumed, gone)
			}
		}
	}
	once := func(time.Duration) time.Duration { return 0 }
	if gone := watch(once, -1, -1); gone != 16*second {
		t.Errorf("a silent peer is gone after %v", gone)
	}
	if gone := watch(once, second, time.Minute); gone != 76*second {
		t.Errorf("a peer that is silent all the time is gone at %v, after a stop until 1m", gone)
	}
}
