package frontend

import "time"

// A lease counts the HTTP requests that use something, which ends when none did
// for a while. The lock of what it is part of guards it.
type lease struct {
	idle   time.Duration
	expiry *time.Timer // nil: it never expires
	open   int         // HTTP requests being served
	last   time.Time   // when open became 0
}

// start makes expire be called after idle, and again whenever renew says so.
func (l *lease) start(idle time.Duration, expire func()) {
	l.idle, l.last = idle, time.Now()
	l.expiry = time.AfterFunc(idle, expire)
}

// take counts one more request, which give ends.
func (l *lease) take() { l.open++ }

func (l *lease) give() {
	if l.open--; l.open == 0 {
		l.last = time.Now()
	}
}

// renew is called when the timer fired. It reports whether there was a request
// meanwhile, and then sets the timer anew: requests do not touch it.
func (l *lease) renew() bool {
	left := l.idle
	if l.open == 0 {
		left -= time.Since(l.last)
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
