package session

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// whyNotInitialized returns why an upstream cannot be used that answered initialize with an error.
// Where the host translates, a remote server may not have been reached at all: then it is that end,
// and the next request tries again.
func whyNotInitialized(upstream string, failed json.RawMessage) *jsonrpc.ClosedError {
	if lost := jsonrpc.ReadErrorData(failed); lost.Reason == jsonrpc.ReasonClosed && lost.Upstream == upstream { // else another proxy's
		return &jsonrpc.ClosedError{Cause: lost.Cause, Event: lost.Event}
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Lasting: true}
}

// replayLocked sends the requests that restore the session's state at a restarted upstream: its log
// level and subscriptions. They precede all others.
func (u *upstreamConn) replayLocked(a *attempt) {
	request := func(method string, params json.RawMessage) {
		c := u.newCall(a, method)
		c.First, c.Room = true, &a.first
		c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
			if lost == nil && answer.Error != nil {
				u.log.Debug("upstream did not restore the session's state", "method", method)
			}
		}
		_ = c.Send(&jsonrpc.Message{Params: c.own(u.ctx, params)})
	}
	level, subscriptions := u.client.stateAt(u)
	if level != nil && u.lists.Says().Declares("logging") {
		request(mcp.MethodSetLevel, level)
	}
	for _, params := range subscriptions {
		request(mcp.MethodSubscribe, params)
	}
}

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
