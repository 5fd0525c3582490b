package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A Server is a remote MCP server, used by many sessions. Its fields must not
// change after the first Dial.
type Server struct {
	Name string // of the upstream, in errors and logs
	URL  string // http, https, ws or wss
	SSE  bool   // only the HTTP+SSE transport of 2024-11-05

	// Headers are sent with each HTTP request. HeadersFrom are header names and files with
	// their values, which are read again when they change. They override Headers, and the
	// protocol's own headers override both.
	Headers     map[string]string
	HeadersFrom map[string]string

	// Forward are the headers of clients that are sent, in canonical form: those in the ctx of Dial,
	// DialModern and Probe, and those that came with a message (jsonrpc.Forwarded).
	Forward []string

	// Listed returns the arguments of a tool that headers repeat, as an earlier list of the server
	// says, and whether there is one that has the tool. Then a call of it needs no new list. Nil:
	// there is none.
	Listed func(tool string) (mirrors []mcp.Mirror, listed bool)

	Credentials Credentials // sent with each request, overriding Headers and HeadersFrom; nil: none

	TLS           *tls.Config    // nil: the system's roots
	MaxConcurrent int            // HTTP requests in flight, of all sessions together, except subscriptions; zero: no bound
	WriteTimeout  time.Duration  // of writing without progress; zero means 60 s
	StartTimeout  time.Duration  // of a new session in place of one that the server has forgotten; zero means 30 s
	StopGrace     time.Duration  // of closing a session; zero means 2 s
	Limits        jsonrpc.Limits // of one message from the server
	Log           *slog.Logger   // nil discards

	// Happened is called with each event of failed requests, and again when more requests
	// fail with it. It may be nil.
	Happened func(observe.Event)

	// Shared by the sessions; made by prepare.
	once      sync.Once
	transport *transport
	tools     *tools
}

// prepare makes what the sessions share.
func (s *Server) prepare() *transport {
	s.once.Do(func() {
		log := cmp.Or(s.Log, slog.New(slog.DiscardHandler))
		timeout := cmp.Or(s.WriteTimeout, 60*time.Second)
		s.transport = &transport{
			name: s.Name, url: s.URL, sse: s.SSE, tls: s.TLS, limits: s.Limits,
			headers: newHeaders(s.Headers, s.HeadersFrom), forward: s.Forward, credentials: s.Credentials,
			writeTimeout: timeout, startTimeout: cmp.Or(s.StartTimeout, 30*time.Second), stopGrace: cmp.Or(s.StopGrace, 2*time.Second),
			client: newClient(s.TLS, timeout), failures: failureLog{log: log.With("upstream", s.Name), name: s.Name, tell: s.Happened},
		}
		if s.MaxConcurrent > 0 {
			s.transport.slots = semaphore.NewWeighted(int64(s.MaxConcurrent))
		}
		s.tools = &tools{t: s.transport, before: s.Listed, turn: make(chan struct{}, 1)}
	})
	return s.transport
}

// Old reports whether the server is known to have only the HTTP+SSE transport.
func (s *Server) Old() bool { return s.SSE || s.prepare().old.Load() }

// Dial begins a session of the legacy era. On http and https it does no I/O: the first
// Send does. On ws and wss it connects. Cancelling ctx ends the session at once, without a
// DELETE or closing handshake. Close must be called in either case.
func (s *Server) Dial(ctx context.Context) (jsonrpc.Conn, error) {
	t := s.prepare()
	socket, err := isSocket(t)
	switch {
	case err != nil:
		return nil, err
	case socket:
		w, err := dialSocket(ctx, t)
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	return newServerSession(ctx, t), nil
}

// DialModern begins a stream of the modern era (2026-07-28), for requests with a complete
// _meta, and cancellations. On http and https it does no I/O, and each request is a POST of
// its own: only Close or ctx ends the stream, even if requests fail. On ws and wss it
// connects, and the stream is the connection. Cancelling ctx ends it at once. Close must
// be called in either case.
func (s *Server) DialModern(ctx context.Context) (jsonrpc.Conn, error) {
	t := s.prepare()
	socket, err := isSocket(t)
	switch {
	case err != nil:
		return nil, err
	case socket:
		conn, err := dialSocket(ctx, t)
		if err != nil {
			return nil, err
		}
		return &modernSocket{conn, t.failures.log}, nil
	}
	return newModern(ctx, t, s.tools), nil
}

// Probe asks the server, with server/discover, whether it speaks a version of the
// modern era that we speak. The error is a [*mcp.VersionError] if the server says that it
// speaks only other versions. It may still accept initialize. Any other error, a
// [*jsonrpc.ClosedError], tells why that is unknown: the server is unreachable, does not
// answer in time, or rejects our credentials. Probe takes at most 10 s over HTTP. On a WebSocket it waits 10 s after
// connecting, and takes silence for the legacy era (2026-07-28 basic/versioning). If the
// WebSocket ends without an answer it tries once more.
func (s *Server) Probe(ctx context.Context) (bool, error) {
	return s.prepare().probe(ctx)
}

// Waiting returns how many requests wait because MaxConcurrent others are in flight.
func (s *Server) Waiting() int {
	return int(s.prepare().waiting.Load())
}

// Close closes the connections that are kept for reuse. All sessions must have
// been closed.
func (s *Server) Close() { s.prepare().client.CloseIdleConnections() }
