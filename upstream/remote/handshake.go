package remote

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	maxSessionID = 1024 // bytes
	maxVersion   = 64   // bytes

	// The DELETE waits until the server has noticed that our requests have ended. Nothing
	// tells us when it has, and servers of the Python SDK (1.x) log a traceback if the session
	// ends before. That is likeliest with the stream of a GET, which only our end closes, and
	// a busy server takes longer to notice.
	leaveAfter    = 50 * time.Millisecond
	leaveAfterGET = 250 * time.Millisecond // if that stream was open
)

// A handshake delays messages that the server is not ready for: those after initialize
// until it is answered, and those after initialized until the server has accepted it.
type handshake struct {
	opened, ready chan struct{}
	open          func() // releases the messages after initialize; repeatable
	isReady       func() // releases the messages after initialized; repeatable

	mu   sync.Mutex      // guards the field below
	gate <-chan struct{} // of the next message; nil for none
}

func newHandshake(sse bool) *handshake {
	h := &handshake{opened: make(chan struct{}), ready: make(chan struct{})}
	h.open = sync.OnceFunc(func() { close(h.opened) })
	h.isReady = sync.OnceFunc(func() { close(h.ready) })
	if sse { // initialize waits for the stream
		h.gate = h.opened
	}
	return h
}

// gateOf returns the channel that m has to wait for, nil for none. It must be called in
// the order in which messages are sent.
func (h *handshake) gateOf(m *jsonrpc.Message) (gate <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate = h.gate
	switch {
	case m.Method == mcp.MethodInitialize:
		h.gate = h.opened
	case m.Method == mcp.MethodInitialized:
		h.gate = h.ready
	case !m.IsRequest() && gate == h.ready: // the outbox keeps their order anyway
		return nil
	}
	return gate
}

// greet posts initialize in an exchange, and sets the session of its endpoint.
func greet(ctx context.Context, x *exchange, m *jsonrpc.Message) (*jsonrpc.Message, *failure) {
	x.began = func(h http.Header) *failure {
		id := h.Get(headerSession)
		if len(id) > maxSessionID || !visible(id) {
			return invalid("invalid session id")
		}
		x.at.id = id
		return nil
	}
	reply, f := x.run(ctx, m)
	if reply != nil && reply.Result != nil {
		version, _ := jsonrpc.Unquote(jsonrpc.Get(reply.Result, "protocolVersion"))
		if len(version) <= maxVersion && visible(version) {
			x.at.version = version
		}
	}
	return reply, f
}

// mayBeSSE reports whether a server that refuses initialize with this status may speak
// HTTP+SSE (2025-11-25 basic/transports, backwards compatibility).
func mayBeSSE(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

// takeLeave tells the server that a session is over. Its requests and streams must have
// ended at our side, that of the GET at hungUp. The server may refuse with 405.
func (s *serverSession) takeLeave(at *endpoint, hungUp time.Time) {
	wait := leaveAfter
	if at.listened.Load() {
		wait = max(wait, leaveAfterGET-time.Since(hungUp))
	}
	if at.id == "" || sleep(s.ctx, min(wait, s.t.stopGrace/8)) != nil {
		return
	}
	resp, f := s.t.bare(s.ctx, http.MethodDelete, at, nil)
	if f != nil {
		s.log.Debug("cannot tell the upstream that the session is over", "err", f.text())
		return
	}
	discard(resp)
}
