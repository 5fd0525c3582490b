package remote

import (
	"context"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxProofs is how often a request is sent again because its credentials were refused:
// they may be renewed once, and then gain scopes in a few rounds.
const maxProofs = 3

// Credentials prove to a server who we are. All sessions with it share them, so both
// methods may be called by many goroutines at once.
type Credentials interface {
	// Authorize sets what a request to the server carries: the header Authorization. It
	// may wait for a token, as long as ctx. It is called for each request, and has to be
	// cheap while a token is good. A [*jsonrpc.ClosedError] is why requests fail without
	// being sent; any other error is that with the cause [jsonrpc.CauseNoToken].
	Authorize(ctx context.Context, header http.Header) error

	// Refused is told of a 401 or 403 to a request that carried the header sent, with the
	// response's status and header; its body is the caller's. It reports whether it is
	// worth to send the request again, once Authorize was called anew. It may wait, as
	// long as ctx. With false and no error the server rejected our credentials. An error is
	// as that of Authorize.
	Refused(ctx context.Context, resp *http.Response, sent http.Header) (again bool, err error)
}

// authorize adds to the header of a request what proves who we are. reached is whether
// the request was sent before.
func (t *transport) authorize(ctx context.Context, header http.Header, reached bool) *failure {
	if t.credentials == nil {
		return nil
	}
	if err := t.credentials.Authorize(ctx, header); err != nil {
		return unproven(ctx, err, reached)
	}
	return nil
}

// proveAnew reports whether a request that got resp is to be sent again: it was
// refused, so it did not run, and there may be better credentials. sent is the header that
// it carried, and round how often it was sent again before.
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

// isRefusal reports whether a status rejected our credentials.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}
