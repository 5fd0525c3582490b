package upstream

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A server is what a stream is attached to: a local process or a remote session.
// Whoever makes one calls start, and in the end finish or abort, then stop.
type server interface {
	// start starts the server's goroutines. It fails if there can be no server.
	start() error

	// send passes messages on, in order, and keeps none of them. It may wait,
	// which is the stream's flow control, but not after finish or abort. What
	// goes wrong is told by recv or as a failure of the server. Between the wait
	// and the passing it calls accepted, unless finish or abort was called: then
	// the messages are dropped.
	send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message))

	// recv is [jsonrpc.RecvAll]. Its end is a [*jsonrpc.ClosedError] with the
	// cause of the server's end.
	recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error)

	// sessionless reports, once recv has returned the result of initialize,
	// whether there is no session all the same: each request stands alone.
	sessionless() bool

	// finish passes the last messages on and begins the server's end. last is
	// called when no send will pass anything any more.
	finish(last func() []*jsonrpc.Message)

	// abort begins the end of a server that listens no more.
	abort()

	// stop makes the server end, by force when ctx is done. It returns when
	// nothing is left of it.
	stop(ctx context.Context)

	// status adds what there is to say of the server.
	status(st *Status)

	// lastWords returns the last lines that the server said beside its messages,
	// after waiting a moment for those about its end; nil if it has no place for that.
	lastWords() []string
}
