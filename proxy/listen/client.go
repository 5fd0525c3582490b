package listen

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An Upstream is the session's connection to one upstream server. Its values are compared.
type Upstream interface {
	// Listen sends a subscriptions/listen and returns the answer. receive gets the notifications
	// that belong to it. If ctx ends first, Listen cancels the request and returns an error.
	Listen(ctx context.Context, params json.RawMessage, receive func(*jsonrpc.Message)) (*jsonrpc.Message, error)

	IsIdle() bool          // it has no server, and needs none for changes of its lists
	Done() <-chan struct{} // closed when the upstream was hung up
	Log() *slog.Logger
}

// A Client is the client of one subscription, as its session knows it.
type Client interface {
	// Split splits the subscription's filter over the current upstreams. It returns false if they
	// are the same as before.
	Split(ctx context.Context) (Split, bool)

	// Note notes a notification of an upstream before it is handled. It returns false if a policy
	// denies it to the client.
	Note(at Upstream, m *jsonrpc.Message) bool

	// Verify compares lists of a server that has started with those that the client got without it.
	Verify(at Upstream, lists [catalog.Kinds]bool)

	// TaskName returns the client's name of a task of an upstream.
	TaskName(at Upstream, id string) string

	// Sees reports whether the client may see anything of a list of an upstream.
	Sees(at Upstream, k catalog.Kind) bool

	Tell(m *jsonrpc.Message)                // sends the client a message when there is room
	Drop(reason string, m *jsonrpc.Message) // counts a notification that the client does not get
	End()                                   // answers the client's request with its result
}

// A Split is the filter of a subscription, split over upstreams.
type Split struct {
	Parts map[Upstream]mcp.Filter
	Sole  bool // there is one upstream, whose acknowledgment is forwarded verbatim
	Same  bool // the client sees the same upstreams as before
	None  bool // no upstream is left or expected
}
