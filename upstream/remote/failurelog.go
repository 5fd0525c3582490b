package remote

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Failures are gathered into one log line until none has come for the time gathered: on a
// busy machine the failures of one event are far apart. The line also waits for requests
// that are being resumed. It comes mostGathered after the first failure at the latest.
const (
	gathered     = 500 * time.Millisecond
	mostGathered = 5 * time.Second
)

// A failureLog writes one log line for requests that fail together. When a server dies with
// 200 requests in flight, that is one event, though some of them only fail when they are
// resumed.
type failureLog struct {
	// Static.
	log  *slog.Logger
	name string              // of the upstream
	tell func(observe.Event) // called with each event, and again with each failure added to it; may be nil

	mu      sync.Mutex    // guards the fields below
	causes  []string      // of the failures that are gathered, without repetitions
	err     error         // of the first of them
	failed  int           // requests
	streams int           // streams outside calls that were lost, too
	trying  int           // requests that are being resumed
	event   observe.Event // of the failures that are gathered, or were last
	timer   *time.Timer   // set while failures are gathered
	first   time.Time     // when that began
	last    time.Time     // when a failure was counted, or resuming ended
	told    bool          // a failure was logged, and no request has succeeded since
	denial  string        // event of rejected credentials, if no request has succeeded since; "" for none
}

// count adds a failed request to the event.
func (l *failureLog) count(f *failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(f, 1, 0)
}

// lose adds a stream outside calls that was lost, or could not be opened again, because the
// server is unreachable. Without calls nothing else shows that the server is gone. It is
// logged once, and not at all if failed requests were logged.
func (l *failureLog) lose(f *failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told {
		f.event = l.event.ID
		return
	}
	l.addLocked(f, 0, 1)
}

func (l *failureLog) addLocked(f *failure, requests, streams int) {
	if l.timer == nil {
		l.event, l.err = l.eventOf(observe.RequestsFailed, f), f.err
		l.first, l.timer = time.Now(), time.AfterFunc(gathered, l.due)
	}
	if cause := f.cause.String(); !slices.Contains(l.causes, cause) {
		l.causes = append(l.causes, cause)
	}
	l.failed += requests
	l.streams += streams
	l.last = time.Now()
	f.event = l.event.ID
	l.event.Requests += requests
	l.event.Streams += streams
	if l.tell != nil {
		l.tell(l.event)
	}
}

// eventOf returns a new event for a failure.
func (l *failureLog) eventOf(kind observe.EventKind, f *failure) observe.Event {
	end := f.end()
	end.Event = jsonrpc.NewEvent()
	return observe.EventOf(kind, l.name, end)
}

// try counts a request that is being resumed, until tried is called.
func (l *failureLog) try() (tried func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trying++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.trying--
		l.last = time.Now() // the request may be counted right after
	}
}

// due writes the line, unless it has to wait for more failures.
func (l *failureLog) due() {
	if !l.waits() {
		l.flush()
	}
}

// waits reports whether the line has to wait. If so, it has scheduled another call of due.
func (l *failureLog) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return false
	}
	wait := gathered - time.Since(l.last)
	if l.trying > 0 {
		wait = gathered
	}
	wait = min(wait, mostGathered-time.Since(l.first))
	if wait > 0 {
		l.timer.Reset(wait)
	}
	return wait > 0
}

// flush writes the line now, if any failures were gathered.
func (l *failureLog) flush() {
	l.mu.Lock()
	if l.timer == nil {
		l.mu.Unlock()
		return
	}
	l.timer.Stop()
	failed, streams := l.failed, l.streams
	log := l.log.With("cause", strings.Join(l.causes, ", "), "event", l.event.ID)
	if l.err != nil {
		log = log.With("err", l.err)
	}
	l.causes, l.failed, l.streams, l.timer, l.told = nil, 0, 0, nil, true
	l.mu.Unlock()
	if streams > 0 {
		log = log.With("streams", streams)
	}
	if failed == 0 {
		log.Warn("upstream cannot be reached")
		return
	}
	log.Warn("requests to the upstream failed", "requests", failed)
}

// mention reports a failure that is logged only at level debug.
func (l *failureLog) mention(m *jsonrpc.Message, f *failure) {
	e := l.eventOf(observe.RequestsFailed, f)
	e.Requests = 1
	f.event = e.ID
	if l.tell != nil {
		l.tell(e)
	}
	l.log.Debug("request to the upstream failed", "method", m.Method, "id", m.ID.String(), "cause", f.text(), "event", f.event)
}

// denied reports that the server did not let us in. Only the first time is logged,
// and all refusals until the next success are one event.
func (l *failureLog) denied(f *failure) {
	l.mu.Lock()
	first := l.denial == ""
	if first {
		e := l.eventOf(observe.LoginRefused, f)
		l.denial = e.ID
		if l.tell != nil {
			l.tell(e)
		}
	}
	f.event = l.denial
	l.mu.Unlock()
	switch {
	case first && f.status == 0:
		l.log.Warn("upstream needs a login", "event", f.event)
	case first && f.oauth:
		l.log.Warn("upstream needs OAuth", "status", f.status, "event", f.event)
	case first && f.barred:
		l.log.Warn("upstream refused the request", "status", f.status, "event", f.event)
	case first:
		l.log.Warn("upstream rejected the credentials", "status", f.status, "event", f.event)
	}
}

// accepted records that a request succeeded: the server is reachable, and accepts the
// credentials.
func (l *failureLog) accepted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told, l.denial = false, ""
}
