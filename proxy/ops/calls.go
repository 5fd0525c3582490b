package ops

import (
	"context"
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

const (
	linesPerSecond = 100 // for successful requests, and as many for others
	longestName    = 128 // bytes of a tool, in a line
)

// A callLog writes a line for each request of a client. Under load it leaves out some, successful ones first, and the
// next line has their number.
type callLog struct {
	log          *slog.Logger
	good, others *rate.Limiter
	leftOut      atomic.Int64
}

// LogCalls returns the hooks that log each request of a client, without its params.
func LogCalls(log *slog.Logger) observe.Hooks {
	l := &callLog{
		log:    log,
		good:   rate.NewLimiter(linesPerSecond, linesPerSecond),
		others: rate.NewLimiter(linesPerSecond, linesPerSecond),
	}
	return observe.Hooks{RequestEnded: l.ended, SessionEnded: l.rest}
}

func (l *callLog) ended(c observe.Request, end observe.End) {
	if !l.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	lines := l.good
	if end.Outcome != observe.OK {
		lines = l.others
	}
	if !lines.Allow() {
		l.leftOut.Add(1)
		return
	}
	about := []any{
		"session", c.Session, "client", c.Client, "principal", c.Principal, "method", c.Method, "upstream", c.Upstream,
		"tool", c.Tool[:min(len(c.Tool), longestName)], "dur", end.Took, "outcome", string(end.Outcome),
	}
	if end.Event != "" {
		about = append(about, "cause", end.Cause, "event", end.Event)
	}
	if c.Trace != "" {
		about = append(about, "trace", c.Trace)
	}
	if n := l.leftOut.Swap(0); n > 0 {
		about = append(about, "left_out", n)
	}
	l.log.Info("call", about...)
}

// rest logs how many requests were left out since the last line.
func (l *callLog) rest(observe.Session, observe.End) {
	if n := l.leftOut.Swap(0); n > 0 {
		l.log.Info("calls not logged", "left_out", n)
	}
}
