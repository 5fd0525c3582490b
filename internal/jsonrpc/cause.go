package jsonrpc

import (
	"strconv"
	"strings"
)

// The causes of ends, in the words that logs, clients and the link have. Beside these
// there are "exit status 3", "signal: killed", "HTTP 502" and "WebSocket closed 1006".
const (
	CauseStartFailed   = "start failed"
	CauseStartTimeout  = "start timeout"
	CauseStillStarting = "still starting"
	CauseRefused       = "initialize refused"
	CauseWrongEra      = "wrong era" // and nobody translates

	CauseStdoutClosed = "stdout closed"
	CauseStdinClosed  = "stdin closed"
	CauseWriteTimeout = "write timeout"

	CauseConnectionRefused  = "connection refused"
	CauseConnectionReset    = "connection reset"
	CauseConnectionLost     = "connection lost" // of a remote server that does not say more
	CauseConnectTimeout     = "connect timeout"
	CauseConnectFailed      = "connect failed"
	CauseHostUnreachable    = "host unreachable"
	CauseNetworkUnreachable = "network unreachable"
	CauseNoSuchHost         = "no such host"
	CauseNameLookup         = "name lookup failed"
	CauseTLS                = "TLS handshake failed"
	CauseBadHeaderFile      = "bad header file"
	CauseNoToken            = "no token"     // for a remote server, from its authorization server
	CauseLogin              = "login needed" // of a person; see LoginNeeded
	CauseStreamEnded        = "stream ended"
	CauseRequestFailed      = "request failed"
	CauseInvalidResponse    = "invalid response"
	CauseTimeout            = "timeout"
	CauseBadHandshake       = "invalid handshake" // of a WebSocket
	CauseSilent             = "no answer to pings"
	CauseTooLarge           = "message over the limit"

	CauseLinkLost  = "link lost"
	CauseLate      = "not opened in time"
	CauseBadAnswer = "bad answer to the hello"
	CauseReplaced  = "replaced by a newer link"
	CauseClosed    = "closed" // and the other end of the link does not say why

	// CauseOverloaded is the cause of a stream that was not opened because there are
	// too many: its requests are [Overloaded].
	CauseOverloaded = "overloaded"

	CauseHostStopped     = "host stopped"
	CauseChanged         = "upstream changed"
	CauseUnknownUpstream = "unknown upstream"
	CauseIdle            = "idle"
	CauseNotOffered      = "not offered" // an upstream of a host, by its proxy

	CauseClientGone   = "client disconnected"
	CauseClientSilent = "no answer in time"
	CauseSlowStream   = "client does not read"
	CauseSlowMember   = "client too slow" // of a server that it shares
	CauseTokenExpired = "token expired"   // of a client, or whatever it has proved itself with

	// CauseTokenWithdrawn is the end of what a client has opened with a token that was
	// replaced, or that the configuration does not have any more.
	CauseTokenWithdrawn = "token withdrawn"
)

// A CauseClass is what sort of end a cause is. There are few, so that they can be counted;
// what is decided by a cause is decided by its class.
type CauseClass byte

// The classes.
const (
	ClassOther       CauseClass = iota // said by a host of another version, say
	ClassSession                       // no cause: the client's own connection is over
	ClassExited                        // the server's process did
	ClassKilled                        // by a signal
	ClassStartFailed                   // it never came as far as an answer to initialize
	ClassRefused                       // it does not want to serve us as we are
	ClassFailed                        // it answered with a failure of its own
	ClassUnreachable                   // it could not be reached
	ClassBroken                        // the connection to it broke
	ClassTimeout                       // it, or a link, was too slow
	ClassInvalid                       // it does not keep to the protocol
	ClassLinkLost
	ClassOverloaded
	ClassStopped    // on purpose, with its host
	ClassChanged    // in the configuration
	ClassIdle       // nobody used it
	ClassClientGone // who used it left
	ClassClientSlow // who used it did not read
	ClassLogin      // somebody has to log in first
	ClassExpired    // who used it may not any longer
	classes
)

var classNames = [classes]string{
	"other", "session", "exited", "killed", "start_failed", "refused", "failed", "unreachable", "broken", "timeout", "invalid",
	"link_lost", "overloaded", "stopped", "changed", "idle", "client_gone", "client_slow", "login", "expired",
}

// String returns the name of the class, as a label of a metric has it.
func (c CauseClass) String() string { return classNames[c] }

