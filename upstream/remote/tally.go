package remote

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
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
	streams  int         // outside of calls that were lost with them
	event    string      // of what is gathered, or was last
	timer    *time.Timer // set while failures are gathered
	first    time.Time   // of those
	sessions int         // that may still count; the last one flushes
	told     bool        // the log has heard of a failure, and no request succeeded since
	denial   string      // the event of credentials being refused, likewise; "" for none
}

// failures are those of one cause.
type failures struct {
	cause string
	count int
	err   error // of the first
}

// count notes that a request failed. What fails together is one event.
func (t *tally) count(f *failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.countLocked(f, 1)
}

// lose notes that a stream outside of calls was lost, or is asked for again, and the
// server cannot be reached: all that shows that it is gone while nobody calls it. The
// log hears of it once, and not at all if requests have failed.
func (t *tally) lose(f *failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told {
		f.event = t.event
		return
	}
	t.streams++
	t.countLocked(f, 0)
}

func (t *tally) countLocked(f *failure, requests int) {
	cause, err := f.forLog()
	i := slices.IndexFunc(t.failures, func(f failures) bool { return f.cause == cause })
	if i < 0 {
		i = len(t.failures)
		t.failures = append(t.failures, failures{cause: cause, err: err})
	}
	t.failures[i].count += requests
	if t.timer == nil {
		t.event = jsonrpc.NewEvent()
		t.first, t.timer = time.Now(), time.AfterFunc(gathered, t.flush)
	} else if time.Since(t.first) < mostGathered {
		t.timer.Reset(gathered)
	}
	f.event = t.event
}

func (t *tally) flush() {
	t.mu.Lock()
	failed, streams, event := t.failures, t.streams, t.event
	t.failures, t.streams = nil, 0
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.told = t.told || len(failed) > 0
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
	log := t.log.With("cause", strings.Join(causes, ", "), "event", event)
	if err := failed[0].err; err != nil {
		log = log.With("err", err)
	}
	if streams > 0 {
		log = log.With("streams", streams)
	}
	if count == 0 {
		log.Warn("upstream cannot be reached")
		return
	}
	log.Warn("requests to the upstream failed", "requests", count)
}

// mention notes a failure that is worth no line of its own.
func (t *tally) mention(m *jsonrpc.Message, f *failure) {
	f.event = jsonrpc.NewEvent()
	t.log.Debug("request to the upstream failed", "method", m.Method, "id", m.ID.String(), "cause", f.cause, "event", f.event)
}

// denied notes that the server does not let us in. The log hears of the first, which
// all until it does are part of.
func (t *tally) denied(f *failure) {
	t.mu.Lock()
	first := t.denial == ""
	if first {
		t.denial = jsonrpc.NewEvent()
	}
	f.event = t.denial
	t.mu.Unlock()
	switch {
	case first && f.oauth:
		t.log.Warn("upstream needs OAuth", "status", f.status, "event", f.event)
	case first:
		t.log.Warn("upstream refuses the credentials", "status", f.status, "event", f.event)
	}
}

// accepted notes that a request succeeded: the server is there, and the credentials are
// good.
func (t *tally) accepted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told, t.denial = false, ""
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
