package upstream

import (
	"cmp"
	"context"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// An Upstream is one server that a Host offers: a Command that it runs, or a
// remote one that Dial reaches. One of the two is needed.
type Upstream struct {
	Command *Command

	// Dial begins a session with a remote server, without waiting for it if it
	// can. Cancelling ctx ends the session at once. Recv of the Conn ends with
	// a [*jsonrpc.ClosedError]. Its Close takes leave of the server, behind what
	// was sent before, and returns when nothing is left of the session.
	Dial func(ctx context.Context) (jsonrpc.Conn, error)

	// Relates is whether the Conn that Dial returns knows to which request a
	// message belongs, and sets its Related. HTTP does. With others the host
	// guesses, unless the upstream is shared.
	Relates bool

	// Shared is whether all keys share one process or session; else each has
	// its own.
	Shared bool

	// Roots are the URIs that answer a shared server's roots/list outside of
	// any call; nil refuses it.
	Roots []string

	StartTimeout time.Duration // for the answer to initialize; zero means 30 s
}

// startCause is what clients hear of a start that failed because of cause: how a
// process exited is for the log.
func (u *Upstream) startCause(cause string) string {
	if u.Command != nil {
		return causeStartFailed
	}
	return cause
}

func (u *Upstream) startTimeout() time.Duration { return cmp.Or(u.StartTimeout, 30*time.Second) }
