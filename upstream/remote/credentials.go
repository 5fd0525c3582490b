package remote

import (
	"context"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxProofs is how often a request is sent again because its credentials were rejected:
// they may be renewed once, and then gain scopes in a few rounds.
const maxProofs = 3

// Credentials authenticate us to a server. All its sessions share them, so both methods may
// be called concurrently.
type Credentials interface {
	// Authorize sets the header Authorization of a request. It may wait for a token until
	// ctx is done. It is called for each request, and must be cheap while a token is
	// valid. An error fails the request unsent; if it is no [*jsonrpc.ClosedError], the
	// cause is [jsonrpc.CauseNoToken].
	Authorize(ctx context.Context, header http.Header) error

	// Refused is called after a 401 or 403 to a request with the header sent. It may read
	// the response's status and header, not its body. It reports whether the caller should
	// call Authorize and send the request again. It may wait until ctx is done. If it
	// returns false without an error, the server rejected our credentials. Errors are as
	// in Authorize.
	Refused(ctx context.Context, resp *http.Response, sent http.Header) (again bool, err error)
}

// header returns the configured header of a request, with the headers of a client in ctx and with
// credentials. reached is whether the request was sent before.
func (t *transport) header(ctx context.Context, reached bool) (http.Header, *failure) {
	header, err := t.headers.read()
	if err != nil {
		return nil, &failure{cause: jsonrpc.CauseBadHeaderFile, phase: jsonrpc.NotSent, fixed: true, err: err}
	}
	t.addForwarded(ctx, header)
	if t.credentials != nil {
		if err := t.credentials.Authorize(ctx, header); err != nil {
			return nil, unproven(ctx, err, reached)
		}
	}
	return header, nil
}

// proveAnew reports whether a request must be sent again after resp: if the server rejected
// its credentials, it did not run, and there may be better ones. sent is the request's
// header, and round counts the earlier repetitions.
func (t *transport) proveAnew(ctx context.Context, resp *http.Response, sent http.Header, round int) (again bool, f *failure) {
	if !isRefusal(resp.StatusCode) {
		return false, nil
	}
	t.headers.refused()
	if t.credentials == nil || round == maxProofs {
		return false, nil
	}
	again, err := t.credentials.Refused(ctx, resp, sent)
	if err != nil {
		return false, unproven(ctx, err, true)
	}
	return again, nil
}

// unproven returns the failure of a request for which there are no credentials.
func unproven(ctx context.Context, err error, reached bool) *failure {
	if ctx.Err() != nil {
		return broken(ctx, ctx.Err(), reached)
	}
	end := jsonrpc.EndOf(err, jsonrpc.CauseNoToken)
	f := &failure{cause: end.Cause, says: end.Says, fixed: end.Lasting, phase: jsonrpc.NotSent, err: end.Err}
	if reached {
		f.phase = jsonrpc.InFlight
	}
	return f
}

// isRefusal reports whether a status means that the server rejected our credentials.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}
