package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Server is a remote MCP server, used by many sessions. Its fields must not
// change after the first Dial.
type Server struct {
	Name string // of the upstream: stands in errors and logs
	URL  string // http, https, ws or wss
	SSE  bool   // only the HTTP+SSE transport of 2024-11-05

	// Headers go with each HTTP request, HeadersFrom too: header names to files
	// with their values, which are read again when they change. HeadersFrom wins
	// over Headers, and the protocol's own headers over both.
	Headers     map[string]string
	HeadersFrom map[string]string

	TLS           *tls.Config    // nil: the system's roots
	MaxConcurrent int            // requests in flight at once, of all sessions together, but for listens; zero: no bound
	WriteTimeout  time.Duration  // without progress writing; zero means 60 s
	StopGrace     time.Duration  // for taking leave; zero means 2 s
	Limits        jsonrpc.Limits // of one message from the server
	Log           *slog.Logger   // nil discards

	once   sync.Once
	client *http.Client
	slots  chan struct{} // one element for each request in flight; nil without a bound
	files  headerFiles
	tally  tally

	// Of the modern era.
	tools   tools
	doubted atomic.Int64 // when it was last asked again for its era, in Unix nanoseconds; zero: never
}

func (s *Server) writeTimeout() time.Duration { return cmp.Or(s.WriteTimeout, 60*time.Second) }
func (s *Server) stopGrace() time.Duration    { return cmp.Or(s.StopGrace, 2*time.Second) }

func (s *Server) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// Dial begins a session. On http and https it does no I/O: the first message
// that is sent does. On ws and wss it connects. Cancelling ctx ends the session at once; Close takes leave
// of the server first, and must be called in either case.
func (s *Server) Dial(ctx context.Context) (jsonrpc.Conn, error) {
	socket, err := s.isSocket()
	if err != nil {
		return nil, err
	}
	if socket {
		return s.dialWebSocket(ctx)
	}
	s.once.Do(s.prepare)
	return newSession(ctx, s), nil
}

// isSocket reports whether the server is reached over a WebSocket, and not over
// HTTP. The error is for neither.
func (s *Server) isSocket() (bool, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return false, fmt.Errorf("dial %s: the URL cannot be read", s.Name) // url.Error would quote it
	}
	switch u.Scheme {
	case "http", "https":
		return false, nil
	case "ws", "wss":
		return true, nil
	}
	return false, fmt.Errorf("dial %s: unknown scheme %q", s.Name, u.Scheme)
}

// prepare makes what the sessions share.
func (s *Server) prepare() {
	s.client = &http.Client{Transport: s.transport(), CheckRedirect: checkRedirect}
	if s.MaxConcurrent > 0 {
		s.slots = make(chan struct{}, s.MaxConcurrent)
	}
	s.tally.log = s.log().With("upstream", s.Name)
}

// leave counts a session out. Without any, connections are not kept.
func (s *Server) leave() {
	if s.tally.leave() {
		s.client.CloseIdleConnections()
	}
}

// Close closes the connections that are kept for reuse. All sessions must have
// been closed.
func (s *Server) Close() {
	s.once.Do(s.prepare)
	s.client.CloseIdleConnections()
}
