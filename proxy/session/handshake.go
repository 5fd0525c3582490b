package session

import (
	"encoding/json"
	"sync"
	"sync/atomic"
)

// A handshake is the result of the client's initialize.
type handshake struct {
	ready atomic.Bool // the client accepts server requests: it has sent initialized, or another request

	mu      sync.Mutex      // guards the fields below; nothing else is locked under it
	params  json.RawMessage // for upstreams: the client's own, with the negotiated version; nil before initialize
	version string
	level   json.RawMessage // params of the last logging/setLevel
}

// begin notes the client's initialize, and reports whether it is the first one.
func (h *handshake) begin(params json.RawMessage, version string) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if first = h.params == nil; first {
		h.params, h.version = params, version
	}
	return first
}

// undo lets the client try again.
func (h *handshake) undo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.params, h.version = nil, ""
	h.ready.Store(false)
}

// said returns the params for upstreams and the version, zero before initialize.
func (h *handshake) said() (params json.RawMessage, version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.params, h.version
}

// setLevel notes the params of logging/setLevel. Upstreams that start later get them.
func (h *handshake) setLevel(params json.RawMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.level = params
}

func (h *handshake) lastLevel() json.RawMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.level
}
