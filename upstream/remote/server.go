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
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A Server is a remote MCP server, used by many sessions. Its fields must not
// change after the first Dial.
type Server struct {
	Name string // of the upstream, in errors and logs
	URL  string // http, https, ws or wss
	SSE  bool   // only the HTTP+SSE transport of 2024-11-05

	// Headers go with each HTTP request. HeadersFrom are header names and files with
	// their values, which are read again when they change. They win over Headers, and
	// the protocol's own headers win over both.
	Headers     map[string]string
	HeadersFrom map[string]string

	Credentials Credentials // go with each request, and win over the other headers; nil: none

	TLS           *tls.Config    // nil: the system's roots
	MaxConcurrent int            // HTTP requests in flight, of all sessions together, except subscriptions; zero: no bound
	WriteTimeout  time.Duration  // without progress writing; zero means 60 s
	StopGrace     time.Duration  // for taking leave; zero means 2 s
	Limits        jsonrpc.Limits // of one message from the server
	Log           *slog.Logger   // nil discards

	// Happened is told of each failure of requests that is an event, and again when more
	// requests fail with it. Nil: nobody wants to know.
	Happened func(observe.Event)

	// What the sessions share, made by the first that needs it.
	once      sync.Once
	transport *transport
	tools     *tools
	era       *eraProbe
}

// prepare makes what the sessions share.
func (s *Server) prepare() *transport {
	s.once.Do(func() {
		log := s.Log
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		timeout := cmp.Or(s.WriteTimeout, 60*time.Second)
		s.transport = &transport{
			name: s.Name, url: s.URL, tls: s.TLS, limits: s.Limits, headers: newHeaders(s.Headers, s.HeadersFrom), credentials: s.Credentials,
			writeTimeout: timeout, stopGrace: cmp.Or(s.StopGrace, 2*time.Second),
			client: newClient(s.TLS, timeout), failures: failureLog{log: log.With("upstream", s.Name), name: s.Name, tell: s.Happened},
		}
		if s.MaxConcurrent > 0 {
			s.transport.slots = semaphore.NewWeighted(int64(s.MaxConcurrent))
		}
		s.tools = &tools{t: s.transport, turn: make(chan struct{}, 1)}
		s.era = &eraProbe{t: s.transport, sse: s.SSE}
	})
	return s.transport
}

// Old reports whether the server is one of the HTTP+SSE transport alone, as far as is known.
func (s *Server) Old() bool { return s.SSE || s.prepare().old.Load() }

// Dial begins a session of the legacy era. On http and https it does no I/O: the first
// message that is sent does. On ws and wss it connects. Cancelling ctx ends the session
// at once; Close takes leave of the server first, and must be called in either case.
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
	return newServerSession(ctx, t, s.SSE), nil
}

// DialModern begins a stream of the modern era (2026-07-28): what is sent on it are
// requests whose _meta says all about them, and cancellations. On http and https it
// does no I/O, and each request is a POST of its own: the stream ends with Close or
// ctx only, whatever becomes of a request. On ws and wss it connects, and carries
// the stream as it is. Cancelling ctx ends it at once; Close must be called in
// either case.
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
	return newModern(ctx, t, s.tools, s.era), nil
}

// Probe asks the server, with server/discover, whether it speaks a version of the
// modern era that we speak. The error, a [*jsonrpc.ClosedError], says why
// that cannot be known: nobody is there, or answers in time, or our credentials are
// refused. Over HTTP that may take 10 s, on a WebSocket 5 s more than to connect: silence there is how
// servers of the legacy era answer (2026-07-28 basic/versioning).
func (s *Server) Probe(ctx context.Context) (bool, error) {
	s.prepare()
	return s.era.run(ctx)
}

// Waiting returns how many requests wait because MaxConcurrent others are in flight.
func (s *Server) Waiting() int {
	return int(s.prepare().waiting.Load())
}

// Close closes the connections that are kept for reuse. All sessions must have
// been closed.
func (s *Server) Close() { s.prepare().client.CloseIdleConnections() }
