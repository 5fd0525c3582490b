package upstream

import (
	"cmp"
	"context"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// An Upstream is a server that a Host offers: either a Command that it runs, or a remote
// server with Dial and DialModern.
type Upstream struct {
	Command *process.Command

	// Spare is the number of processes that are started ahead. Zero with Dial.
	Spare int

	// Dial begins a session with a remote server. It should not wait for the server.
	// Cancelling ctx ends the session at once. Recv of the Conn ends with a
	// [*jsonrpc.ClosedError]. Close of the Conn sends what was passed to Send before,
	// ends the session at the server, and returns when nothing is left of it.
	Dial func(ctx context.Context) (jsonrpc.Conn, error)

	// DialModern is Dial for the modern era. The Conn is a stream without a handshake:
	// the host sends requests and cancellations, and receives answers and notifications.
	// Nil with Command.
	DialModern func(ctx context.Context) (jsonrpc.Conn, error)

	// Probe reports whether a remote server speaks modern. A [*mcp.VersionError] means that it
	// does not, and any other error that this is unknown. Nil with Command.
	Probe func(ctx context.Context) (bool, error)

	// Era is the era of the server; "" finds out. A remote server without DialModern and
	// Probe is legacy.
	Era mcp.Era

	// Relates is whether the Conns of Dial and DialModern set Related of messages, as
	// HTTP does. Otherwise the host guesses it in the legacy era, unless the upstream is
	// shared. In the modern era all streams then share one Conn, as they share a process.
	Relates bool

	// Alone is whether each stream of the modern era has a Conn of its own even so, because the
	// headers in the ctx of DialModern (jsonrpc.ForwardedIn) are those of one client. Then the
	// host guesses Related.
	Alone bool

	// Shared is whether all keys share one process or session. It makes no difference in
	// the modern era.
	Shared bool

	// Roots are the URIs in the answer to a shared server's roots/list outside any call;
	// nil refuses it.
	Roots []string

	// IdleStop is how long a server that streams share runs without use. Zero: for a
	// minute after its last stream if it is modern, else until [Host.Stop]. A server with
	// a stream of its own runs as long as that.
	IdleStop time.Duration

	StartTimeout time.Duration // for the answer to initialize or server/discover; zero means 30 s
}

// startCause returns the cause that clients get for a start that failed because of cause.
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
		return u.Command != nil || !u.Relates && !u.Alone
	}
	return u.Shared
}

// only returns the era if it is configured or certain, otherwise "".
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
// its end when nothing is left of it. They open the upstream's streams with [Host.Open].
type Bridge interface {
	// Legacy serves a legacy client's stream on an upstream that speaks modern.
	Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error

	// Modern serves a modern client's stream on an upstream that speaks legacy.
	Modern(ctx context.Context, upstream, key string, client jsonrpc.Conn) error

	// Unattributed is called when a request of a shared upstream could not be attributed,
	// since several clients have calls there. The Bridge can then give up calls that it
	// keeps for clients that may never come back.
	Unattributed(upstream string)
}
