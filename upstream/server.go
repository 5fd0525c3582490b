package upstream

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A server is what a stream is attached to: a [process.Server] or a remote session.
// Whoever makes one calls Finish or Abort in the end, then Stop.
type server interface {
	// Send passes messages on, in order, and keeps none of them. It may wait,
	// which is the stream's flow control, but not after Finish or Abort. What
	// goes wrong is told by Recv or as a failure of the server. Between the wait
	// and the passing it calls accepted, unless Finish or Abort was called: then
	// the messages are dropped.
	Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message))

	// Recv is [jsonrpc.RecvAll]. Its end is a [*jsonrpc.ClosedError] with the
	// cause of the server's end.
	Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error)

	// Finish passes the last messages on and begins the server's end. last is
	// called when no Send will pass anything any more.
	Finish(last func() []*jsonrpc.Message)

	// Abort begins the end of a server that listens no more.
	Abort()

	// Stop makes the server end, by force when ctx is done. It returns when
	// nothing is left of it.
	Stop(ctx context.Context)

	// State reports whether the server has been told to end, and whether it is gone.
	State() (stopping, gone bool)
}
