package link

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc/conntest"
)

func TestConn(t *testing.T) {
	handle, conns := handOver()
	p := join(t, &Client{}, &Server{Handle: handle})
	t.Run("Link", func(t *testing.T) {
		conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
			return open(t, p.client), await(t, conns)
		})
	})
}
