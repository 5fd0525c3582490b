package jsonrpc

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is what every end of a connection is: errors.Is(err, ErrClosed)
// holds for an end on this side and on the other, and the wrapped cause is for
// the log alone.
var ErrClosed = errors.New("connection closed")

// A ClosedError is the end of a connection to an upstream, with what the other
// side of a link needs to say about it. It satisfies errors.Is(err, ErrClosed).
type ClosedError struct {
	Cause Cause
	// Delivered is false only if nothing that was sent here ever reached the
	// upstream, so that its requests are [NotSent].
	Delivered bool

	// Event is the id of this end: in the log line about it, and in every error
	// that it causes. Who sees the end mints it; "" if nobody has.
	Event string

	// Says is what the upstream did, as the error says it behind its name: "did
	// not start: exit status 3". "" leaves that to Cause. Without an upstream it is the
	// whole sentence.
	Says string

	// Lasting means that trying again cannot help before somebody has changed
	// something.
	Lasting bool

	Err error // what happened, for the log; may be nil
}

// LoginNeeded returns the end of a connection to a server that a person must log in to,
// with the command that does so: "mcp-proxy login docs". err is for the log, and may be nil.
func LoginNeeded(command string, err error) *ClosedError {
	return &ClosedError{Cause: CauseLogin, Says: "needs a login: " + command, Lasting: true, Err: err}
}

// Error implements error.
func (e *ClosedError) Error() string {
	return ErrClosed.Error() + ": " + e.text()
}

func (e *ClosedError) text() string {
	if e.Err == nil {
		return e.Cause.String()
	}
	return e.Cause.String() + ": " + e.Err.Error()
}

// Is makes a ClosedError an [ErrClosed].
func (e *ClosedError) Is(target error) bool { return target == ErrClosed }

// Unwrap returns what happened.
func (e *ClosedError) Unwrap() error { return e.Err }

// Wire returns the one connection-closed error of a request that had come as far as
// phase, as [ConnectionClosed] does. Its message is all that most people see, so
// it is one sentence that says which upstream and why.
func (e *ClosedError) Wire(code int, upstream string, phase Phase) *Error {
	var says string
	switch {
	case e.Cause.IsZero():
		says = "this session is over"
	case upstream == "":
		says = cmp.Or(e.Says, e.Cause.String())
	default:
		says = e.About(upstream)
	}
	return &Error{code, closedPrefix + says, ErrorData{
		Reason: ReasonClosed, Upstream: upstream, Cause: e.Cause, Phase: phase,
		Retryable: phase == NotSent && !e.Lasting, Event: e.Event,
	}}
}

// closedPrefix begins the message of a connection-closed error.
const closedPrefix = "Connection closed: "

// About returns the name of the upstream and what it did.
func (e *ClosedError) About(upstream string) string {
	if e.Cause == CauseNoToken { // its words are a sentence
		return upstream + ": " + e.Words()
	}
	return upstream + " " + e.Words()
}

// Words returns what the upstream did, in words that follow its name.
func (e *ClosedError) Words() string {
	return cmp.Or(e.Says, e.Cause.words())
}

// EndOf returns, as a copy, what err says of the end of a connection. An err that
// is no [ClosedError] is the end with that cause, and may have cost what was sent.
func EndOf(err error, cause Cause) *ClosedError {
	if end, ok := errors.AsType[*ClosedError](err); ok {
		mine := *end
		return &mine
	}
	return &ClosedError{Cause: cause, Delivered: true, Err: err}
}

// eventLetters are those that nobody confuses with each other.
const eventLetters = "0123456789abcdefghjkmnpqrstvwxyz"

// NewEvent returns the id of an event, such as "k3v9x2ma".
func NewEvent() string {
	var id [8]byte
	rand.Read(id[:])
	for i := range id {
		id[i] = eventLetters[int(id[i])%len(eventLetters)]
	}
	return string(id[:])
}

// IsEvent reports whether id looks as those of [NewEvent] do.
func IsEvent(id string) bool {
	return len(id) == 8 && strings.Trim(id, eventLetters) == ""
}

// Closed returns an error that is [ErrClosed] and wraps cause. A cause that is
// an ErrClosed already is returned as it is, so that an end is wrapped once.
func Closed(cause error) error {
	if cause == nil {
		return ErrClosed
	}
	if errors.Is(cause, ErrClosed) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrClosed, cause)
}

// CauseOf returns what an end says beside being [ErrClosed], for a log.
func CauseOf(end error) string {
	if e, ok := end.(interface{ text() string }); ok {
		return e.text()
	}
	if e, ok := end.(interface{ Unwrap() []error }); ok && e.Unwrap()[0] == ErrClosed { // of Closed
		return e.Unwrap()[1].Error()
	}
	return end.Error()
}
