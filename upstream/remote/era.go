package remote

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// socketPatience is how long a server on a WebSocket may take to answer a probe. One of
// the legacy era may not answer at all. Another mcp-proxy waits up to 8 s for its own
// upstreams before it answers, and must not be taken for one.
const socketPatience = 10 * time.Second

// doubtPause is the least time between two probes of a server that refuses requests.
const doubtPause = time.Minute

// probe is [Server.Probe].
func (t *transport) probe(ctx context.Context) (bool, error) {
	socket, err := isSocket(t)
	switch {
	case err != nil:
		return false, &jsonrpc.ClosedError{Cause: CauseOf(err), Err: err}
	case t.sse:
		return false, nil
	case socket:
		return t.probeSocket(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	t.join()
	defer t.leave()
	reply, status, f := ask(ctx, t, mcp.Discover(ownID("discover")))
	if f == nil {
		t.mute.Store(0)
	}
	switch {
	case f != nil && (tellsNothing(status) || f.cause != jsonrpc.CauseInvalidResponse && f.status == 0):
		return false, f.end()
	case tellsNothing(status):
		return false, refused(status).end()
	case f != nil:
		t.mute.Add(1)
		return false, nil
	}
	return verdict(reply)
}

// verdict returns what a server says of itself with its answer to server/discover.
func verdict(reply *jsonrpc.Message) (modern bool, err error) {
	if other := mcp.OtherVersions(reply); other != nil {
		return false, other
	}
	return mcp.DiscoversModern(reply), nil
}

// doubt reports whether to probe the server again, after it has refused a request as
// servers of another era do. It returns true at most once in doubtPause.
func (t *transport) doubt() bool {
	last := t.doubted.Load()
	now := time.Now().UnixNano()
	ago := time.Duration(now - last) // negative: the clock was set back
	return (last == 0 || ago < 0 || ago >= doubtPause) && t.doubted.CompareAndSwap(last, now)
}

// isDoubtful reports whether a request was refused as no server of the modern era refuses
// it: with a status for bad requests, but without an error of that era.
func isDoubtful(status int, reply *jsonrpc.Message) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
	default:
		return false
	}
	if reply == nil {
		return true
	}
	switch errorCode(reply.Error) {
	case mcp.CodeUnsupportedVersion:
		return !mcp.DiscoversModern(reply)
	case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams,
		jsonrpc.CodeInvalidRequest, jsonrpc.CodeParseError:
		return false
	}
	return true
}

// tellsNothing reports whether a status reveals nothing about the era of the server: it is
// about credentials or load, or may come from an intermediary.
func tellsNothing(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 || status >= 300 && status < 400
}

// probeSocket probes on a connection of its own. A server that ends the connection is asked
// once more: it may have stopped or restarted, which says nothing about its era. One that
// ends the second connection, too, does so because of the request.
func (t *transport) probeSocket(ctx context.Context) (bool, error) {
	modern, lost, err := t.probeSocketOnce(ctx)
	if lost {
		modern, _, err = t.probeSocketOnce(ctx)
	}
	return modern, err
}

// probeSocketOnce is probeSocket with one connection. lost is whether the server ended it
// without an answer.
func (t *transport) probeSocketOnce(ctx context.Context) (modern, lost bool, err error) {
	conn, err := dialSocket(ctx, t)
	if err != nil {
		return false, false, err
	}
	defer conn.Close()
	late := time.AfterFunc(socketPatience, func() { conn.Close() })
	defer late.Stop()
	m := mcp.Discover(ownID("discover"))
	if conn.Send(m) != nil {
		return false, late.Stop(), nil
	}
	for {
		reply, err := conn.Recv()
		_, bad := errors.AsType[*jsonrpc.InvalidError](err)
		switch {
		case ctx.Err() != nil:
			return false, false, &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Err: context.Cause(ctx)}
		case bad:
		case err != nil: // the server ended the connection, or late did
			return false, late.Stop(), nil
		case reply.IsResponse() && (reply.ID.IsZero() || reply.ID == m.ID):
			modern, err := verdict(reply)
			return modern, false, err
		}
	}
}
