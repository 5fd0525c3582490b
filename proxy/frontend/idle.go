package frontend

import (
	"math"
	"sync"
	"time"
)

// An idleTimer counts the HTTP requests that use a session or a principal's connection,
// and ends it when there was none for a while. The lock of its owner guards it: hold,
// release and start take the lock themselves, all other methods need it.
type idleTimer struct {
	mu *sync.Mutex // of the owner

	over   bool // stop was called
	idle   time.Duration
	gone   time.Duration // the same while it is alone
	expiry *time.Timer   // nil: it never expires
	open   int           // HTTP requests being served
	last   time.Time     // when open became 0, or cut was called
	alone  bool          // cut was called, and nothing showed since that the client is there
}

const never = time.Duration(math.MaxInt64)

// start makes expire be called after idle, and again whenever expired says that it was not the end. What is
// not above zero is never.
func (t *idleTimer) start(idle, gone time.Duration, expire func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle, t.gone, t.last = orNever(idle), orNever(gone), time.Now()
	if t.idle < never || t.gone < never {
		t.expiry = time.AfterFunc(t.idle, expire)
	}
}

func orNever(d time.Duration) time.Duration {
	if d <= 0 {
		return never
	}
	return d
}

// hold keeps the owner from expiring while an HTTP request is served; false if it has
// ended. The caller must release it.
func (t *idleTimer) hold() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
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
}

// clientPresent notes that the client is there.
func (t *idleTimer) clientPresent() { t.alone = false }

// cut notes that the client closed a stream that it keeps open as long as it is
// there.
func (t *idleTimer) cut() {
	t.alone, t.last = true, time.Now()
	if t.expiry != nil {
		t.expiry.Reset(min(t.gone, t.idle))
	}
}

// expired is called when the timer fired. It reports whether that is the end. If there
// was a request meanwhile, or if kept is set for a client that is alone, it is not, and
// the timer is set anew: requests do not touch it.
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
