package session

import (
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// An incoming is a message from the stream of an attempt.
type incoming struct {
	a  *attempt
	m  *jsonrpc.Message
	of *peer.Call    // the call to which it belongs; nil if it does not say, or the call is over
	r  *peer.Request // the request itself; nil for a notification
}

// A heldBack is the messages of an upstream for a client that is not ready: they could overtake our
// answer to initialize. Only log messages may (2025-11-25 basic/lifecycle, "Initialization").
type heldBack struct {
	mu       sync.Mutex // guards the fields below; nothing else is locked under it
	messages []incoming
	bytes    int
}

// isEmpty reports whether nothing is held back.
func (h *heldBack) isEmpty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.messages) == 0
}

// add holds a message back, unless the client is ready and there are none. It returns no room if
// there are too many.
func (h *heldBack) add(in incoming, ready *atomic.Bool, maxBytes int) (held, room bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ready.Load() && len(h.messages) == 0 { // release runs when it has become ready
		return false, true
	}
	size := in.m.Size()
	if len(h.messages) >= maxHeld || h.bytes+size > maxBytes {
		return true, false
	}
	h.messages = append(h.messages, in)
	h.bytes += size
	return true, true
}

// takeLog takes the oldest message out if it is a log message, and if the client is not ready:
// afterwards release handles all.
func (h *heldBack) takeLog(ready *atomic.Bool) (in incoming, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ready.Load() || len(h.messages) == 0 || h.messages[0].m.Method != mcp.MethodLog || h.messages[0].r != nil {
		return incoming{}, false
	}
	in = h.messages[0]
	h.messages[0] = incoming{}
	h.messages = h.messages[1:]
	h.bytes -= in.m.Size()
	return in, true
}

// first returns the oldest message.
func (h *heldBack) first() (in incoming, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.messages) == 0 {
		h.messages = nil
		return incoming{}, false
	}
	return h.messages[0], true
}

// remove forgets the oldest message if it still is in.
func (h *heldBack) remove(in incoming) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.messages) > 0 && h.messages[0] == in {
		h.messages[0] = incoming{}
		h.messages = h.messages[1:]
		h.bytes -= in.m.Size()
	}
}

// clear forgets all messages, because their stream has ended.
func (h *heldBack) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages, h.bytes = nil, 0
}

// maxHeld bounds the messages of one upstream that are kept until the client is ready.
const maxHeld = 1024
