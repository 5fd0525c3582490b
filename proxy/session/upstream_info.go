package session

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
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
	unseen := u.s.lists.Unannounced(u.lists)
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
		u.s.wg.Go(func() { u.lists.Returned(unseen, func() bool { return u.isOpen(a) }) })
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
	if level := u.s.handshake.lastLevel(); level != nil && u.lists.Says().Declares("logging") {
		request(mcp.MethodSetLevel, level)
	}
	for _, params := range u.s.resourceSubs.Of(u) {
		request(mcp.MethodSubscribe, params)
	}
}

// introduced starts an upstream that describes itself in initialize, and returns the description.
func (u *upstreamConn) introduced(ctx context.Context) (json.RawMessage, *lists.Failure) {
	u.mu.Lock()
	a := u.attempt // initialize began it, and it may have failed already
	if a == nil || a.counted {
		a = u.openLocked()
	}
	a.counted = true
	u.mu.Unlock()
	if err := u.await(ctx, a); err != nil {
		return nil, lists.FailureOf(err)
	}
	return u.lists.Says().Result, nil
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
	u.s.router.memory.NoteInTime(u.up.Name, mcp.MethodDiscover)
	return answer.Result, nil
}

// noteAliveLocked notes that the upstream has answered something.
func (u *upstreamConn) noteAliveLocked(a *attempt) {
	first := !a.heard
	a.heard = true
	u.lists.Heard(first)
}

// noteAlive is noteAliveLocked for an acknowledgment, which is no answer.
func (u *upstreamConn) noteAlive() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.attempt.ended {
		u.noteAliveLocked(u.attempt)
	}
}

// noteAnswer is noteAliveLocked for an answer, whoever waits for it.
func (u *upstreamConn) noteAnswer(answer *jsonrpc.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a := u.attempt; answer.Result != nil && a.ready && !a.ended {
		u.noteAliveLocked(a)
	}
}
