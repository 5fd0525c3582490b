package upstream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

const (
	// gathered is how long the ends of sessions with one remote server count as one
	// event: when the server dies, all its clients lose their sessions.
	gathered = 500 * time.Millisecond

	// quietFor is the time between two warnings of a remote server that could not be
	// asked for its era, for the same cause.
	quietFor = time.Minute
)

// A failureLog writes one log line when many streams fail for the same reason.
type failureLog struct {
	log   *slog.Logger
	wg    *sync.WaitGroup // counts the lines that are still to be written
	hooks *observe.Hooks  // Happened is called

	mu       sync.Mutex // guards the fields below
	losses   map[string]*sessionLosses
	notAsked map[string]askFailure
}

// sessionLosses are the unexpected ends of sessions with one remote server, guarded by
// failureLog.mu.
type sessionLosses struct {
	log               *slog.Logger // of the first, with its cause
	event             observe.Event
	streams, inFlight int
	inARow            int // the least failures in a row of one of them
	timer             *time.Timer
}

// An askFailure is the last failure to ask an upstream for its era.
type askFailure struct {
	cause jsonrpc.Cause
	event string
	began time.Time // of the event
	told  time.Time // of the last warning
}

// lostSession adds the end of a stream to the losses of its remote server, and returns their
// event. log is the stream's. The line is written after the time gathered.
func (f *failureLog) lostSession(upstream string, log *slog.Logger, e ending, inARow int) (event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.losses[upstream]
	if l == nil {
		l = &sessionLosses{log: log.With("cause", e.cause.String()), event: observe.EventOf(observe.ServerEnded, upstream, e.end), inARow: inARow}
		if e.end.Err != nil {
			l.log = l.log.With("err", e.end.Err)
		}
		f.losses[upstream] = l
		f.wg.Add(1)
		l.timer = time.AfterFunc(gathered, func() { f.tell(upstream, l) })
	}
	l.streams++
	l.inFlight += e.inFlight
	l.inARow = min(l.inARow, inARow)
	if f.hooks.Happened != nil {
		l.event.Streams, l.event.InFlight, l.event.Failures = l.streams, l.inFlight, l.inARow
		f.hooks.Happened(l.event)
	}
	return l.event.ID
}

func (f *failureLog) tell(upstream string, l *sessionLosses) {
	defer f.wg.Done()
	f.mu.Lock()
	delete(f.losses, upstream)
	log := l.log.With("event", l.event.ID, "in_flight", l.inFlight, "streams", l.streams)
	inARow := l.inARow
	f.mu.Unlock()
	tellFailure(log, died, inARow)
}

// flush logs the gathered losses now.
func (f *failureLog) flush() {
	f.mu.Lock()
	left := make(map[string]*sessionLosses)
	for upstream, l := range f.losses {
		if l.timer.Stop() {
			left[upstream] = l
		}
	}
	f.mu.Unlock()
	for upstream, l := range left {
		f.tell(upstream, l)
	}
}

// cannotAsk returns the end of a stream whose remote server could not be asked for its
// era. It logs that once for all streams that wait for the answer.
func (f *failureLog) cannotAsk(upstream string, err error) error {
	end, ok := errors.AsType[*jsonrpc.ClosedError](err)
	if !ok || end.Cause.Kind == jsonrpc.KindStopped {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.notAsked[upstream]
	if last.cause != end.Cause || time.Since(last.began) > gathered {
		last = f.notAskedAgain(upstream, last, end)
	}
	mine := *end
	mine.Event = last.event
	return &mine
}

// notAskedAgain begins a new event, since an old one would suggest that there was no new
// attempt. While the cause is the same, it warns only every quietFor.
func (f *failureLog) notAskedAgain(upstream string, last askFailure, end *jsonrpc.ClosedError) askFailure {
	level, now := slog.LevelDebug, askFailure{end.Cause, jsonrpc.NewEvent(), time.Now(), last.told}
	if last.cause != end.Cause || time.Since(last.told) > quietFor {
		level, now.told = slog.LevelWarn, now.began
	}
	f.notAsked[upstream] = now
	log := f.log.With("upstream", upstream, "cause", end.Cause.String(), "event", now.event)
	if end.Says != "" {
		log = log.With("why", end.Says)
	}
	log.Log(context.Background(), level, "cannot determine the upstream's era", "err", end.Err)
	if f.hooks.Happened != nil {
		e := observe.EventOf(observe.ServerNotBegun, upstream, end)
		e.ID = now.event
		f.hooks.Happened(e)
	}
	return now
}

// forget makes the next failure of replaced upstreams a warning again.
func (f *failureLog) forget(upstreams []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range upstreams {
		delete(f.notAsked, name)
	}
}
