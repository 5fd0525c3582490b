package frontend

import (
	"math"
	"time"
)

// An idleTimer counts the HTTP requests that use a session or a principal
// connection, and ends it when there was none for a while. The lock of what it
// belongs to guards it.
type idleTimer struct {
	idle   time.Duration
	gone   time.Duration // the same while it is alone
	expiry *time.Timer   // nil: it never expires
	open   int           // HTTP requests being served
	last   time.Time     // when open became 0, or cut was called
	alone  bool          // cut was called, and nothing showed since that the client is there
}

const never = time.Duration(math.MaxInt64)

// start makes expire be called after idle, and again whenever renew says so. What is
// not above zero is never.
func (t *idleTimer) start(idle, gone time.Duration, expire func()) {
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

// take counts one more request, which give ends.
func (t *idleTimer) take() {
	t.open++
	t.seen()
}

func (t *idleTimer) give() {
	if t.open--; t.open == 0 {
		t.last = time.Now()
	}
}

// seen notes that the client is there.
func (t *idleTimer) seen() { t.alone = false }

// cut notes that the client closed a stream that it keeps open as long as it is
// there.
func (t *idleTimer) cut() {
	t.alone, t.last = true, time.Now()
	if t.expiry != nil {
		t.expiry.Reset(min(t.gone, t.idle))
	}
}

// renew is called when the timer fired. It reports whether there was a request
// meanwhile, or kept is set for a client that is alone, and then sets the timer
// anew: requests do not touch it.
func (t *idleTimer) renew(kept bool) bool {
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
	return left > 0
}

func (t *idleTimer) stop() {
	if t.expiry != nil {
		t.expiry.Stop()
	}
}
