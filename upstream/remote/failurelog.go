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
// machine those of one event are far apart. The line comes mostGathered after the
// first at the latest.
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
	event   observe.Event // of what is gathered, or was last
	timer   *time.Timer   // set while failures are gathered
	first   time.Time     // when that began
	told    bool          // the log has a line about a failure, and no request succeeded since
	denial  string        // the event of refused credentials, likewise; "" for none
}

// failedFor are the failures of one cause.
type failedFor struct {
	cause string
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
// because the server is out of reach. While nobody calls it nothing else shows that it
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
	cause, err := f.forLog()
	i := slices.IndexFunc(l.failed, func(f failedFor) bool { return f.cause == cause })
	if i < 0 {
		i = len(l.failed)
		l.failed = append(l.failed, failedFor{cause: cause, err: err})
	}
	l.failed[i].count += requests
	l.streams += streams
	if l.timer == nil {
		l.event = l.eventOf(observe.RequestsFailed, f)
		l.first, l.timer = time.Now(), time.AfterFunc(gathered, l.flush)
	} else if time.Since(l.first) < mostGathered {
		l.timer.Reset(gathered)
	}
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
		causes = append(causes, f.cause)
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
	l.log.Debug("request to the upstream failed", "method", m.Method, "id", m.ID.String(), "cause", f.cause, "event", f.event)
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
		l.log.Warn("upstream refuses the credentials", "status", f.status, "event", f.event)
	}
}

// accepted notes that a request succeeded: the server is there, and the credentials
// are good.
func (l *failureLog) accepted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told, l.denial = false, ""
}
