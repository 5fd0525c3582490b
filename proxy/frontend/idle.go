package frontend

import (
	"math"
	"sync"
	"time"
)

// An idleTimer counts the HTTP requests that use a session or a principal's connection, and ends it
// when it has been idle for a while. The lock of its owner guards it. hold, release and start lock
// it themselves, all other methods need it.
type idleTimer struct {
	mu *sync.Mutex // of the owner

	over   bool // stop was called
	idle   time.Duration
	gone   time.Duration // idle while alone is set
	expiry *time.Timer   // nil: never expires
	open   int           // HTTP requests being served
	last   time.Time     // time when open became 0, or of cut
	alone  bool          // cut was called, and the client has not shown itself since
	freed  func()        // called when a request has been served, with the lock held; nil: nothing
}

const never = time.Duration(math.MaxInt64)

// start calls expire after idle, and again each time expired returns false. Durations that are not
// above zero mean never.
func (t *idleTimer) start(idle, gone time.Duration, expire func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle, t.gone, t.last = orNever(idle), orNever(gone), time.Now()
	if !t.over && (t.idle < never || t.gone < never) { // the owner may have ended before it starts
		t.expiry = time.AfterFunc(t.idle, expire)
	}
}

func orNever(d time.Duration) time.Duration {
	if d <= 0 {
		return never
	}
	return d
}

// hold prevents expiry while an HTTP request is served; false if the owner has ended. The caller
// must release it.
func (t *idleTimer) hold() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holdLocked()
}

// holdLocked is hold with the lock held.
func (t *idleTimer) holdLocked() bool {
	if !t.over {
		t.open++
		t.clientPresent()
	}
	return !t.over
}

func (t *idleTimer) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open--; t.open == 0 {
		t.last = time.Now()
	}
	if t.freed != nil {
		t.freed()
	}
}

// clientPresent notes that the client has shown itself.
func (t *idleTimer) clientPresent() { t.alone = false }

// cut notes that the client closed a stream that it keeps open as long as it is there.
func (t *idleTimer) cut() {
	t.alone, t.last = true, time.Now()
	if t.expiry != nil {
		t.expiry.Reset(min(t.gone, t.idle))
	}
}

// expired is called when the timer fires, and reports whether the owner has expired. It has not if
// there was a request since the timer was set, or if kept is set and the client is alone. Then the
// timer is set again; requests do not reset it.
func (t *idleTimer) expired(kept bool) bool {
	if t.over {
		return false
	}
	used := time.Since(t.last)
	if t.open > 0 {
		used = 0
	}
	left := t.idle - used
	if t.alone {
		if kept {
			used = 0
		}
		left = min(left, t.gone-used)
	}
	if left > 0 {
		t.expiry.Reset(left)
	}
	return left <= 0
}

func (t *idleTimer) stop() {
	t.over = true
	if t.expiry != nil {
		t.expiry.Stop()
	}
}