// causes says of which class a cause is and, if it does not say by itself what happened,
// in words that follow the upstream's name what that did.
var causes = map[string]struct {
	class CauseClass
	words string
}{
	"": {ClassSession, ""},

	CauseStartFailed:   {ClassStartFailed, "did not start"},
	CauseStartTimeout:  {ClassStartFailed, "did not start in time"},
	CauseStillStarting: {ClassTimeout, "is still starting"},
	CauseRefused:       {ClassRefused, "refused initialize"},
	CauseWrongEra:      {ClassRefused, ""},

	CauseStdoutClosed: {ClassBroken, "closed its stdout (stdout closed)"},
	CauseStdinClosed:  {ClassBroken, "closed its stdin (stdin closed)"},
	CauseWriteTimeout: {ClassTimeout, "does not read what it is sent (write timeout)"},

	CauseConnectionRefused:  {ClassUnreachable, "is unreachable: connection refused"},
	CauseConnectionReset:    {ClassBroken, "broke off the connection (connection reset)"},
	CauseConnectionLost:     {ClassBroken, "broke off the connection (connection lost)"},
	CauseConnectTimeout:     {ClassUnreachable, "is unreachable: connect timeout"},
	CauseConnectFailed:      {ClassUnreachable, ""},
	CauseHostUnreachable:    {ClassUnreachable, "is unreachable: host unreachable"},
	CauseNetworkUnreachable: {ClassUnreachable, "is unreachable: network unreachable"},
	CauseNoSuchHost:         {ClassUnreachable, "is unreachable: no such host"},
	CauseNameLookup:         {ClassUnreachable, ""},
	CauseTLS:                {ClassUnreachable, ""},
	CauseBadHeaderFile:      {ClassUnreachable, "was not asked: a file of headersFrom cannot be read (bad header file)"},
	CauseNoToken:            {ClassUnreachable, "authentication failed: no token from the authorization server (no token)"},
	CauseLogin:              {ClassLogin, "needs a login (login needed)"},
	CauseStreamEnded:        {ClassBroken, "broke off its answer (stream ended)"},
	CauseRequestFailed:      {ClassBroken, ""},
	CauseInvalidResponse:    {ClassInvalid, ""},
	CauseTimeout:            {ClassTimeout, ""},
	CauseBadHandshake:       {ClassInvalid, ""},
	CauseSilent:             {ClassBroken, ""},
	CauseTooLarge:           {ClassInvalid, ""},

	CauseLinkLost:   {ClassLinkLost, "is unreachable: link lost"},
	CauseLate:       {ClassTimeout, ""},
	CauseBadAnswer:  {ClassInvalid, ""},
	CauseReplaced:   {ClassStopped, ""},
	CauseClosed:     {ClassOther, ""},
	CauseOverloaded: {ClassOverloaded, ""},

	CauseHostStopped:     {ClassStopped, "was stopped (host stopped)"},
	CauseChanged:         {ClassChanged, "was changed or removed in the configuration (upstream changed)"},
	CauseUnknownUpstream: {ClassChanged, "is not known to its host"},
	CauseIdle:            {ClassIdle, ""},
	CauseNotOffered:      {ClassRefused, ""},

	CauseClientGone:   {ClassClientGone, ""},
	CauseClientSilent: {ClassTimeout, ""},
	CauseSlowStream:   {ClassClientSlow, ""},
	CauseSlowMember:   {ClassClientSlow, ""},
	CauseTokenExpired: {ClassExpired, ""},

	CauseTokenWithdrawn: {ClassExpired, ""},

	HTTPCause(401): {ClassRefused, "rejected our credentials (HTTP 401)"},
	HTTPCause(403): {ClassRefused, "rejected our credentials (HTTP 403)"},
}

// ClassOf returns the class of a cause.
func ClassOf(cause string) CauseClass {
	if known, ok := causes[cause]; ok {
		return known.class
	}
	kind, _, _ := strings.Cut(cause, " ")
	switch status := HTTPStatus(cause); {
	case status >= 500:
		return ClassFailed
	case status > 0:
		return ClassRefused
	case kind == "exit":
		return ClassExited
	case kind == "signal:":
		return ClassKilled
	case kind == "WebSocket":
		return ClassBroken
	}
	return ClassOther
}

// ExitOf returns the exit status that such a cause names, nil for none, or the signal, ""
// for none.
func ExitOf(cause string) (status *int, signal string) {
	if text, found := strings.CutPrefix(cause, "exit status "); found {
		if n, err := strconv.Atoi(text); err == nil {
			return &n, ""
		}
	}
	signal, _ = strings.CutPrefix(cause, "signal: ")
	if signal == cause {
		signal = ""
	}
	return nil, signal
}

const httpPrefix = "HTTP "

// HTTPCause returns the cause of a request that was answered with an HTTP status.
func HTTPCause(status int) string { return httpPrefix + strconv.Itoa(status) }

// HTTPStatus returns the status of such a cause, 0 for any other one.
func HTTPStatus(cause string) int {
	text, found := strings.CutPrefix(cause, httpPrefix)
	status, err := strconv.Atoi(text)
	if !found || err != nil {
		return 0
	}
	return status
}

// saidBy puts a cause into words, which follow the upstream's name.
func saidBy(cause string) string {
	if words := causes[cause].words; words != "" {
		return words
	}
	switch class := ClassOf(cause); {
	case class == ClassKilled:
		return "was killed (" + cause + ")"
	case class == ClassExited:
		return "exited (" + cause + ")"
	case HTTPStatus(cause) > 0:
		return "answered with " + cause
	}
	return "is gone (" + cause + ")"
}
