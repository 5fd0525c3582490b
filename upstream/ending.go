package upstream

import (
	"cmp"
	"errors"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An ending is what there is to say about the end of a stream.
type ending struct {
	outcome  outcome
	err      error                // for the proxy
	end      *jsonrpc.ClosedError // that is for the restart state; nil if the proxy chose it
	cause    string               // of the server's end, for the log
	inFlight int
	life     time.Duration
	remote   bool // the server is
	ofMany   bool // it is one event with the ends of other streams, of which failureLog tells
}

// didNotStart makes the end that of a server which never was there. sent is whether it
// got a request besides initialize.
func (e *ending) didNotStart(sent bool) {
	e.end.Lasting = e.end.Lasting || e.cause == jsonrpc.CauseRefused
	if e.remote || e.cause == jsonrpc.CauseRefused {
		return
	}
	if e.cause == jsonrpc.CauseStartTimeout {
		e.end.Says = "did not start in time"
		return
	}
	e.end.Says = "did not start: " + e.cause
	if !sent {
		e.end.Cause = jsonrpc.CauseStartFailed
	}
}

// tell writes the one line of an end to log. unusable is how many messages of the server
// were none, stderr returns the last lines of a process, and inARow counts its failures.
func (e *ending) tell(log *slog.Logger, unusable int64, stderr func() []string, inARow int) {
	log = log.With("cause", cmp.Or(e.cause, jsonrpc.CauseOf(e.err)), "in_flight", e.inFlight, "dur", e.life)
	if e.end != nil {
		log = log.With("event", e.end.Event)
	}
	if unusable > 0 {
		log = log.With("unusable", unusable)
	}
	if e.outcome == intended || e.outcome == tried {
		log.Debug("upstream stopped")
		return
	}
	if end := errors.Unwrap(e.err); end != nil {
		log = log.With("err", end)
	}
	if e.ofMany {
		log.Debug("session with the upstream lost")
		return
	}
	if e.remote && e.end.Says != "" {
		log = log.With("why", e.end.Says)
	}
	if lines := stderr(); lines != nil {
		log = log.With("stderr", strings.Join(lines, "\n"))
	}
	if e.end.Class() == jsonrpc.ClassLogin && inARow > 1 {
		log.Debug("upstream still needs a login")
		return
	}
	tellFailure(log, e.outcome, inARow)
}

// tellFailure says once that a server is in a crash loop, and from then on is quiet
// about each round of it.
func tellFailure(log *slog.Logger, how outcome, inARow int) {
	switch {
	case inARow > crashLoop:
		log.Debug("upstream is still in a crash loop", "failures", inARow)
	case inARow == crashLoop:
		log.Warn("upstream is in a crash loop", "failures", inARow)
	case how == startFailed:
		log.Warn("upstream failed to start")
	default:
		log.Warn("upstream ended unexpectedly")
	}
}

// maxQuoted is how much of a line of stderr the message of an error may have, in bytes.
const maxQuoted = 200

// withLast adds the last of lines to a text, as far as it can be printed.
func withLast(text string, lines []string) string {
	if len(lines) == 0 {
		return text
	}
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, lines[len(lines)-1])
	n := min(len(line), maxQuoted)
	for n < len(line) && !utf8.RuneStart(line[n]) {
		n--
	}
	if n == 0 {
		return text
	}
	return text + ": " + line[:n]
}
