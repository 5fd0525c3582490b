package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Causes with which contexts are cancelled.
var (
	errCancelled   = errors.New("the request was cancelled")
	errSessionLost = errors.New("the server has forgotten the session")
	errStalled     = errors.New("the server does not read the request")
	errReset       = errors.New("the server resets each try")
)

// A failure is why a call got no answer from the server. The call is answered with an
// error made from it, and the log counts it.
type failure struct {
	cause  jsonrpc.Cause
	phase  jsonrpc.Phase // how far the request came
	status int           // of the HTTP response; zero if there was none
	oauth  bool          // the response asks for OAuth
	barred bool          // a 403 that may be about something else than our credentials, such as the Host
	says   string        // as in jsonrpc.ClosedError; "" for the default text
	fixed  bool          // only a change of the configuration helps
	event  string        // in the log; "" before it is logged
	lost   bool          // the server does not know the session: the request did not run
	err    error         // for the log; may be nil

	// said is the server's own error if lost is set. It is the answer if a new session
	// does not help.
	said *jsonrpc.Message
}

// mayPass reports whether no connection was made, which may succeed soon.
func (f *failure) mayPass() bool {
	return f.cause.Kind == jsonrpc.KindUnreachable && f.phase == jsonrpc.NotSent && f.status == 0 && !f.fixed
}

// passing reports whether the server may accept the same request soon: it is overloaded, or the connection broke off.
func (f *failure) passing() bool {
	switch f.status {
	case 0, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return !f.fixed
	}
	return false
}

// answer returns the error that answers the request id.
func (f *failure) answer(upstream string, id jsonrpc.ID) *jsonrpc.Message {
	if f.cause == jsonrpc.CauseInvalidResponse {
		return jsonrpc.NewError(id, jsonrpc.InvalidResponse(upstream, f.err.Error()))
	}
	return jsonrpc.NewError(id, f.end().Wire(jsonrpc.CodeInternalError, upstream, f.phase))
}

// end returns the failure as the end of a session that delivered nothing.
func (f *failure) end() *jsonrpc.ClosedError {
	end := &jsonrpc.ClosedError{Cause: f.cause, Event: f.event, Says: f.says, Lasting: f.lasting(), Err: f.err}
	switch {
	case f.oauth:
		end.Says = "needs OAuth (" + f.cause.String() + ")"
	case f.barred:
		end.Says = "refused the request (" + f.cause.String() + ")"
	case isRefusal(f.status):
		end.Says = "rejected our credentials (" + f.cause.String() + ")"
	}
	return end
}

// denied reports whether the server lets us in with other credentials at most, or a login is needed.
func (f *failure) denied() bool { return isRefusal(f.status) || f.cause == jsonrpc.CauseLogin }

// lasting reports whether retrying is useless until the configuration or the server changes.
func (f *failure) lasting() bool {
	switch f.status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return f.fixed || f.status >= 300 && f.status < 500
}

// broke reports whether the connection or the stream broke before the answer came, so that
// the request may or may not have run.
func (f *failure) broke() bool {
	return f.cause != jsonrpc.CauseInvalidResponse && f.status == 0 && f.phase == jsonrpc.InFlight
}

// text returns the cause for a log, or why the answer was invalid.
func (f *failure) text() string {
	if f.cause == jsonrpc.CauseInvalidResponse {
		return f.err.Error()
	}
	return f.cause.String()
}

// invalid returns the failure of a request whose answer came but cannot be used.
func invalid(reason string) *failure {
	return &failure{cause: jsonrpc.CauseInvalidResponse, phase: jsonrpc.InFlight, err: errors.New(reason)}
}

// refused returns the failure of a request that was answered with an HTTP status.
func refused(status int) *failure {
	return &failure{cause: jsonrpc.HTTPCause(status), phase: jsonrpc.InFlight, status: status, barred: status == http.StatusForbidden}
}

// refusedBy is refused for a response, which may ask for OAuth. If we sent credentials, the
// server has rejected those instead.
func (t *transport) refusedBy(resp *http.Response) *failure {
	f := refused(resp.StatusCode)
	challenges := resp.Header.Values("Www-Authenticate")
	f.oauth = t.credentials == nil && f.denied() && asksForOAuth(challenges)
	f.barred = f.barred && len(challenges) == 0
	return f
}

