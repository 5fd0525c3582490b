package remote

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Failures are gathered into one line of the log until none has come for gathered:
// on a busy machine those of one event are far apart. That is no later than
// mostGathered after the first.
const (
	gathered     = 500 * time.Millisecond
	mostGathered = 5 * time.Second
)

// A tally makes one line of the log of what fails together: when a server dies
// under 200 requests, that is one event, though some are only refused when they
// try to go on.
type tally struct {
	log *slog.Logger // static

	mu       sync.Mutex // guards the fields below
	failures []failures
	timer    *time.Timer // set while failures are gathered
	first    time.Time   // of those
	sessions int         // that may still count; the last one flushes
	refused  bool        // the log has said so, and no request succeeded since
}

// failures are those of one cause.
type failures struct {
	cause string
	count int
	err   error // of the first
}

// count notes that a request failed.
func (t *tally) count(f *failure) {
	cause, err := f.forLog()
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.failures, func(f failures) bool { return f.cause == cause })
	if i < 0 {
		i = len(t.failures)
		t.failures = append(t.failures, failures{cause: cause, err: err})
	}
	t.failures[i].count++
	if t.timer == nil {
		t.first, t.timer = time.Now(), time.AfterFunc(gathered, t.flush)
	} else if time.Since(t.first) < mostGathered {
		t.timer.Reset(gathered)
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
	if len(failed) == 0 {
		return
	}
	var causes []string
	count := 0
	for _, f := range failed {
		count += f.count
		causes = append(causes, f.cause)
	}
	log := t.log.With("cause", strings.Join(causes, ", "))
	if err := failed[0].err; err != nil {
		log = log.With("err", err)
	}
	log.Warn("requests to the upstream failed", "requests", count)
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
