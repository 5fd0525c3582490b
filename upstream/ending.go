package upstream

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/shared"
)

// An ending describes the end of a stream.
type ending struct {
	outcome  outcome
	err      error                // for the proxy
	end      *jsonrpc.ClosedError // err, if the server ended; nil if the proxy closed the stream
	cause    jsonrpc.Cause        // of the server's end, for the log
	inFlight int
	life     time.Duration
	remote   bool // the server is remote
	ofMany   bool // failureLog reports it together with the ends of other streams
}

// didNotStart makes the end that of a server that never started. sent is whether the server
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
	e.end.Says = cmp.Or(e.end.Says, "did not start: "+e.cause.String())
	if !sent {
		e.end.Cause = jsonrpc.CauseStartFailed
	}
}

// tell logs an end in one line. unusable counts invalid messages of the server, stderr
// returns the last lines of a process, and inARow counts the failures in a row.
func (e *ending) tell(log *slog.Logger, unusable int64, stderr func() []string, inARow int) {
	log = log.With("cause", cmp.Or(e.cause.String(), jsonrpc.CauseOf(e.err)), "in_flight", e.inFlight, "dur", e.life)
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
	if (e.remote || e.cause == jsonrpc.CauseRefused) && e.end.Says != "" {
		log = log.With("why", e.end.Says)
	}
	if lines := stderr(); lines != nil {
		log = log.With("stderr", strings.Join(lines, "\n"))
	}
	if e.end.Cause.Kind == jsonrpc.KindLogin && inARow > 1 {
		log.Debug("upstream still needs a login")
		return
	}
	tellFailure(log, e.outcome, inARow)
}

// tellFailure logs a failure. In a crash loop it warns once, and then logs at level debug.
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

// maxQuoted bounds the quote of stderr in the message of an error, in bytes.
const maxQuoted = 200

// withLast appends the last of lines to a text, without unprintable characters.
func withLast(text string, lines []string) string {
	if len(lines) == 0 {
		return text
	}
	return withQuote(text, lines[len(lines)-1], maxQuoted)
}

// maxRefusal bounds the quote of a server's error in the message of ours, in bytes.
const maxRefusal = 1000

// withRefusal appends the message of the error with which a server refused initialize, and
// the event in it if the server is a proxy.
func withRefusal(text string, failed json.RawMessage) string {
	text = withQuote(text, jsonrpc.WhatOf(failed), maxRefusal)
	if event := jsonrpc.ReadErrorData(failed).Event; jsonrpc.IsEvent(event) {
		text += " (event " + event + " there)"
	}
	return text
}

// withQuote appends up to most bytes of a server's line, without unprintable characters.
func withQuote(text, line string, most int) string {
	line = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return -1
	}, strings.TrimSpace(line))
	n := min(len(line), most)
	for n < len(line) && !utf8.RuneStart(line[n]) {
		n--
	}
	if n == 0 {
		return text
	}
	return text + ": " + line[:n]
}

// unread reports whether a process has certainly read nothing of a client's: it has read nothing
// at all, or is shared or on trial, where the first messages are our own.
func (s *stream) unread() bool {
	p, ok := s.server.(*process.Server)
	return ok && (s.id.key == sharedKey || mcp.HolderOf(s.id.key).Who == "" || p.Unread())
}

// ending classifies an end.
func (s *stream) ending(cause jsonrpc.Cause, err error) ending {
	inFlight, start := s.inFlight.state()
	if cause.IsZero() && start.refused { // the proxy closed the stream because of the refusal
		cause = jsonrpc.CauseRefused
	}
	e := ending{err: err, cause: cause, inFlight: inFlight, life: time.Since(s.began), remote: s.up.Command == nil}
	if cause.IsZero() {
		return e
	}
	closed := &jsonrpc.ClosedError{Err: err}
	if cause != jsonrpc.CauseRefused {
		closed = jsonrpc.EndOf(err, cause) // err may have details
	}
	closed.Cause, closed.Delivered = cause, s.delivered()
	closed.Event = cmp.Or(closed.Event, jsonrpc.NewEvent())
	e.err, e.end = closed, closed
	switch class := closed.Cause.Kind; {
	case class == jsonrpc.KindStopped, class == jsonrpc.KindChanged:
	case errors.Is(err, mcp.ErrOtherEra): // a legacy server has refused initialize, a modern one was replaced
		e.outcome, closed.Delivered = tried, s.inFlight.modern
	case s.onTrial():
		e.outcome, closed.Err = tried, shared.ErrTried
	case start.answered:
		e.outcome, e.ofMany = died, e.remote && !s.up.together(s.id.era)
	default:
		e.outcome = startFailed
		e.didNotStart(start.sent)
		other := s.eras.otherVersions()
		switch {
		case cause == jsonrpc.CauseRefused && other != nil:
			closed.Says = other.Error()
		case cause == jsonrpc.CauseRefused && !s.quotes: // clients do not see it, log and event do
			closed.Err = cmp.Or(closed.Err, errors.New(withRefusal("it says", start.refusal)))
		case !s.quotes:
		case cause == jsonrpc.CauseRefused:
			closed.Says = withRefusal(closed.Words(), start.refusal)
		case !e.remote:
			closed.Says = withLast(closed.Says, s.stderr())
		}
	}
	return e
}

// delivered reports whether the server may have got a request of a client.
func (s *stream) delivered() bool {
	_, start := s.inFlight.state()
	return start.answered || start.sent && !s.inFlight.modern
}

// stderr returns the last lines that a process wrote to stderr before its end.
func (s *stream) stderr() []string {
	p, ok := s.server.(*process.Server)
	if !ok {
		return nil
	}
	return p.LastWords()
}
