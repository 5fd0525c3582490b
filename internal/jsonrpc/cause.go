package jsonrpc

import (
	"strconv"
	"strings"
)

// A Cause is why a connection ended. Causes are compared as values; the text of one is
// made for clients, logs and the link, by String, and read by [ParseCause] where it comes
// from another process. The zero Cause is that of an end without one.
type Cause struct {
	Kind   Kind
	Status int    // the exit status, the HTTP status or the code of the WebSocket's close frame
	Detail string // the signal, or without a Status the whole text
}

// known are the causes below by their text, and words what the upstream did, in words that
// follow its name, of those whose text does not say it.
var (
	known = map[string]Cause{"": {}}
	words = map[Cause]string{
		HTTPCause(401): "rejected our credentials (HTTP 401)",
		HTTPCause(403): "rejected our credentials (HTTP 403)",
	}
)

func newCause(kind Kind, text, said string) Cause {
	c := Cause{Kind: kind, Detail: text}
	known[text], words[c] = c, said
	return c
}

// The causes that need no more than their name.
var (
	CauseStartFailed   = newCause(KindStartFailed, "start failed", "did not start")
	CauseStartTimeout  = newCause(KindStartFailed, "start timeout", "did not start in time")
	CauseStillStarting = newCause(KindTimeout, "still starting", "is still starting")
	CauseRefused       = newCause(KindRefused, "initialize refused", "refused initialize")
	CauseWrongEra      = newCause(KindRefused, "wrong era", "") // and nobody translates

	CauseStdoutClosed = newCause(KindBroken, "stdout closed", "closed its stdout (stdout closed)")
	CauseStdinClosed  = newCause(KindBroken, "stdin closed", "closed its stdin (stdin closed)")
	CauseWriteTimeout = newCause(KindTimeout, "write timeout", "does not read what it is sent (write timeout)")

	CauseConnectionRefused = newCause(KindUnreachable, "connection refused", "is unreachable: connection refused")
	CauseConnectionReset   = newCause(KindBroken, "connection reset", "broke off the connection (connection reset)")
	// CauseConnectionLost is that of a remote server that does not say more.
	CauseConnectionLost     = newCause(KindBroken, "connection lost", "broke off the connection (connection lost)")
	CauseConnectTimeout     = newCause(KindUnreachable, "connect timeout", "is unreachable: connect timeout")
	CauseConnectFailed      = newCause(KindUnreachable, "connect failed", "")
	CauseHostUnreachable    = newCause(KindUnreachable, "host unreachable", "is unreachable: host unreachable")
	CauseNetworkUnreachable = newCause(KindUnreachable, "network unreachable", "is unreachable: network unreachable")
	CauseNoSuchHost         = newCause(KindUnreachable, "no such host", "is unreachable: no such host")
	CauseNameLookup         = newCause(KindUnreachable, "name lookup failed", "")
	CauseTLS                = newCause(KindUnreachable, "TLS handshake failed", "")
	CauseBadHeaderFile      = newCause(KindUnreachable, "bad header file",
		"was not asked: a file of headersFrom cannot be read (bad header file)")
	// CauseNoToken means that the authorization server of a remote server gave none.
	CauseNoToken = newCause(KindUnreachable, "no token",
		"authentication failed: no token from the authorization server (no token)")
	// CauseLogin waits for a person; see [LoginNeeded].
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
	CauseClosed    = newCause(KindOther, "closed", "") // and the other end of the link does not say why

	// CauseOverloaded is the cause of a stream that was not opened because there are
	// too many: its requests are [Overloaded].
	CauseOverloaded = newCause(KindOverloaded, "overloaded", "")

	CauseHostStopped = newCause(KindStopped, "host stopped", "was stopped (host stopped)")
	CauseChanged     = newCause(KindChanged, "upstream changed",
		"was changed or removed in the configuration (upstream changed)")
	CauseUnknownUpstream = newCause(KindChanged, "unknown upstream", "is not known to its host")
	CauseIdle            = newCause(KindIdle, "idle", "")
	CauseNotOffered      = newCause(KindRefused, "not offered", "") // an upstream of a host, by its proxy

	CauseClientGone   = newCause(KindClientGone, "client disconnected", "")
	CauseClientSilent = newCause(KindTimeout, "no answer in time", "")
	CauseSlowStream   = newCause(KindClientSlow, "client does not read", "")
	CauseSlowMember   = newCause(KindClientSlow, "client too slow", "") // of a server that it shares
	// CauseTokenExpired is that of whatever a client has proved itself with.
	CauseTokenExpired = newCause(KindExpired, "token expired", "")

	// CauseTokenWithdrawn is the end of what a client has opened with a token that was
	// replaced, or that the configuration does not have any more.
	CauseTokenWithdrawn = newCause(KindExpired, "token withdrawn", "")
)

