package jsonrpc

import (
	"strconv"
	"strings"
)

// A Cause says why a connection ended. Causes are compared as values. String returns the text for
// clients, logs and the link, and [ParseCause] reads a text that came from another process. The
// zero Cause means that there is none.
type Cause struct {
	Kind   Kind
	Status int    // the exit status, the HTTP status or the code of the WebSocket's close frame
	Detail string // the signal; for a Cause without a Status, the whole text
}

// known maps texts to the causes below. words maps those causes to a predicate whose subject is the
// upstream, where the text alone would not do.
var (
	known = map[string]Cause{"": {}}
	words = map[Cause]string{
		HTTPCause(401): "rejected our credentials (HTTP 401)",
		HTTPCause(403): "refused the request (HTTP 403)",
	}
)

func newCause(kind Kind, text, said string) Cause {
	c := Cause{Kind: kind, Detail: text}
	known[text], words[c] = c, said
	return c
}

// The causes without parameters.
var (
	CauseStartFailed   = newCause(KindStartFailed, "start failed", "did not start")
	CauseStartTimeout  = newCause(KindStartFailed, "start timeout", "did not start in time")
	CauseStillStarting = newCause(KindTimeout, "still starting", "is still starting")
	CauseRefused       = newCause(KindRefused, "initialize refused", "refused initialize")
	CauseWrongEra      = newCause(KindRefused, "wrong era", "") // and no translation is available

	CauseStdoutClosed = newCause(KindBroken, "stdout closed", "closed its stdout (stdout closed)")
	CauseStdinClosed  = newCause(KindBroken, "stdin closed", "closed its stdin (stdin closed)")
	CauseWriteTimeout = newCause(KindTimeout, "write timeout", "does not read what it is sent (write timeout)")

	CauseConnectionRefused = newCause(KindUnreachable, "connection refused", "")
	CauseConnectionReset   = newCause(KindBroken, "connection reset", "broke off the connection (connection reset)")
	// CauseConnectionLost is for a remote server that gives no reason.
	CauseConnectionLost     = newCause(KindBroken, "connection lost", "broke off the connection (connection lost)")
	CauseConnectTimeout     = newCause(KindUnreachable, "connect timeout", "")
	CauseConnectFailed      = newCause(KindUnreachable, "connect failed", "")
	CauseHostUnreachable    = newCause(KindUnreachable, "host unreachable", "")
	CauseNetworkUnreachable = newCause(KindUnreachable, "network unreachable", "")
	CauseNoSuchHost         = newCause(KindUnreachable, "no such host", "")
	CauseNameLookup         = newCause(KindUnreachable, "name lookup failed", "")
	CauseTLS                = newCause(KindUnreachable, "TLS handshake failed", "")
	CauseBadHeaderFile      = newCause(KindUnreachable, "bad header file",
		"was not asked: a file of headersFrom cannot be read (bad header file)")
	// CauseNoToken means that the authorization server of a remote server issued no token.
	CauseNoToken = newCause(KindUnreachable, "no token",
		"authentication failed: no token from the authorization server (no token)")
	// CauseLogin means that a person must log in first; see [LoginNeeded].
	CauseLogin           = newCause(KindLogin, "login needed", "needs a login (login needed)")
	CauseStreamEnded     = newCause(KindBroken, "stream ended", "broke off its answer (stream ended)")
	CauseRequestFailed   = newCause(KindBroken, "request failed", "")
	CauseInvalidResponse = newCause(KindInvalid, "invalid response", "")
	CauseTimeout         = newCause(KindTimeout, "timeout", "")
	CauseBadHandshake    = newCause(KindInvalid, "invalid handshake", "") // of a WebSocket
	CauseSilent          = newCause(KindBroken, "no answer to pings", "")
	CauseTooLarge        = newCause(KindInvalid, "message over the limit", "")

	CauseLinkLost  = newCause(KindLinkLost, "link lost", "is unreachable: link lost")
	CauseLate      = newCause(KindTimeout, "not opened in time", "")
	CauseBadAnswer = newCause(KindInvalid, "bad answer to the hello", "")
	CauseReplaced  = newCause(KindStopped, "replaced by a newer link", "")
	CauseClosed    = newCause(KindOther, "closed", "") // the other end of the link gave no reason

	// CauseOverloaded means that a stream was not opened because there are too many. Its requests
	// fail as [Overloaded].
	CauseOverloaded = newCause(KindOverloaded, "overloaded", "")

	CauseHostStopped = newCause(KindStopped, "host stopped", "was stopped (host stopped)")
	CauseChanged     = newCause(KindChanged, "upstream changed",
		"was changed or removed in the configuration (upstream changed)")
	CauseUnknownUpstream = newCause(KindChanged, "unknown upstream", "is not known to its host")
	CauseIdle            = newCause(KindIdle, "idle", "")
	CauseNotOffered      = newCause(KindRefused, "not offered", "") // the proxy does not want it

	CauseClientGone   = newCause(KindClientGone, "client disconnected", "")
	CauseClientSilent = newCause(KindTimeout, "no answer in time", "")
	CauseSlowStream   = newCause(KindClientSlow, "client does not read", "")
	CauseSlowMember   = newCause(KindClientSlow, "client too slow", "") // of a shared server
	// CauseTokenExpired covers every kind of credentials, not only tokens.
	CauseTokenExpired = newCause(KindExpired, "token expired", "")

	// CauseTokenWithdrawn means that the client's token was replaced, or is no longer in the
	// configuration.
	CauseTokenWithdrawn = newCause(KindExpired, "token withdrawn", "")
)

