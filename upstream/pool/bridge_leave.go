package pool

import (
	"errors"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// returnFor is how long the sessions of one connection, and what is parked there, wait
// for it when its stream ended on this side.
const returnFor = 30 * time.Second

// leftLocked handles that a stream of the tenant has ended. With the last one of one
// connection goes all that it had, also when the link was lost; that of a principal is
// there for when it comes back, or until Forget.
func (t *tenant) leftLocked(end error) {
	switch {
	case len(t.streams) > 0 || mcp.IsPrincipalKey(t.id.key):
		return
	case !mayReturn(end):
		t.endAllLocked()
		return
	}
	t.left = time.Now()
	t.gone.Stop()
	t.gone = t.after(returnFor, func() {
		if len(t.streams) == 0 && time.Since(t.left) >= returnFor {
			t.endAllLocked()
		}
	})
}

// mayReturn reports whether a client whose stream has ended may still be there, and
// come back under the same key: it did not close the stream.
func mayReturn(end error) bool {
	closed, ok := errors.AsType[*jsonrpc.ClosedError](end)
	return ok && (closed.Class() == jsonrpc.ClassClientSlow || closed.Class() == jsonrpc.ClassOtherEra)
}

// Forget ends all that is kept for the principals of a proxy, which is gone for good as
// far as anybody can tell: nobody else has their keys.
func (b *Bridge) Forget(proxy string) {
	for _, t := range b.pool.all() {
		if mcp.ProxyOf(t.id.key) == proxy {
			t.mu.Lock()
			t.endAllLocked()
			t.mu.Unlock()
		}
	}
}

// endAllLocked ends what is parked and then the sessions, as their servers wish.
func (t *tenant) endAllLocked() {
	for _, p := range t.parks {
		p.endLocked(errGone)
	}
	for _, l := range t.lanes {
		if l != nil {
			l.endLocked(nil)
		}
	}
}
