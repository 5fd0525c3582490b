package session

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An upstream with an IdleStop rests when nobody has needed it for that time: the session closes
// its stream, as at the end of the session, and the host stops the server. The next request opens
// another stream, which is initialized like that of a restarted upstream.
//
// A rest is no end: no call sees it. The stream is given up in one step with the check that nothing
// is open (peer.Retire), and whoever is about to send something has entered the attempt before,
// with upstreamConn.mu held, so that it does not rest.

// suspendedFor is how long an upstream that asked for input stays awake for the client's return.
const suspendedFor = 10 * time.Minute

// maxSuspended bounds the suspended calls of one upstream connection that keep it awake.
const maxSuspended = 1024

// noteSuspended notes that the upstream asks the client for input, and may keep the call under the
// state in its result.
func (u *upstreamConn) noteSuspended(result json.RawMessage) {
	if u.up.IdleStop <= 0 {
		return
	}
	raw, _ := jsonrpc.Member(result, "requestState")
	state, ok := jsonrpc.Unquote(raw)
	u.mu.Lock()
	defer u.mu.Unlock()
	if ok && len(u.suspended) < maxSuspended {
		put(&u.suspended, sha256.Sum256([]byte(state)), time.Now().Add(suspendedFor))
	}
}

// resumedLocked notes that the client returns to a suspended call.
func (u *upstreamConn) resumedLocked(n *mcp.Notes) {
	if len(u.suspended) > 0 {
		state, _ := n.Text(mcp.RequestState)
		delete(u.suspended, sha256.Sum256([]byte(state)))
	}
}

// watchLocked makes the upstream rest when it is idle. Its attempt has just become ready.
func (u *upstreamConn) watchLocked(a *attempt) {
	if d := u.up.IdleStop; d > 0 {
		u.noteUse()
		a.look = time.AfterFunc(d, func() { u.lookAt(a) })
	}
}

// lookAt lets the upstream rest if it has been idle for long enough, and otherwise looks again.
func (u *upstreamConn) lookAt(a *attempt) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a.ended || u.closed {
		return
	}
	limit := u.up.IdleStop
	busy := u.busyLocked(a)
	if busy || a.busy { // what kept it busy may have ended just now
		u.noteUse()
	}
	a.busy = busy
	idle := u.now() - time.Duration(u.used.Load())
	if busy || idle < limit {
		u.subscriptions.WakeDozing(u)
	}
	switch {
	case busy:
		a.look.Reset(max(limit/8, time.Millisecond))
	case idle < limit:
		a.look.Reset(limit - idle)
	case u.lists.IsLazy() && u.subscriptions.Doze(u):
		a.look.Reset(dozeTime)
	case a.peer.Retire(lastWords):
		u.restLocked(a)
	default: // it sends something at this moment
		u.noteUse()
		a.look.Reset(limit)
	}
}

// dozeTime is how long the ends of listens for changes of lists may take before the next look.
const dozeTime = 50 * time.Millisecond

// busyLocked reports whether anything keeps the upstream awake.
func (u *upstreamConn) busyLocked(a *attempt) bool {
	calls, requests := a.peer.Open() // subscriptions are calls
	if calls > 0 && u.lists.IsLazy() {
		calls -= u.subscriptions.ListsOnly(u)
	}
	maps.DeleteFunc(u.suspended, func(_ catalog.Digest, until time.Time) bool { return time.Now().After(until) })
	return a.entered.Load() > 0 || calls+requests > 0 || !u.held.isEmpty() || len(u.suspended) > 0 || u.client.needs(u)
}

// restLocked does what ended does for streams that end otherwise. Its stream is being closed.
func (u *upstreamConn) restLocked(a *attempt) {
	a.ended, a.rests = true, true
	u.abandoned.end()
	u.log.Debug("upstream rests")
}
