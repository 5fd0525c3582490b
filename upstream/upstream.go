package upstream

import (
	"cmp"
	"context"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// An Upstream is one server that a Host offers: a Command that it runs, or a
// remote one that Dial and DialModern reach. One of the two is needed.
type Upstream struct {
	Command *process.Command

	// Dial begins a session with a remote server, without waiting for it if it
	// can. Cancelling ctx ends the session at once. Recv of the Conn ends with
	// a [*jsonrpc.ClosedError]. Its Close takes leave of the server, behind what
	// was sent before, and returns when nothing is left of the session.
	Dial func(ctx context.Context) (jsonrpc.Conn, error)

	// DialModern is Dial for the modern era. The Conn is one stream of it, which
	// begins without a handshake: the host tells it what to cancel, and gets
	// answers and notifications from it. Nil with Command.
	DialModern func(ctx context.Context) (jsonrpc.Conn, error)

	// Probe asks a remote server whether it speaks modern. An error means that
	// it could not be told. Nil with Command.
	Probe func(ctx context.Context) (bool, error)

	// Era is the one to speak with the server; "" finds out. A remote server
	// without DialModern and Probe is legacy.
	Era mcp.Era

	// Relates is whether a Conn that is dialled knows to which request a
	// message belongs, and sets its Related. HTTP does. With others the host
	// guesses in the legacy era, unless the upstream is shared; in the modern
	// one all streams share a Conn, as they share a process.
	Relates bool

	// Shared is whether all keys share one process or session; else each has
	// its own. In the modern era it makes no difference.
	Shared bool

	// Roots are the URIs that answer a shared server's roots/list outside of
	// any call; nil refuses it.
	Roots []string

	StartTimeout time.Duration // for the answer to initialize, or to server/discover; zero means 30 s
}

// startCause is the cause that clients hear of a start that failed because of cause.
func (u *Upstream) startCause(cause jsonrpc.Cause) jsonrpc.Cause {
	if u.Command != nil && cause != jsonrpc.CauseRefused {
		return jsonrpc.CauseStartFailed
	}
	return cause
}

func (u *Upstream) startTimeout() time.Duration { return cmp.Or(u.StartTimeout, 30*time.Second) }

// together reports whether streams of an era have one server.
func (u *Upstream) together(era mcp.Era) bool {
	if era == mcp.Modern {
		return u.Command != nil || !u.Relates
	}
	return u.Shared
}

// only returns the era that is not in question; "" finds out.
func (u *Upstream) only() mcp.Era {
	switch {
	case u.Era != "":
		return u.Era
	case u.Command == nil && (u.DialModern == nil || u.Probe == nil):
		return mcp.Legacy
	}
	return ""
}

// A Bridge translates streams between the eras. Legacy and Modern own client, and return
// its end when nothing is left of it; what they need of the upstream they get from
// [Host.Open].
type Bridge interface {
	// Legacy serves a legacy client's stream on an upstream that speaks modern.
	Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error

	// Modern serves a modern client's stream on an upstream that speaks legacy.
	Modern(ctx context.Context, upstream, key string, client jsonrpc.Conn) error

	// Unattributed says that a shared upstream asked something and it could not be
	// told of whom, since several clients have calls there. The Bridge keeps some
	// for clients that may never come back, and can give up those.
	Unattributed(upstream string)
}
