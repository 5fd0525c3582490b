package link

import (
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc/conntest"
)

// TestConn gives up sooner than the real timeout on a side that sends to a
// closed stream and does not receive.
func TestConn(t *testing.T) {
	config := newConfig(orDiscard(nil))
	config.StreamCloseTimeout = 200 * time.Millisecond
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) { return rawPair(t, config) })
}
