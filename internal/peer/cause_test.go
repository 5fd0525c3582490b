package peer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// The end of ctx is the cause, even if the other side leaves before that has closed the Conn.
func TestCauseOfContext(t *testing.T) {
	why := errors.New("the reason")
	for _, early := range []bool{true, false} {
		for range 500 {
			ctx, end := context.WithCancelCause(t.Context())
			near, far := jsonrpc.Pipe()
			leave := func() {
				end(why)
				far.Close()
			}
			if early {
				leave()
			}
			over := make(chan error, 1)
			peer.New(peer.Options{Name: "x"}).Start(ctx, near, func(err error) { over <- err })
			if !early {
				leave()
			}
			if err := <-over; !errors.Is(err, why) {
				t.Fatalf("ended with %v", err)
			}
		}
	}
}
