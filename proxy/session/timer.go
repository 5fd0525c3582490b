package session

import (
	"sync"
	"time"
)

// The requestTimeout of an upstream bounds the time of a request without an answer and without
// progress. It is suspended while the client has an open server request that the request may have
// caused.

// A timeout is that of one call. It is suspended while a server request is open that the call may
// have caused.
type timeout struct {
	mu        sync.Mutex // guards the fields below; only the client's Peer is locked under it
	timer     *time.Timer
	questions int  // open server requests
	extended  bool // there was progress
}

// extend restarts the timeout of a call that makes progress.
func (t *timeout) extend(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.extended = true
	if t.timer != nil {
		t.timer.Reset(d)
	}
}

func (t *timeout) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
}

// suspend notes n more open server requests.
func (t *timeout) suspend(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.questions += n
}

func (t *timeout) isSuspended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.questions > 0
}