// ExitCause returns the cause for a process that exited.
func ExitCause(status int) Cause { return Cause{Kind: KindExited, Status: status} }

// SignalCause returns the cause for a process that a signal killed: "killed".
func SignalCause(signal string) Cause { return Cause{Kind: KindKilled, Detail: signal} }

// HTTPCause returns the cause for a request that failed with an HTTP status.
func HTTPCause(status int) Cause {
	if status >= 500 {
		return Cause{Kind: KindFailed, Status: status}
	}
	return Cause{Kind: KindRefused, Status: status}
}

// WebSocketCause returns the cause for a WebSocket that was closed with a code.
func WebSocketCause(code int) Cause { return Cause{Kind: KindBroken, Status: code} }

// OtherCause returns a cause of unknown kind. For an empty text it returns the zero Cause.
func OtherCause(text string) Cause {
	if text == "" {
		return Cause{}
	}
	return Cause{Kind: KindOther, Detail: text}
}

// ParseCause parses the text of a Cause from another process, possibly of another version. The
// result's String is always that text.
func ParseCause(text string) Cause {
	if c, ok := known[text]; ok {
		return c
	}
	if signal, ok := strings.CutPrefix(text, "signal: "); ok {
		return SignalCause(signal)
	}
	status, _ := strconv.ParseInt(text[strings.LastIndexByte(text, ' ')+1:], 0, 0)
	for _, c := range []Cause{ExitCause(int(status)), HTTPCause(int(status)), WebSocketCause(int(status))} {
		if c.String() == text {
			return c
		}
	}
	return OtherCause(text)
}

// String returns the text of c: "exit status 3", "signal: killed", "HTTP 502", "link lost".
func (c Cause) String() string {
	switch {
	case c.Kind == KindKilled:
		return "signal: " + c.Detail
	case c.Detail != "":
		return c.Detail
	case c.Kind == KindExited && c.Status >= 1<<16: // as package os formats it on Windows
		return "exit status 0x" + strconv.FormatInt(int64(c.Status), 16)
	case c.Kind == KindExited:
		return "exit status " + strconv.Itoa(c.Status)
	case c.HTTPStatus() > 0:
		return "HTTP " + strconv.Itoa(c.Status)
	case c.Kind == KindBroken:
		return "WebSocket closed " + strconv.Itoa(c.Status)
	}
	return ""
}

// IsZero reports whether c is the zero Cause.
func (c Cause) IsZero() bool { return c == Cause{} }

// MarshalText implements [encoding.TextMarshaler].
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler] by [ParseCause].
func (c *Cause) UnmarshalText(text []byte) error {
	*c = ParseCause(string(text))
	return nil
}

// HTTPStatus returns the status of an [HTTPCause], 0 for other causes.
func (c Cause) HTTPStatus() int {
	if c.Kind == KindRefused || c.Kind == KindFailed {
		return c.Status
	}
	return 0
}

// words returns a predicate whose subject is the upstream.
func (c Cause) words() string {
	text := c.String()
	switch {
	case words[c] != "":
		return words[c]
	case c.Kind == KindKilled:
		return "was killed (" + text + ")"
	case c.Kind == KindExited:
		return "exited (" + text + ")"
	case c.HTTPStatus() > 0:
		return "answered with " + text
	case c.Kind == KindUnreachable:
		return "is unreachable: " + text
	}
	return "is gone (" + text + ")"
}

// A Kind classifies causes. There are few kinds, so that they can be metric labels; most decisions
// about an end depend only on its kind.
type Kind byte

// The kinds.
const (
	KindSession     Kind = iota // no cause: the client's own connection is over
	KindOther                   // a text that this version does not know
	KindExited                  // the server's process exited
	KindKilled                  // a signal killed the process
	KindStartFailed             // the server did not get as far as an answer to initialize
	KindRefused                 // the server refuses to serve us
	KindFailed                  // the server answered with a failure of its own
	KindUnreachable             // the server could not be reached
	KindBroken                  // the connection to the server broke
	KindTimeout                 // the server, a link or a client was too slow
	KindInvalid                 // the server violates the protocol
	KindLinkLost
	KindOverloaded
	KindStopped    // on purpose, together with its host
	KindChanged    // the configuration changed
	KindIdle       // unused
	KindClientGone // the client left
	KindClientSlow // the client did not read
	KindLogin      // a person must log in first
	KindExpired    // the client's credentials are no longer valid
	kinds
)

var kindNames = [kinds]string{
	"session", "other", "exited", "killed", "start_failed", "refused", "failed", "unreachable", "broken", "timeout", "invalid",
	"link_lost", "overloaded", "stopped", "changed", "idle", "client_gone", "client_slow", "login", "expired",
}

// String returns the kind's name, which is a metric label.
func (k Kind) String() string { return kindNames[k] }
