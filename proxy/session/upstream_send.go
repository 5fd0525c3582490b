package session

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// enter returns the current attempt, and begins one if there is none. The attempt does not rest
// until the caller, which is about to send something, calls leave.
func (u *upstreamConn) enter() *attempt {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.enterLocked()
}

// enterFor is enter for a request of the client, which may return to a suspended call. cold means that
// the upstream has not answered anything yet.
func (u *upstreamConn) enterFor(n *mcp.Notes) (a *attempt, cold bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.resumedLocked(n)
	a = u.enterLocked()
	return a, !a.heard
}

func (u *upstreamConn) enterLocked() *attempt {
	a := u.openLocked()
	a.entered.Add(1)
	return a
}

// tell sends m, which is not a request, to the upstream if its stream is open or it rests: what it
// says concerns only a server that runs.
func (u *upstreamConn) tell(m *jsonrpc.Message) {
	u.mu.Lock()
	if u.attempt == nil || u.attempt.ended && !u.restsLocked() {
		u.mu.Unlock()
		return
	}
	a := u.enterLocked()
	u.mu.Unlock()
	u.sendIn(a, m)
}

// deliver is tell, but starts the upstream if necessary.
func (u *upstreamConn) deliver(m *jsonrpc.Message) { u.sendIn(u.enter(), m) }

// sendIn sends m in an attempt that was entered, and leaves it. If the queue is full, m is dropped
// with a warning, because the upstream has not read for long.
func (u *upstreamConn) sendIn(a *attempt, m *jsonrpc.Message) {
	defer a.leave()
	if u.up.Forward != nil {
		own := *m // others may get m, too
		own.Forwarded = u.up.with(cmp.Or(m.Forwarded, u.forwarded))
		m = &own
	}
	a.peer.Send(m)
}

// ask makes a call of the session itself and waits for the answer, which may be a connection-closed
// error. It starts the upstream if necessary. If ctx ends first, ask cancels the call and returns
// the error of ctx.
func (u *upstreamConn) ask(ctx context.Context, method string, params json.RawMessage) (*jsonrpc.Message, error) {
	return u.askFor(ctx, nil, method, params)
}

// askFor is ask with a function for the notifications that belong to the call.
func (u *upstreamConn) askFor(ctx context.Context, told func(*jsonrpc.Message), method string, params json.RawMessage) (*jsonrpc.Message, error) {
	answers := make(chan *jsonrpc.Message, 1)
	a := u.enter()
	c := u.newCall(a, method)
	c.onNotification = told
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost != nil {
			answer = jsonrpc.NewError(c.ID, lost.Wire(u.up.Name))
		} else {
			u.noteAnswer(answer)
		}
		answers <- answer
	}
	headers := u.forwarded
	if r := servedBy(ctx); r != nil {
		headers = cmp.Or(r.forwarded, headers)
	}
	err := c.Send(&jsonrpc.Message{Params: c.own(ctx, params), Forwarded: u.up.with(headers)})
	a.leave()
	if err != nil {
		return jsonrpc.NewError(c.ID, u.unsent(err)), nil
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
	}
	c.Cancel("no longer needed")
	return nil, context.Cause(ctx)
}

// unsent returns the error of a call that its Peer could not send.
func (u *upstreamConn) unsent(err error) *jsonrpc.Error {
	if err == jsonrpc.ErrFull {
		return jsonrpc.Overloaded(u.up.Name)
	}
	u.mu.Lock()
	gone := u.gone
	u.mu.Unlock()
	if gone != nil { // hung up since it was opened
		err = gone
	}
	return peer.Unsent(jsonrpc.EndOf(err, jsonrpc.CauseLinkLost), u.up.Name)
}
