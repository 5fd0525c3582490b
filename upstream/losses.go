package upstream

import (
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// gathered is how long the ends of sessions with one remote server are one event: when
// it dies, all its clients lose theirs.
const gathered = 500 * time.Millisecond

// A loss is the unexpected ends of sessions with one remote server, which become one
// line of the log. Its fields are guarded by Host.mu.
type loss struct {
	log               *slog.Logger // of the first, with its cause
	event             string
	streams, inFlight int
	inARow            int // the least of them
	timer             *time.Timer
}

// losesSession notes that a stream has lost its session with a remote server. The event
// of the end becomes that of the loss, and its line in the log comes soon.
func (h *Host) losesSession(s *stream, e ending, inARow int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.losses[s.name]
	if l == nil {
		l = &loss{log: s.log.With("cause", e.cause), event: e.end.Event, inARow: inARow}
		if e.end.Err != nil {
			l.log = l.log.With("err", e.end.Err)
		}
		if h.losses == nil {
			h.losses = make(map[string]*loss)
		}
		h.losses[s.name] = l
		h.wg.Add(1)
		l.timer = time.AfterFunc(gathered, func() { defer h.wg.Done(); h.tellLoss(s.name, l) })
	}
	e.end.Event = l.event
	l.streams++
	l.inFlight += e.inFlight
	l.inARow = min(l.inARow, inARow)
}

func (h *Host) tellLoss(name string, l *loss) {
	h.mu.Lock()
	delete(h.losses, name)
	log := l.log.With("event", l.event, "in_flight", l.inFlight, "streams", l.streams)
	inARow := l.inARow
	h.mu.Unlock()
	tellFailure(log, died, inARow)
}

// tellLosses tells now what is gathered.
func (h *Host) tellLosses() {
	h.mu.Lock()
	var left []func()
	for name, l := range h.losses {
		if l.timer.Stop() {
			left = append(left, func() { defer h.wg.Done(); h.tellLoss(name, l) })
		}
	}
	h.mu.Unlock()
	for _, tell := range left {
		tell()
	}
}

// isOneOfMany reports whether the end of a stream is that of others, too.
func (s *stream) isOneOfMany(e ending) bool {
	return e.outcome == died && s.up.Command == nil && !s.up.together(s.id.era)
}

// quietFor is how long a remote server that fails as before when it is asked for its era
// is no news.
const quietFor = time.Minute

// notAsked returns the end of a stream whose upstream could not be asked for its era.
// The log hears of that here if nobody else tells it, once for all who wait.
func (h *Host) notAsked(t target, err error) error {
	end, ok := errors.AsType[*jsonrpc.ClosedError](err)
	if !ok || t.up.Command != nil || end.Cause == causeHostStopped {
		return err
	}
	e := t.eras
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.trouble.Cause != end.Cause || time.Since(e.troubled) > quietFor {
		e.trouble, e.troubled = *end, time.Now()
		e.trouble.Event = jsonrpc.NewEvent()
		log := h.logger().With("upstream", t.name, "cause", end.Cause, "event", e.trouble.Event)
		if end.Says != "" {
			log = log.With("why", end.Says)
		}
		log.Warn("upstream cannot be asked for its era", "err", end.Err)
	}
	mine := *end
	mine.Event = e.trouble.Event
	return &mine
}
