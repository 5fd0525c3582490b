package remote

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
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
	log *slog.Logger // static

	mu      sync.Mutex // guards the fields below
	failed  []failedFor
	streams int         // outside of requests that were lost with them
	event   string      // of what is gathered, or was last
	timer   *time.Timer // set while failures are gathered
	first   time.Time   // when that began
	told    bool        // the log has a line about a failure, and no request succeeded since
	denial  string      // the event of refused credentials, likewise; "" for none
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
	l.addLocked(f, 1)
}

// lose notes that a stream outside of requests was lost, or could not be opened again,
// because the server is out of reach. While nobody calls it nothing else shows that it
// is gone. The log hears of it once, and not at all if requests have failed.
func (l *failureLog) lose(f *failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told {
		f.event = l.event
		return
	}
	l.streams++
	l.addLocked(f, 0)
}

func (l *failureLog) addLocked(f *failure, requests int) {
	cause, err := f.forLog()
	i := slices.IndexFunc(l.failed, func(f failedFor) bool { return f.cause == cause })
	if i < 0 {
		i = len(l.failed)
		l.failed = append(l.failed, failedFor{cause: cause, err: err})
	}
	l.failed[i].count += requests
	if l.timer == nil {
		l.event = jsonrpc.NewEvent()
		l.first, l.timer = time.Now(), time.AfterFunc(gathered, l.flush)
	} else if time.Since(l.first) < mostGathered {
		l.timer.Reset(gathered)
	}
	f.event = l.event
}

// flush writes the line of what was gathered, if anything was.
func (l *failureLog) flush() {
	l.mu.Lock()
	failed, streams, event := l.failed, l.streams, l.event
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
	f.event = jsonrpc.NewEvent()
	l.log.Debug("request to the upstream failed", "method", m.Method, "id", m.ID.String(), "cause", f.cause, "event", f.event)
}

// denied notes that the server refuses the credentials. The log hears of the first
// time, and all until the next success are the same event.
func (l *failureLog) denied(f *failure) {
	l.mu.Lock()
	first := l.denial == ""
	if first {
		l.denial = jsonrpc.NewEvent()
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
