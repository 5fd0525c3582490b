package remote

import (
	"log/slog"
	"sync"
	"time"
)

// gathered is how long failures are gathered into one line of the log.
const gathered = 200 * time.Millisecond

// A tally makes one line of the log of what fails for one reason: when a server
// dies under 200 requests, that is one event.
type tally struct {
	log *slog.Logger // static

	mu       sync.Mutex // guards the fields below
	failures map[string]*failures
	timer    *time.Timer // set while failures are gathered
	sessions int         // that may still count; the last one flushes
	refused  bool        // the log has said so, and no request succeeded since
}

// failures are those of one cause.
type failures struct {
	count int
	err   error // of the first
}

// count notes that a request failed.
func (t *tally) count(f *failure) {
	cause, err := f.forLog()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures == nil {
		t.failures = make(map[string]*failures)
	}
	if t.failures[cause] == nil {
		t.failures[cause] = &failures{err: err}
	}
	t.failures[cause].count++
	if t.timer == nil {
		t.timer = time.AfterFunc(gathered, t.flush)
	}
}

func (t *tally) flush() {
	t.mu.Lock()
	failed := t.failures
	t.failures = nil
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.mu.Unlock()
	for cause, f := range failed {
		log := t.log.With("cause", cause, "requests", f.count)
		if f.err != nil {
			log = log.With("err", f.err)
		}
		log.Warn("requests to the upstream failed")
	}
}

// denied notes a 401 or 403. The log hears of the first.
func (t *tally) denied(status int) {
	t.mu.Lock()
	first := !t.refused
	t.refused = true
	t.mu.Unlock()
	if first {
		t.log.Warn("upstream refuses the credentials", "status", status)
	}
}

// accepted notes that the credentials are good.
func (t *tally) accepted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = false
}

func (t *tally) join() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions++
}

// leave counts a session out. After the last nothing is left to be said.
func (t *tally) leave() (last bool) {
	t.mu.Lock()
	t.sessions--
	last = t.sessions == 0
	t.mu.Unlock()
	if last {
		t.flush()
	}
	return last
}