// asksForOAuth reports whether a challenge names the metadata of a protected resource
// (RFC 9728, 5.1), which is how MCP servers ask for OAuth.
func asksForOAuth(challenges []string) bool {
	return slices.ContainsFunc(challenges, resourceMetadata.MatchString)
}

var resourceMetadata = regexp.MustCompile(`(?i)(^|[\s,])resource_metadata\s*=`)

// broken returns the failure of a request because of err. reached is whether it may have
// been sent.
func broken(ctx context.Context, err error, reached bool) *failure {
	f := &failure{cause: CauseOf(err), phase: jsonrpc.InFlight, fixed: isUntrusted(err), err: loggable(err)}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSessionLost):
		f.cause, f.err = jsonrpc.HTTPCause(http.StatusNotFound), cause
	case errors.Is(cause, errStalled):
		f.cause, f.err = jsonrpc.CauseWriteTimeout, cause
	case errors.Is(cause, errReset):
		f.cause, f.err = jsonrpc.CauseConnectionReset, cause
	}
	if strings.Contains(err.Error(), "peer's advertised limit") { // of HTTP/2, for all headers together
		f.fixed, f.says = true, "takes no headers of that size"
	}
	if !reached {
		f.phase = jsonrpc.NotSent
	}
	return f
}

// dropped returns the failure of a request whose event stream ended with end: io.EOF if
// the server ended it.
func dropped(ctx context.Context, end error) *failure {
	f := broken(ctx, end, true)
	if end == io.EOF && context.Cause(ctx) == nil {
		f.cause = jsonrpc.CauseStreamEnded
	}
	return f
}

// loggable returns an error of net/http without the URL and without quotes of the response,
// in which a server may repeat our own headers.
func loggable(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	said, _, quotes := strings.Cut(err.Error(), `"`)
	if !quotes || isTLS(err) {
		return err
	}
	return errors.New(strings.TrimRight(said, " :[("))
}

// causes are the causes of errors that errors.Is finds.
var causes = []struct {
	err   error
	cause jsonrpc.Cause
}{
	{syscall.ECONNREFUSED, jsonrpc.CauseConnectionRefused},
	{syscall.EHOSTUNREACH, jsonrpc.CauseHostUnreachable},
	{syscall.ENETUNREACH, jsonrpc.CauseNetworkUnreachable},
	{syscall.ECONNRESET, jsonrpc.CauseConnectionReset},
	{syscall.EPIPE, jsonrpc.CauseConnectionReset},
	{io.EOF, jsonrpc.CauseConnectionLost},
	{io.ErrUnexpectedEOF, jsonrpc.CauseConnectionLost},
	{net.ErrClosed, jsonrpc.CauseConnectionLost},
}

// CauseOf returns the cause that clients see of an error of net or net/http.
func CauseOf(err error) jsonrpc.Cause {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.cause
		}
	}
	if isTLS(err) {
		return jsonrpc.CauseTLS
	}
	switch text := err.Error(); { // HTTP/2 has no types
	case strings.Contains(text, "REFUSED_STREAM"):
		return jsonrpc.CauseConnectionReset
	case strings.Contains(text, "stream error: "):
		return jsonrpc.CauseStreamEnded
	case strings.Contains(text, "GOAWAY"):
		return jsonrpc.CauseConnectionLost
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return jsonrpc.CauseNoSuchHost
	} else if ok {
		return jsonrpc.CauseNameLookup
	}
	op, isOp := errors.AsType[*net.OpError](err)
	timeout := isTimeout(err)
	switch {
	case isOp && op.Op == "write" && timeout:
		return jsonrpc.CauseWriteTimeout
	case isOp && op.Op == "dial" && timeout:
		return jsonrpc.CauseConnectTimeout
	case isOp && op.Op == "dial":
		return jsonrpc.CauseConnectFailed
	case timeout:
		return jsonrpc.CauseTimeout
	}
	return jsonrpc.CauseRequestFailed
}

// isUntrusted reports whether we did not accept the server's certificate.
func isUntrusted(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return untrusted
}

func isTLS(err error) bool {
	certificate := isUntrusted(err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	alert := isOp && (op.Op == "remote error" || op.Op == "local error") // crypto/tls has no type for alerts
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, other := errors.AsType[x509.CertificateInvalidError](err)
	plain := errors.Is(err, http.ErrSchemeMismatch) // in place of a record error, if the answer was HTTP
	return certificate || record || plain || alert || authority || host || other
}

func isTimeout(err error) bool {
	var e interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &e) && e.Timeout()
}