// ExitCause returns the cause of a process that exited.
func ExitCause(status int) Cause { return Cause{Kind: KindExited, Status: status} }

// SignalCause returns the cause of a process that was killed by a signal: "killed".
func SignalCause(signal string) Cause { return Cause{Kind: KindKilled, Detail: signal} }

// HTTPCause returns the cause of a request that was answered with an HTTP status.
func HTTPCause(status int) Cause {
	if status >= 500 {
		return Cause{Kind: KindFailed, Status: status}
	}
	return Cause{Kind: KindRefused, Status: status}
}

// WebSocketCause returns the cause of a WebSocket that was closed with a code.
func WebSocketCause(code int) Cause { return Cause{Kind: KindBroken, Status: code} }

// OtherCause returns the cause of an end that is of no known kind. Without a text it is the
// zero Cause.
func OtherCause(text string) Cause {
	if text == "" {
		return Cause{}
	}
	return Cause{Kind: KindOther, Detail: text}
}

// ParseCause reads a text that another process, perhaps of another version, made of a Cause.
// String of the result is always that text.
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
	case c.Kind == KindExited && c.Status >= 1<<16: // of Windows, as package os writes it
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

// IsZero reports whether there is no cause.
func (c Cause) IsZero() bool { return c == Cause{} }

// MarshalText implements [encoding.TextMarshaler].
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler] by [ParseCause].
func (c *Cause) UnmarshalText(text []byte) error {
	*c = ParseCause(string(text))
	return nil
}

// HTTPStatus returns the status of a [HTTPCause], 0 for any other one.
func (c Cause) HTTPStatus() int {
	if c.Kind == KindRefused || c.Kind == KindFailed {
		return c.Status
	}
	return 0
}

// words returns what the upstream did, in words that follow its name.
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
	}
	return "is gone (" + text + ")"
}

// A Kind is what sort of end a cause is. There are few, so that they can be counted, and
// most decisions about an end depend on its kind alone.
type Kind byte

// The kinds.
const (
	KindSession     Kind = iota // no cause: the client's own connection is over
	KindOther                   // a text that is not known here, of a host of another version for one
	KindExited                  // the server's process did
	KindKilled                  // by a signal
	KindStartFailed             // it never came as far as an answer to initialize
	KindRefused                 // it does not want to serve us as we are
	KindFailed                  // it answered with a failure of its own
	KindUnreachable             // it could not be reached
	KindBroken                  // the connection to it broke
	KindTimeout                 // it, or a link, was too slow
	KindInvalid                 // it does not keep to the protocol
	KindLinkLost
	KindOverloaded
	KindStopped    // on purpose, with its host
	KindChanged    // in the configuration
	KindIdle       // nobody used it
	KindClientGone // who used it left
	KindClientSlow // who used it did not read
	KindLogin      // somebody has to log in first
	KindExpired    // who used it may not any longer
	kinds
)

var kindNames = [kinds]string{
	"session", "other", "exited", "killed", "start_failed", "refused", "failed", "unreachable", "broken", "timeout", "invalid",
	"link_lost", "overloaded", "stopped", "changed", "idle", "client_gone", "client_slow", "login", "expired",
}

// String returns the name of the kind, as a label of a metric has it.
func (k Kind) String() string { return kindNames[k] }
