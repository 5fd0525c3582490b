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

// Failures go into one line of the log until none has come for gathered: on a busy
// machine those of one event are far apart. It waits for requests that try to go on, too.
// The line comes mostGathered after the first at the latest.
const (
	gathered     = 500 * time.Millisecond
	mostGathered = 5 * time.Second
)

// A failureLog makes one line of the log of what fails together. When a server dies
// under 200 requests that is one event, though some of them are only refused when
// they try to go on.
type failureLog struct {
	// Static.
	log  *slog.Logger
	name string              // of the upstream
	tell func(observe.Event) // of each event, and again of what is gathered into it; nil for nobody

	mu      sync.Mutex // guards the fields below
	failed  []failedFor
	streams int           // outside of requests that were lost with them
	trying  int           // requests that broke off and try to go on
	event   observe.Event // of what is gathered, or was last
	timer   *time.Timer   // set while failures are gathered
	first   time.Time     // when that began
	last    time.Time     // when one was counted, or does not try to go on any more
	told    bool          // the log has a line about a failure, and no request succeeded since
	denial  string        // the event of refused credentials, likewise; "" for none
}

// failedFor are the failures of one cause.
type failedFor struct {
	cause jsonrpc.Cause
	count int
	err   error // of the first
}

// count notes that a request failed. What fails together is one event.
func (l *failureLog) count(f *failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(f, 1, 0)
}

// lose notes that a stream outside of requests was lost, or could not be opened again,
// because the server is unreachable. While nobody calls it nothing else shows that it
// is gone. The log hears of it once, and not at all if requests have failed.
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
	i := slices.IndexFunc(l.failed, func(other failedFor) bool { return other.cause == f.cause })
	if i < 0 {
		i = len(l.failed)
		l.failed = append(l.failed, failedFor{cause: f.cause, err: f.err})
	}
	l.failed[i].count += requests
	l.streams += streams
	if l.timer == nil {
		l.event = l.eventOf(observe.RequestsFailed, f)
		l.first, l.timer = time.Now(), time.AfterFunc(gathered, l.due)
	}
	l.last = time.Now()
	f.event = l.event.ID
	l.event.Requests += requests
	l.event.Streams += streams
	if l.tell != nil {
		l.tell(l.event)
	}
}

// eventOf returns a new event that begins with a failure.
func (l *failureLog) eventOf(kind observe.EventKind, f *failure) observe.Event {
	end := f.end()
	end.Event = jsonrpc.NewEvent()
	return observe.EventOf(kind, l.name, end)
}

// try notes that a request which broke off tries to go on, until tried is called.
func (l *failureLog) try() (tried func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trying++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.trying--
		l.last = time.Now() // it may be counted in a moment
	}
}

// due writes the line of what was gathered if nothing more is to come, or it is late.
func (l *failureLog) due() {
	if !l.waits() {
		l.flush()
	}
}

// waits reports whether the line has to wait. Then due is called again.
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

// flush writes the line of what was gathered, if anything was.
func (l *failureLog) flush() {
	l.mu.Lock()
	failed, streams, event := l.failed, l.streams, l.event.ID
	l.failed, l.streams = nil, 0
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.told = l.told || len(failed) > 0
	l.mu.Unlock()
	if len(failed) == 0 {
		return
	}
	var causes []string
	count := 0
	for _, f := range failed {
		count += f.count
		causes = append(causes, f.cause.String())
	}
	log := l.log.With("cause", strings.Join(causes, ", "), "event", event)
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
func (l *failureLog) mention(m *jsonrpc.Message, f *failure) {
	e := l.eventOf(observe.RequestsFailed, f)
	e.Requests = 1
	f.event = e.ID
	if l.tell != nil {
		l.tell(e)
	}
	l.log.Debug("request to the upstream failed", "method", m.Method, "id", m.ID.String(), "cause", f.text(), "event", f.event)
}

// denied notes that the server refuses the credentials. The log hears of the first
// time, and all until the next success are the same event.
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
	case first:
		l.log.Warn("upstream rejected the credentials", "status", f.status, "event", f.event)
	}
}

// accepted notes that a request succeeded: the server is there, and the credentials
// are good.
func (l *failureLog) accepted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told, l.denial = false, ""
}
