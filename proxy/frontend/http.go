package frontend

import (
	"cmp"
	"context"
	"crypto/rand"
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
//	/mcp/server-card    how to connect, for everybody; /.well-known/ai-catalog.json leads to it
//	/mcp/NAME/server-card
//	/.well-known/oauth-protected-resource and below: metadata for authentication
//
// It is an [http.Handler]. Its fields must not change after the first request.
type HTTP struct {
	// Serve serves one session: one client with one upstream, "" for all. who is the sender of all
	// its messages. It owns c until it returns. Its ctx outlives the client's requests, and Close
	// cancels it.
	Serve func(ctx context.Context, who *identity.Identity, upstream string, c jsonrpc.Conn) error

	// ServePrincipal serves all modern clients (2026-07-28) with the same principal and path. c
	// carries the requests of all of them, under ids of its own. It owns c until it returns, and is
	// called again for the next request. Its ctx is like that of Serve. Nil refuses these clients.
	ServePrincipal func(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error

	// Known reports whether the upstream of /mcp/NAME or /ws/NAME exists, as far as the client may
	// know; for nil, whether it exists. Nil knows none.
	Known func(who *identity.Identity, upstream string) bool

	// Names returns the upstreams that Known knows for a client, for an error message. Nil returns
	// none.
	Names func(who *identity.Identity) []string

	// Forwards returns the headers of clients' requests that the upstream of a path gets, those of
	// all upstreams for "", in a fixed order. Nil and none are the same.
	Forwards func(upstream string) []identity.Header

	// Admit is called when a client begins a session or a WebSocket, or when a principal's
	// connection begins, in addition to the bound by Sessions. leave is called once, when that has
	// ended. Nil admits everybody.
	Admit func(who *identity.Identity) (leave func(), refusal *identity.Refusal)

	Guard  Guard
	Limits jsonrpc.Limits

	Sessions    int           // at a time, of all kinds; a principal's connection counts as one; zero means 256
	SessionIdle time.Duration // without an open request; zero means 30 minutes, negative for ever

	// SessionGone is how long a legacy session lasts after its GET stream was closed, if its client
	// sends nothing more and nothing is in flight. Zero means 5 minutes, negative as long as any
	// other session. A client that leaves without a DELETE gives no other sign. But a client may
	// also continue without the stream: the TypeScript SDK does after two retries, and does not
	// start again after a 404. Its next request shows that; from then on only SessionIdle counts,
	// as for a client that never had the stream.
	SessionGone time.Duration

	// Replicas are the other processes behind the address of this one. Nil: there are none.
	Replicas Replicas

	Traces  bool   // read trace contexts from headers
	Version string // of the program, in server cards

	Log *slog.Logger // nil discards

	once       sync.Once
	open       *openSessions
	streamable *streamable
	sse        *httpSSE
}

func (h *HTTP) init() {
	h.once.Do(func() {
		h.Guard.forwards = h.Forwards
		log := cmp.Or(h.Log, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancelCause(context.Background())
		h.open = &openSessions{
			serve: h.Serve, admit: h.Admit, guard: &h.Guard, max: cmp.Or(h.Sessions, 256),
			idle: cmp.Or(h.SessionIdle, 30*time.Minute), gone: cmp.Or(h.SessionGone, 5*time.Minute),
			backlog: newBacklog(h.Limits), log: log, ctx: ctx, cancel: cancel,
		}
		h.open.directory = newDirectory(h.open.idle)
		alarms, places := new(sync.Pool), newBodySlots()
		h.open.slots, h.open.newID = places, rand.Text
		bodies := &bodies{limits: h.Limits, traces: h.Traces, slots: places}
		var relay *relay
		if h.Replicas != nil {
			h.open.newID, h.open.digest = h.Replicas.NewID, h.Replicas.Digest
			h.open.disowned = func(id string) bool {
				_, at := h.Replicas.Owner(id)
				return at == Nowhere
			}
			h.open.departure.freed = make(chan *httpSession, moveAtOnce)
			h.open.directory.changes = new(changes)
			h.open.keeper = newKeeper(h.open.directory, h.Replicas)
			relay = newRelay(h.Replicas, h.open, bodies)
		}
		modern := &modernClients{serve: h.ServePrincipal, open: h.open, alarms: alarms, relay: relay, conns: make(map[connKey]*principalConn)}
		h.streamable = &streamable{h.open, bodies, alarms, modern, relay}
		h.sse = &httpSSE{h.open, bodies, relay}
	})
}

// HTTP2 returns what a server that serves HTTP over HTTP/2 needs. There the deadline of a response resets a stream,
// and where the client reads nothing from its connection, that cannot be written either: the connection must end.
func HTTP2() *http.HTTP2Config { return &http.HTTP2Config{WriteByteTimeout: stall} }

// ServeHTTP implements [http.Handler].
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.init()
	boundBody(w, r)
	r = withoutSlash(r)
	if r.URL.Path == "/healthz" {
		h.serveHealth(w)
		return
	}
	if h.Guard.asksMetadata(r) {
		h.Guard.serveMetadata(w, r)
		return
	}
	if h.servePublicCard(w, r) {
		return
	}
	if isFromReplica(r.Context()) && strings.HasPrefix(r.URL.Path, replicaPath) {
		h.serveReplica(w, r)
		return
	}
	var from *origin
	if h.Replicas != nil && r.Header[headerReplica] != nil {
		if r, from = readOrigin(w, r); r == nil {
			return
		}
	}
	if who, ok := h.Guard.identify(w, r, from); ok {
		h.route(w, r, who)
	}
}

// withoutSlash returns r without the slash at the end of /mcp/ and /ws/ and what is below. Many servers have their
// endpoint at /mcp/, and people write so in clients. Below /sse/ a client would look for /message.
func withoutSlash(r *http.Request) *http.Request {
	path, ok := strings.CutSuffix(r.URL.Path, "/")
	if !ok || !strings.HasPrefix(r.URL.Path, "/mcp/") && !strings.HasPrefix(r.URL.Path, "/ws/") {
		return r
	}
	r = r.WithContext(r.Context())
	r.URL = new(*r.URL)
	r.URL.Path, r.URL.RawPath = path, ""
	return r
}

func (h *HTTP) serveHealth(w http.ResponseWriter) {
	bound(w)
	if h.open.isDraining() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	w.Write([]byte("ok"))
}

// route finds the handler of a request that passed the Guard.
func (h *HTTP) route(w http.ResponseWriter, r *http.Request, who *identity.Identity) {
	path, upstream := r.URL.Path, ""
	card := strings.HasPrefix(path, "/mcp/") && strings.HasSuffix(path, cardSuffix)
	if card {
		path = strings.TrimSuffix(path, cardSuffix)
	}
	for _, prefix := range []string{"/mcp/", "/ws/"} {
		name, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		if h.Known == nil || !h.Known(who, name) {
			if prefix == "/mcp/" && !card && h.streamable.passesOn(w, r, caller{who: who, upstream: name}) {
				return
			}
			refuse(w, http.StatusNotFound, "no such upstream"+h.others(who))
			return
		}
		path, upstream = strings.TrimSuffix(prefix, "/"), name
	}
	if card {
		h.serveCard(w, r, upstream)
		return
	}
	if twoVersions(w, r, path) {
		return
	}
	c := caller{who: who, upstream: upstream}
	if !h.forwarded(w, r, &c) {
		return
	}
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
		bound(w)
		http.Error(w, "404 page not found: MCP clients connect to /mcp, /ws or /sse", http.StatusNotFound)
	}
}

// others lists the upstreams that a client may use, for an error message.
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

// serveWS is the WebSocket endpoint. The connection is the session.
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
	go h.open.serveWS(from, c, leave) // a new goroutine: the handler's has a large stack and keeps the request alive
}

// Drain makes /healthz and every request that would begin a session answer 503. Open sessions
// continue.
func (h *HTTP) Drain() {
	h.init()
	h.open.drain()
}

// Linger waits until no POST is being passed on to another replica, or ctx ends. It is for a process
// that drains.
func (h *HTTP) Linger(ctx context.Context) {
	h.init()
	h.streamable.relay.linger(ctx)
}

// Close drains, cancels the context of every Serve and waits until all have returned. Afterwards
// the server's Shutdown waits for the last bytes.
func (h *HTTP) Close() {
	h.init()
	h.open.close()
}
