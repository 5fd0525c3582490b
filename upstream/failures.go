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
	// gathered is how long the ends of sessions with one remote server are one event:
	// when it dies, all its clients lose theirs.
	gathered = 500 * time.Millisecond

	// quietFor is how long a remote server that fails as before when it is asked for
	// its era is no news.
	quietFor = time.Minute
)

// A failureLog writes one line for an event that many streams see as failures.
type failureLog struct {
	log   *slog.Logger
	wg    *sync.WaitGroup // has one for each line that is still to be written
	hooks *observe.Hooks  // of which Happened is called

	mu       sync.Mutex // guards the fields below
	losses   map[string]*sessionLosses
	notAsked map[string]askFailure
}

// A sessionLosses is the unexpected ends of sessions with one remote server. Its fields are
// guarded by failureLog.mu.
type sessionLosses struct {
	log               *slog.Logger // of the first, with its cause
	event             observe.Event
	streams, inFlight int
	inARow            int // the least of them
	timer             *time.Timer
}

// An askFailure is the last failure to ask an upstream for its era.
type askFailure struct {
	cause jsonrpc.Cause
	event string
	began time.Time // of the event
	told  time.Time // at the level of a warning
}

// lostSession notes that a stream has lost its session with a remote server, and returns
// the event of the loss, which becomes that of its end. The line, for which log is the
// stream's, comes soon.
func (f *failureLog) lostSession(upstream string, log *slog.Logger, e ending, inARow int) (event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.losses[upstream]
	if l == nil {
		l = &sessionLosses{log: log.With("cause", e.cause.String()), event: observe.EventOf(observe.ServerEnded, upstream, e.end), inARow: inARow}
		if e.end.Err != nil {
			l.log = l.log.With("err", e.end.Err)
		}
		if f.losses == nil {
			f.losses = make(map[string]*sessionLosses)
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

// flush tells now what is gathered.
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
// era. The log hears of that here, once for all who wait.
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

// notAskedAgain begins another event. An old one would say that nothing was tried since. The
// warning is given once in a while if the cause stays what it was.
func (f *failureLog) notAskedAgain(upstream string, last askFailure, end *jsonrpc.ClosedError) askFailure {
	level, now := slog.LevelDebug, askFailure{end.Cause, jsonrpc.NewEvent(), time.Now(), last.told}
	if last.cause != end.Cause || time.Since(last.told) > quietFor {
		level, now.told = slog.LevelWarn, now.began
	}
	if f.notAsked == nil {
		f.notAsked = make(map[string]askFailure)
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

// forget makes it news again that upstreams which were replaced cannot be asked.
func (f *failureLog) forget(upstreams []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range upstreams {
		delete(f.notAsked, name)
	}
}
