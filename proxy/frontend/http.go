package frontend

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// HTTP serves clients over HTTP:
//
//	/mcp /mcp/NAME      Streamable HTTP, all upstreams or one
//	/ws /ws/NAME        WebSocket
//	/sse /message       the transport of 2024-11-05
//	/healthz            200, or 503 while draining; unguarded
//
// It is an [http.Handler]. Its fields must not change once it serves.
type HTTP struct {
	// Serve is the session of one client with one upstream, "" for all. It owns
	// c until it returns. Its ctx outlives the client's requests, and is
	// cancelled by Close.
	Serve func(ctx context.Context, upstream string, c jsonrpc.Conn) error

	// ServePrincipal is the session of all clients without sessions (2026-07-28)
	// that are one principal, on one path; c carries the requests of all of them,
	// under ids of its own. It owns c until it returns, and is called again with
	// the next request. Its ctx is as that of Serve. Nil refuses these clients.
	ServePrincipal func(ctx context.Context, upstream, principal string, c jsonrpc.Conn) error

	Known func(upstream string) bool // names for /mcp/NAME and /ws/NAME; nil knows none

	Guard  Guard
	Limits jsonrpc.Limits

	Sessions    int           // at a time, of all kinds, a principal's being one; zero means 256
	SessionIdle time.Duration // without any request open; zero means 30 minutes, negative for ever

	// SessionGone is how long a legacy session lasts whose GET stream closed, if
	// nothing comes from its client any more and it has nothing in flight; zero means
	// 5 minutes, negative as long as any other. A client that leaves without a DELETE
	// shows it by no more than this. One that goes on without the stream (the
	// TypeScript SDK gives it up after two retries, and does not begin anew after a
	// 404) shows that by its next request; from then on SessionIdle alone counts, as
	// for one that never had the stream, however long its user thinks.
	SessionGone time.Duration

	Log *slog.Logger // nil discards

	once    sync.Once
	guarded http.Handler
	ctx     context.Context // of all sessions
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // one for each open session or trunk
	timers  sync.Pool      // stopped ones for waitPlain: one for each POST would be garbage at once
	large   chan struct{}  // an element for each large body that is being read
	unread  *unread        // of all POSTs

	mu       sync.Mutex // guards the fields below
	draining bool
	open     int                 // sessions whose Serve has not returned, and trunks
	sessions map[string]*session // that a client may still use, by id
	trunks   map[trunkKey]*trunk // whose ServePrincipal has not returned
}

func (h *HTTP) init() {
	h.once.Do(func() {
		h.guarded = h.Guard.Wrap(http.HandlerFunc(h.route))
		h.ctx, h.cancel = context.WithCancelCause(context.Background())
		h.sessions = make(map[string]*session)
		h.trunks = make(map[trunkKey]*trunk)
		h.large = make(chan struct{}, largeBodies)
		h.unread = newUnread(h.Limits)
	})
}

// ServeHTTP implements [http.Handler].
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.init()
	boundBody(w, r)
	if r.URL.Path == "/healthz" {
		h.serveHealth(w)
		return
	}
	h.guarded.ServeHTTP(w, r)
}

func (h *HTTP) serveHealth(w http.ResponseWriter) {
	if h.isDraining() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	w.Write([]byte("ok"))
}

// route finds the handler of a request that the guard let in.
func (h *HTTP) route(w http.ResponseWriter, r *http.Request) {
	path, upstream := r.URL.Path, ""
	for _, prefix := range []string{"/mcp/", "/ws/"} {
		name, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		if h.Known == nil || !h.Known(name) {
			refuse(w, http.StatusNotFound, "no such upstream")
			return
		}
		path, upstream = strings.TrimSuffix(prefix, "/"), name
	}
	if twoVersions(w, r, path) {
		return
	}
	switch path {
	case "/mcp":
		h.serveMCP(w, r, upstream)
	case "/ws":
		h.serveWS(w, r, upstream)
	case "/sse":
		h.serveSSE(w, r)
	case "/message":
		h.serveMessage(w, r)
	default:
		http.NotFound(w, r)
	}
}

