package remote

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// socketPatience is how long a server on a WebSocket may take to answer what one
// of the legacy era may not answer at all.
const socketPatience = 5 * time.Second

// Probe asks the server, with server/discover, whether it speaks a version of the
// modern era that we speak. The error, a [*jsonrpc.ClosedError], is that it could
// not be told: nobody was there, or answered in time, or let us in. Over HTTP that
// may take 10 s, on a WebSocket 5 s more than to connect: silence there is how
// servers of the legacy era answer (2026-07-28 basic/versioning).
func (s *Server) Probe(ctx context.Context) (bool, error) {
	s.once.Do(s.prepare)
	socket, err := s.isSocket()
	switch {
	case err != nil:
		return false, &jsonrpc.ClosedError{Cause: causeOf(err), Err: err}
	case s.SSE:
		return false, nil
	case socket:
		return s.probeWebSocket(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	s.tally.join()
	defer s.leave()
	reply, status, f := s.own(ctx, mcp.Discover(ownID("discover")))
	switch {
	case f != nil && (tellsNothing(status) || !f.invalid && f.status == 0):
		return false, f.end()
	case tellsNothing(status):
		return false, refused(status).end()
	case f != nil:
		return false, nil
	}
	return mcp.DiscoversModern(reply), nil
}

// doubtPause is how long a server is believed that was asked again for its era.
const doubtPause = time.Minute

// isDoubtful reports whether a request was refused as only a server refuses it that
// does not speak the modern era (any more): with a status that is due to requests,
// and without an error that a modern server makes of them.
func isDoubtful(status int, reply *jsonrpc.Message) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
	default:
		return false
	}
	if reply == nil {
		return true
	}
	switch code, _ := strconv.Atoi(string(member(reply.Error, "code"))); code {
	case mcp.CodeUnsupportedVersion:
		return !mcp.DiscoversModern(reply)
	case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams,
		jsonrpc.CodeInvalidRequest, jsonrpc.CodeParseError:
		return false
	}
	return true
}

// doubt asks the server again, not too often, and ends the stream if it does not
// speak modern any more: it was replaced, and the host has to know.
func (s *modern) doubt() {
	last := s.server.doubted.Load()
	now := time.Now().UnixNano()
	if last != 0 && now-last < int64(doubtPause) || !s.server.doubted.CompareAndSwap(last, now) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return
	}
	s.wg.Go(func() {
		if modern, err := s.server.Probe(s.work); !modern && err == nil {
			s.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseOtherEra, Delivered: true})
		}
	})
}

// tellsNothing reports whether a status says nothing about who speaks what: it is
// about credentials, about load, or of another server on the way.
func tellsNothing(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 || status >= 300 && status < 400
}

// probeWebSocket asks on a connection of its own.
func (s *Server) probeWebSocket(ctx context.Context) (bool, error) {
	conn, err := s.dialSocket(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	late := time.AfterFunc(socketPatience, func() { conn.Close() })
	defer late.Stop()
	m := mcp.Discover(ownID("discover"))
	if conn.Send(m) != nil {
		return false, nil
	}
	for {
		reply, err := conn.Recv()
		_, bad := errors.AsType[*jsonrpc.InvalidError](err)
		switch {
		case ctx.Err() != nil:
			return false, &jsonrpc.ClosedError{Cause: causeStopped, Err: context.Cause(ctx)}
		case bad:
		case err != nil: // it does not answer, or leaves because of the question
			return false, nil
		case reply.IsResponse() && (reply.ID.IsZero() || reply.ID == m.ID):
			return mcp.DiscoversModern(reply), nil
		}
	}
}
