package link

import (
	"net"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestConn gives up sooner than the real timeout on a side that sends to a
// closed stream and does not receive.
func TestConn(t *testing.T) {
	t.Parallel()
	config := newConfig(orDiscard(nil))
	config.StreamCloseTimeout = time.Second
	t.Run("pipe", func(t *testing.T) {
		conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) { return rawPair(t, config) })
	})
	onEach(t, func(t *testing.T, l net.Listener, dial Endpoint) {
		conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
			near, far := connect(t, l, dial)
			return rawPairOver(t, config, near, far)
		})
	})
}
