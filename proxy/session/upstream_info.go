package session

import (
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// initialized handles an upstream's answer to initialize.
func (u *upstreamConn) initialized(a *attempt, answer *jsonrpc.Message) {
	if answer.Error != nil || answer.Result[0] != '{' { // it cannot be used
		u.mu.Lock()
		defer u.mu.Unlock()
		if !a.ended {
			u.log.Debug("upstream refused initialize") // its host warns, ends the stream and sends the event
			a.own = whyNotInitialized(u.up.Name, answer.Error)
			conn := a.conn
			time.AfterFunc(lastWords, func() { conn.Close() })
		}
		return
	}
	u.lists.Note(answer.Result)
	// Now, because the client's next list waits for this, and acknowledges what was announced.
	unseen := u.lists.Unannounced()
	u.mu.Lock()
	u.dropLogged.Store(false)
	u.lists.Started()
	a.peer.SendIn(&a.first, jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	lazy := u.lists.IsLazy()
	if lazy {
		u.listFirst(a)
	}
	u.replayLocked(a)
	a.peer.Release(afterInitialize)
	a.ready = true
	close(a.started)
	u.watchLocked(a)
	u.noteAliveLocked(a)
	u.mu.Unlock()
	if !lazy { // else listFirst compares
		u.wg.Go(func() { u.lists.Returned(unseen, func() bool { return u.isOpen(a) }) })
	}
}

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
