package session

import (
	"context"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// This file is an upstream connection as package lists sees it.

var _ lists.Server = (*upstreamConn)(nil)

// listsOf returns what the session knows of the lists of upstreams.
func listsOf(conns []*upstreamConn) []*lists.Upstream {
	of := make([]*lists.Upstream, len(conns))
	for i, u := range conns {
		of[i] = u.lists
	}
	return of
}

// IsSole reports whether the client has no other upstream.
func (u *upstreamConn) IsSole() bool { return u.s.upstreams.of(u.era).only() == u }

// State returns the state of the stream.
func (u *upstreamConn) State() lists.State {
	s := u.state().State
	s.Heard = s.Heard && s.Open
	return s
}

// alive reports whether the upstream has answered initialize.
func (u *upstreamConn) alive() bool { return u.State().Ready }

// Ask is ask for a result. The error of an error response is a [*lists.AnswerError].
func (u *upstreamConn) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	answer, err := u.ask(ctx, method, params)
	if err == nil && answer.Error != nil {
		err = &lists.AnswerError{Wire: answer.Error}
	}
	if err != nil {
		return nil, err
	}
	return answer.Result, nil
}

// Try begins a trial of the upstream for an entry of the catalog.
func (u *upstreamConn) Try(k lists.Key, capabilities json.RawMessage) *lists.Asking {
	return u.s.router.try(k, u.up, capabilities)
}

// Renew begins a trial because the upstream has changed a list.
func (u *upstreamConn) Renew(k lists.Key, capabilities json.RawMessage) {
	u.s.router.renew(k, u.up, capabilities)
}

// ListChanged notifies the client's subscriptions.
func (u *upstreamConn) ListChanged(k catalog.Kind) { u.s.subscriptions.Changed(u, k) }

// listFirst asks a server of the legacy era that has just started for its lists, before it gets
// anything of the client besides initialize, so that the client is notified soon of what differs
// from the catalog.
func (u *upstreamConn) listFirst(a *attempt) {
	for k := range catalog.Kinds {
		version := u.lists.Version(k)
		if !u.lists.Says().Declares(k.Capability()) {
			u.lists.FirstListed(k, version, nil)
			continue
		}
		c := u.newCall(a, k.Method())
		c.First, c.Room = true, &a.first
		c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
			if lost == nil {
				u.noteAnswer(answer)
				u.lists.FirstListed(k, version, answer)
			}
		}
		_ = c.Send(&jsonrpc.Message{Params: c.own(u.ctx, nil)}) // End settles it
	}
}

// relisted tells the clients whose lists come from the catalog that an upstream lists something
// else.
func (p *Router) relisted(upstream string) {
	p.memory.NoteInTime(upstream, lists.Starts)
	p.memory.NoteInTime(upstream, mcp.MethodDiscover)
	for k := range catalog.Kinds {
		p.memory.NoteInTime(upstream, k.Method())
	}
	for _, s := range p.running() {
		for _, u := range s.upstreams.conns() {
			if u.up.Name == upstream && s.grant().Sees(upstream) {
				u.lists.Relisted()
			}
		}
	}
}
