package frontend

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// HTTP serves clients over HTTP:
//
//	/mcp /mcp/NAME      Streamable HTTP, all upstreams or one
//	/ws /ws/NAME        WebSocket
//	/sse /message       the transport of 2024-11-05
//	/healthz            200, or 503 while draining; unguarded
//	/.well-known/oauth-protected-resource and below: how to prove who one is
//
// It is an [http.Handler]. Its fields must not change once it serves.
type HTTP struct {
	// Serve is the session of one client with one upstream, "" for all. Who the client
	// is goes for all its messages. It owns c until it returns. Its ctx outlives the
	// client's requests, and is cancelled by Close.
	Serve func(ctx context.Context, who *identity.Identity, upstream string, c jsonrpc.Conn) error

	// ServePrincipal is the session of all modern clients (2026-07-28) that are one
	// principal and use one path. c carries the requests of all of them, under ids of
	// its own. It owns c until it returns, and is called again with the next request.
	// Its ctx is like that of Serve. Nil refuses these clients.
	ServePrincipal func(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error

	// Known reports whether there is an upstream of a name for /mcp/NAME and /ws/NAME, as
	// far as a client may know. Nil knows none.
	Known func(who *identity.Identity, upstream string) bool

	// Names returns the upstreams that Known knows for a client, for who asked for another
	// one. Nil returns none.
	Names func(who *identity.Identity) []string

	// Admit is asked when a client begins a session, a WebSocket, or the connection on
	// which modern requests of a principal travel: besides Sessions, which bounds all of
	// them together. Its leave is called once, when that has ended. Nil admits everybody.
	Admit func(who *identity.Identity) (leave func(), refusal *identity.Refusal)

	Guard  Guard
	Limits jsonrpc.Limits

	Sessions    int           // at a time, of all kinds; a principal's is one; zero means 256
	SessionIdle time.Duration // without any request open; zero means 30 minutes, negative for ever

	// SessionGone is how long a legacy session lasts after its GET stream closed, if
	// nothing comes from its client any more and it has nothing in flight. Zero means
	// 5 minutes, negative as long as any other session. A client that leaves without a
	// DELETE shows it by nothing else. A client may also continue without the stream:
	// the TypeScript SDK does after two retries, and does not begin anew after a 404.
	// Its next request shows that, and from then on SessionIdle alone counts, as for a
	// client that never had the stream.
	SessionGone time.Duration

	Traces bool // messages say which trace their request was part of

	Log *slog.Logger // nil discards

	once       sync.Once
	open       *openSessions
	streamable *streamable
	sse        *httpSSE
}

func (h *HTTP) init() {
	h.once.Do(func() {
		log := cmp.Or(h.Log, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancelCause(context.Background())
		h.open = &openSessions{
			serve: h.Serve, admit: h.Admit, guard: &h.Guard, max: cmp.Or(h.Sessions, 256),
			idle: cmp.Or(h.SessionIdle, 30*time.Minute), gone: cmp.Or(h.SessionGone, 5*time.Minute),
			backlog: newBacklog(h.Limits), log: log, ctx: ctx, cancel: cancel, byID: make(map[string]*httpSession),
		}
		waits, places := &timerPool{}, newBodySlots()
		h.open.slots = places
		bodies := &bodies{limits: h.Limits, traces: h.Traces, slots: places}
		modern := &modernClients{serve: h.ServePrincipal, open: h.open, timers: waits, conns: make(map[connKey]*principalConn)}
		h.streamable = &streamable{h.open, bodies, waits, modern}
		h.sse = &httpSSE{h.open, bodies}
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
	if h.Guard.asksMetadata(r) {
		h.Guard.serveMetadata(w, r)
		return
	}
	if who, ok := h.Guard.identify(w, r); ok {
		h.route(w, r, who)
	}
}

func (h *HTTP) serveHealth(w http.ResponseWriter) {
	if h.open.isDraining() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	w.Write([]byte("ok"))
}

// route finds the handler of a request that the guard passed.
func (h *HTTP) route(w http.ResponseWriter, r *http.Request, who *identity.Identity) {
	path, upstream := r.URL.Path, ""
	for _, prefix := range []string{"/mcp/", "/ws/"} {
		name, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		if h.Known == nil || !h.Known(who, name) {
			refuse(w, http.StatusNotFound, "no such upstream"+h.others(who))
			return
		}
		path, upstream = strings.TrimSuffix(prefix, "/"), name
	}
	if twoVersions(w, r, path) {
		return
	}
	c := caller{who, upstream}
	switch path {
	case "/mcp":
		h.streamable.serve(w, r, c)
	case "/ws":
		h.serveWS(w, r, c)
	case "/sse":
		h.sse.get(w, r, c)
	case "/message":
		h.sse.post(w, r, c)
	default:
		http.Error(w, "404 page not found: MCP clients connect to /mcp, /ws or /sse", http.StatusNotFound)
	}
}

// others tells a client which upstreams there are.
func (h *HTTP) others(who *identity.Identity) string {
	const most = 20
	var names []string
	if h.Names != nil {
		names = h.Names(who)
	}
	more := ""
	if n := len(names) - most; n > 0 {
		names, more = names[:most], fmt.Sprintf(" and %d more", n)
	}
	if len(names) == 0 {
		return ""
	}
	return "; there are " + strings.Join(names, ", ") + more
}

// serveWS is the WebSocket endpoint: one session for as long as the connection
// lives.
func (h *HTTP) serveWS(w http.ResponseWriter, r *http.Request, from caller) {
	if r.Method != http.MethodGet {
		notAllowed(w, "GET")
		return
	}
	leave := h.open.enter(w, r, from.who)
	if leave == nil {
		return
	}
	places := principalSlots{h.open.slots, from.who.Principal}
	c, err := wsconn.Config{Limits: h.Limits, Slots: places, LargeTimeout: bodyTimeout}.Accept(w, r, refuse)
	if err != nil {
		leave()
		return
	}
	go h.open.serveWS(from, c, leave) // the handler's goroutine has a large stack and holds the request
}

// Drain makes /healthz answer 503, and every request that would begin a new session.
// Open sessions continue.
func (h *HTTP) Drain() {
	h.init()
	h.open.drain()
}

// Close drains, cancels the context of every Serve and waits until all have
// returned. The server's Shutdown, called next, waits for the last bytes.
func (h *HTTP) Close() {
	h.init()
	h.open.close()
}