// serveMCP is the MCP endpoint of Streamable HTTP.
func (h *HTTP) serveMCP(w http.ResponseWriter, r *http.Request, upstream string) {
	switch r.Method {
	case http.MethodPost:
		h.post(w, r, upstream)
	case http.MethodGet:
		h.get(w, r, upstream)
	case http.MethodDelete:
		h.delete(w, r, upstream)
	default:
		notAllowed(w, "GET, POST, DELETE, OPTIONS")
	}
}

func notAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	refuse(w, http.StatusMethodNotAllowed, "method not allowed")
}

// Drain makes /healthz answer 503, and so every request that would begin a new
// session. Those that are open go on.
func (h *HTTP) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

// Close drains, cancels the context of every Serve and waits until all have
// returned. The server's Shutdown, called next, waits for the last bytes.
func (h *HTTP) Close() {
	h.init()
	h.Drain()
	h.cancel(errStopped)
	h.wg.Wait()
}

func (h *HTTP) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

// enter makes room for one more session, which leave gives back. If there is
// none it answers 503 and returns false.
func (h *HTTP) enter(w http.ResponseWriter) bool {
	h.mu.Lock()
	draining, full := h.draining, h.open >= cmp.Or(h.Sessions, 256)
	if !draining && !full {
		h.open++
		h.wg.Add(1)
	}
	h.mu.Unlock()
	switch {
	case draining:
		unavailable(w, "the proxy is shutting down")
	case full:
		unavailable(w, "too many sessions")
	default:
		return true
	}
	return false
}

func (h *HTTP) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaveLocked()
}

func (h *HTTP) leaveLocked() {
	h.open--
	h.wg.Done()
}

// unavailable refuses a request that may succeed later.
func unavailable(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", "5")
	refuseWith(w, http.StatusServiceUnavailable, &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: "Service unavailable: " + reason,
		Data:    jsonrpc.ErrorData{Reason: jsonrpc.ReasonOverloaded, Phase: jsonrpc.NotSent, Retryable: true},
	})
}

// begin starts the session of a client for whom there is room. The session is
// held by the caller, who must release it.
func (h *HTTP) begin(upstream string, setUp func(*session)) *session {
	s := newSession(rand.Text(), upstream)
	s.onEnd = func() { h.forget(s) }
	s.hold()
	setUp(s)
	if !s.legacy { // there, Send waits for the one stream
		s.unread = h.unread
	}
	h.mu.Lock()
	h.sessions[s.id] = s
	h.mu.Unlock()
	go h.run(s)
	return s
}

// run is the goroutine of a session.
func (h *HTTP) run(s *session) {
	defer h.leave()
	log := h.logger().With("http_session", s.id[:8]) // the proxy has a key of its own
	log.Debug("HTTP session opened", "upstream", s.upstream)
	err := h.Serve(h.ctx, s.upstream, s)
	s.Close()
	s.mu.Lock()
	dropped := s.dropped
	s.mu.Unlock()
	log.Debug("HTTP session ended", "cause", jsonrpc.CauseOf(err))
	if dropped > 0 {
		log.Warn("client did not fetch its messages, oldest dropped", "dropped", dropped)
	}
}

func (h *HTTP) forget(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sessions, s.id)
}

// session returns the session with this id and holds it; nil if it has ended, or
// belongs to another path.
func (h *HTTP) session(id, upstream string, legacy bool) *session {
	h.mu.Lock()
	s := h.sessions[id]
	h.mu.Unlock()
	if s == nil || s.upstream != upstream || s.legacy != legacy || !s.hold() {
		return nil
	}
	return s
}

func (h *HTTP) sessionIdle() time.Duration { return cmp.Or(h.SessionIdle, 30*time.Minute) }

func (h *HTTP) sessionGone() time.Duration { return cmp.Or(h.SessionGone, 5*time.Minute) }

func (h *HTTP) logger() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}
