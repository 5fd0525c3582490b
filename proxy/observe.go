package proxy

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// What can be seen of a proxy; package observe says what each is.
type (
	Hooks    = observe.Hooks
	Call     = observe.Call
	Request  = observe.Request
	End      = observe.End
	Outcome  = observe.Outcome
	Snapshot = observe.Snapshot
	Session  = observe.Session
	Upstream = observe.Upstream
	Link     = observe.Link
)

// Outcomes.
const (
	OK              = observe.OK
	Failed          = observe.Failed
	Cancelled       = observe.Cancelled
	Closed          = observe.Closed
	Timeout         = observe.Timeout
	Overloaded      = observe.Overloaded
	InvalidResponse = observe.InvalidResponse
)

// ReapOrphans waits, until ctx ends, for processes whose parents have left them to this
// one, as the first process of a container has to. It does nothing in any other. Only
// the program can know that nobody else waits for them.
func ReapOrphans(ctx context.Context) { process.ReapOrphans(ctx) }
