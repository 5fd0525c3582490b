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
)

// An ending is what there is to say about the end of a stream.
type ending struct {
	outcome  outcome
	err      error                // for the proxy
	end      *jsonrpc.ClosedError // that is for the restart state; nil if the proxy chose it
	cause    jsonrpc.Cause        // of the server's end, for the log
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
	e.end.Says = "did not start: " + e.cause.String()
	if !sent {
		e.end.Cause = jsonrpc.CauseStartFailed
	}
}

// tell writes the one line of an end to log. unusable is how many messages of the server
// were none, stderr returns the last lines of a process, and inARow counts its failures.
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
	if e.remote && e.end.Says != "" {
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
	return withQuote(text, lines[len(lines)-1], maxQuoted)
}

// maxRefusal is how much of the message of an error that refuses initialize another may
// have, in bytes.
const maxRefusal = 1000

// withRefusal adds what the error says with which a server refused initialize, and its
// event, if the server is a proxy which knows more of it.
func withRefusal(text string, failed json.RawMessage) string {
	text = withQuote(text, jsonrpc.WhatOf(failed), maxRefusal)
	if event := jsonrpc.ReadErrorData(failed).Event; jsonrpc.IsEvent(event) {
		text += " (event " + event + " there)"
	}
	return text
}

// withQuote adds up to most bytes of a line of a server, as far as it can be printed.
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
