package session

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// This file is an upstream connection as packages lists and listen see it.

var _ lists.Server = (*upstreamConn)(nil)

// IsSole reports whether the client has no other upstream.
func (u *upstreamConn) IsSole() bool { return u.client.isSole(u) }

// State returns the state of the stream.
func (u *upstreamConn) State() lists.State {
	s := u.state().State
	s.Heard = s.Heard && s.Open
	return s
}

// Ask is ask for a result, within requestTimeout. The error of an error response is a [*lists.AnswerError].
func (u *upstreamConn) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if d := u.up.RequestTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	answer, err := u.ask(ctx, method, params)
	if err == nil && answer.Error != nil {
		err = &lists.AnswerError{Wire: answer.Error}
	}
	if err != nil {
		return nil, err
	}
	return answer.Result, nil
}

// ListChanged notifies the client's subscriptions.
func (u *upstreamConn) ListChanged(k catalog.Kind) { u.subscriptions.Changed(u, k) }

// Try begins a trial of the upstream for an entry of the catalog.
func (u *upstreamConn) Try(k lists.Key, capabilities json.RawMessage) *lists.Asking {
	return u.try(k, u.up, capabilities)
}

// Renew begins a trial because the upstream has changed a list.
func (u *upstreamConn) Renew(k lists.Key, capabilities json.RawMessage) {
	u.renew(k, u.up, capabilities)
}

// describe returns the upstream's description: that of the catalog if it answers for the upstream, else
// what its server says, which it starts. It returns nil for none, and why the upstream did not start,
// nil if it may still start. The meta is that of a server/discover.
func (u *upstreamConn) describe(ctx context.Context, who lists.Client, meta json.RawMessage) (json.RawMessage, *lists.Failure) {
	said, failed, ok := u.lists.Introduce(ctx, who)
	switch {
	case ok:
		return said, failed
	case u.era == mcp.Modern:
		return u.discover(ctx, meta)
	}
	return u.introduced(ctx)
}

// discover asks an upstream for its description and stores it. It returns nil if there is no usable
// answer, and a failure if the upstream is unreachable.
func (u *upstreamConn) discover(ctx context.Context, meta json.RawMessage) (json.RawMessage, *lists.Failure) {
	answer, err := u.ask(ctx, mcp.MethodDiscover, catalog.ListParams(meta, nil))
	usable := err == nil && answer.Error == nil
	if usable {
		kind, bad := catalog.ResultType(answer.Result)
		usable = bad == nil && (kind == "" || kind == catalog.ResultComplete)
	}
	if !usable {
		u.log.Debug("upstream cannot describe itself", "method", mcp.MethodDiscover, "err", err)
		if err == nil && jsonrpc.IsClosed(answer.Error) {
			return nil, &lists.Failure{Wire: answer.Error}
		}
		return nil, nil
	}
	u.lists.Note(answer.Result)
	u.lists.NoteInTime(mcp.MethodDiscover)
	return answer.Result, nil
}

func (u *upstreamConn) Listen(ctx context.Context, params json.RawMessage, receive func(*jsonrpc.Message)) (*jsonrpc.Message, error) {
	return u.askFor(ctx, receive, mcp.MethodListen, params)
}

func (u *upstreamConn) IsIdle() bool { return u.lists.IsIdle() }

func (u *upstreamConn) Done() <-chan struct{} { return u.ctx.Done() }

func (u *upstreamConn) Log() *slog.Logger { return u.log }
