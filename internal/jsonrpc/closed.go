package jsonrpc

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is the error for every end of a connection: errors.Is(err, ErrClosed) holds whichever
// side ended it. The wrapped cause is only for the log.
var ErrClosed = errors.New("connection closed")

// A ClosedError is the end of a connection to an upstream, with the details that travel over a
// link. It satisfies errors.Is(err, ErrClosed).
type ClosedError struct {
	Cause Cause
	// Delivered is false only if nothing that this side sent reached the upstream. Then its
	// requests are [NotSent].
	Delivered bool

	// Event is the id of this end. It is in the log line about the end and in every error that the
	// end causes. Whoever detects the end mints it; "" if nobody has yet.
	Event string

	// Says replaces the predicate of Cause in the error message, after the upstream's name: "did
	// not start: exit status 3". If there is no upstream, it is the whole sentence. "" means that
	// Cause supplies the words.
	Says string

	// Lasting means that a retry cannot succeed before somebody changes something.
	Lasting bool

	Err error // what happened, only for the log; may be nil
}

// LoginNeeded returns the end of a connection to a server that needs a login. command is the
// command that logs in: "mcp-proxy login docs". err is for the log and may be nil.
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

// Is reports whether target is [ErrClosed].
func (e *ClosedError) Is(target error) bool { return target == ErrClosed }

// Unwrap returns Err.
func (e *ClosedError) Unwrap() error { return e.Err }

// Wire returns the connection-closed error for a request that failed in phase, like
// [ConnectionClosed]. Most people see only its message, so that is one sentence that says which
// upstream ended and why.
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

// About returns the upstream's name and its [ClosedError.Words].
func (e *ClosedError) About(upstream string) string {
	if e.Cause == CauseNoToken { // its words are a sentence of their own
		return upstream + ": " + e.Words()
	}
	return upstream + " " + e.Words()
}

// Words returns a predicate whose subject is the upstream.
func (e *ClosedError) Words() string {
	return cmp.Or(e.Says, e.Cause.words())
}

// EndOf returns a copy of the [ClosedError] in err. If err has none, EndOf returns one with the
// given cause that counts everything as delivered.
func EndOf(err error, cause Cause) *ClosedError {
	if end, ok := errors.AsType[*ClosedError](err); ok {
		mine := *end
		return &mine
	}
	return &ClosedError{Cause: cause, Delivered: true, Err: err}
}

// Refuse closes a Conn from which nothing was read because of err, and returns its end. cause is for an err without one.
func Refuse(c Conn, cause Cause, err error) error {
	end := EndOf(err, cause)
	end.Delivered, end.Event = false, cmp.Or(end.Event, NewEvent())
	_ = CloseWith(c, end)
	return end
}

// eventLetters are letters and digits that are hard to confuse.
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

// IsEvent reports whether id has the form of those that [NewEvent] returns.
func IsEvent(id string) bool {
	return len(id) == 8 && strings.Trim(id, eventLetters) == ""
}

// Closed returns an error that is [ErrClosed] and wraps cause. It returns a cause that already is
// an ErrClosed unchanged, so that an end is wrapped once.
func Closed(cause error) error {
	if cause == nil {
		return ErrClosed
	}
	if errors.Is(cause, ErrClosed) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrClosed, cause)
}

// CauseOf returns the text of an end without that of [ErrClosed], for a log.
func CauseOf(end error) string {
	if e, ok := end.(interface{ text() string }); ok {
		return e.text()
	}
	if e, ok := end.(interface{ Unwrap() []error }); ok && e.Unwrap()[0] == ErrClosed { // of Closed
		return e.Unwrap()[1].Error()
	}
	return end.Error()
}
