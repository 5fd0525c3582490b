package frontend

import (
	"math"
	"time"
)

// A lease counts the HTTP requests that use something, which ends when none did
// for a while. The lock of what it is part of guards it.
type lease struct {
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
func (l *lease) start(idle, gone time.Duration, expire func()) {
	l.idle, l.gone, l.last = orNever(idle), orNever(gone), time.Now()
	if l.idle < never || l.gone < never {
		l.expiry = time.AfterFunc(l.idle, expire)
	}
}

func orNever(d time.Duration) time.Duration {
	if d <= 0 {
		return never
	}
	return d
}

// take counts one more request, which give ends.
func (l *lease) take() {
	l.open++
	l.seen()
}

// seen notes that the client is there.
func (l *lease) seen() { l.alone = false }

func (l *lease) give() {
	if l.open--; l.open == 0 {
		l.last = time.Now()
	}
}

// cut notes that the client let go of what it keeps open as long as it is there.
func (l *lease) cut() {
	l.alone, l.last = true, time.Now()
	if l.expiry != nil {
		l.expiry.Reset(min(l.gone, l.idle))
	}
}

// renew is called when the timer fired. It reports whether there was a request
// meanwhile, or something keeps one that is alone, and then sets the timer anew:
// requests do not touch it.
func (l *lease) renew(kept bool) bool {
	used := time.Since(l.last)
	if l.open > 0 {
		used = 0
	}
	left := l.idle - used
	if l.alone {
		if kept {
			used = 0
		}
		left = min(left, l.gone-used)
	}
	if left > 0 {
		l.expiry.Reset(left)
	}
	return left > 0
}

func (l *lease) stop() {
	if l.expiry != nil {
		l.expiry.Stop()
	}
}
