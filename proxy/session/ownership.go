package session

import (
	linked "container/list"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

const (
	// maxOwned bounds the things of one principal, maxOwnedInAll those of all. When the first is
	// reached, the oldest thing of the principal is forgotten; when the second is, all things of
	// the principal that was given nothing for the longest time. A forgotten thing is unknown to
	// everybody.
	maxOwned      = 1024
	maxOwnedInAll = 1 << 18
)

// ownership records what upstreams gave to principals: ids of tasks, and the states of suspended
// calls. A modern server has one process for all clients, and a remote one knows only the proxy:
// both accept an id or a state from everybody. So if clients may be different principals, none may
// use what another one was given.
type ownership struct {
	mu     sync.Mutex // guards the fields below, and all ownedSets
	of     map[identity.Principal]*linked.Element
	recent linked.List // of *ownedSet; least recently used first
	count  int         // of things in all ownedSets
}

// An ownedSet has the things of one principal.
type ownedSet struct {
	who    identity.Principal
	things map[catalog.Digest]struct{}
	order  []catalog.Digest // oldest first
}

// An ownedKind is a kind of things.
type ownedKind string

const (
	ownedTask  ownedKind = "task"
	ownedState ownedKind = "state"
)

// digest returns the key of a thing.
func (t ownedKind) digest(u *Upstream, text string) catalog.Digest {
	// None of the first three contains NUL.
	return sha256.Sum256([]byte(string(t) + "\x00" + u.Link + "\x00" + u.Name + "\x00" + text))
}

func (b *ownership) add(who identity.Principal, d catalog.Digest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[who]
	if e == nil {
		e = b.recent.PushBack(&ownedSet{who: who, things: make(map[catalog.Digest]struct{})})
		put(&b.of, who, e)
	}
	b.recent.MoveToBack(e)
	h := e.Value.(*ownedSet)
	if _, ok := h.things[d]; ok {
		return
	}
	if len(h.order) >= maxOwned {
		delete(h.things, h.order[0])
		h.order = h.order[1:]
		b.count--
	}
	h.things[d] = struct{}{}
	h.order = append(h.order, d)
	b.count++
	if b.count > maxOwnedInAll {
		b.forgetLocked(b.recent.Front())
	}
}

func (b *ownership) forgetLocked(e *linked.Element) {
	h := b.recent.Remove(e).(*ownedSet)
	delete(b.of, h.who)
	b.count -= len(h.order)
}

func (b *ownership) has(who identity.Principal, d catalog.Digest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[who]
	if e == nil {
		return false
	}
	_, ok := e.Value.(*ownedSet).things[d]
	return ok
}

// noteOwner records that an upstream gave something to the client.
func (u *upstreamConn) noteOwner(t ownedKind, text string) {
	if u.s.router.Several.Load() {
		u.s.router.ownership.add(u.s.who.Principal, t.digest(u.up, text))
	}
}

// noteStateOwner is noteOwner for the state in a result that asks for input.
func (u *upstreamConn) noteStateOwner(result json.RawMessage) {
	if !u.s.router.Several.Load() {
		return
	}
	raw, _ := jsonrpc.Member(result, "requestState")
	if state, ok := jsonrpc.Unquote(raw); ok {
		u.noteOwner(ownedState, state)
	}
}

// mayUse reports whether the client may use a thing of an upstream.
func (u *upstreamConn) mayUse(t ownedKind, text string) bool {
	return !u.s.router.Several.Load() || u.s.router.ownership.has(u.s.who.Principal, t.digest(u.up, text))
}

// checkOwner returns the error for a request that uses a thing of another principal, as if the
// thing did not exist; nil for all other requests.
func (r *request) checkOwner(u *upstreamConn) *jsonrpc.Error {
	if !u.s.router.Several.Load() {
		return nil
	}
	n := r.notes
	if state := n.Raw(mcp.RequestState); isGiven(state) || n.Err(mcp.RequestState) != nil {
		text, ok := n.Text(mcp.RequestState)
		if !ok || n.Err(mcp.RequestState) != nil || !u.mayUse(ownedState, text) {
			return foreignState
		}
	}
	if n.Has(mcp.RelatedTask) || n.Err(mcp.RelatedTask) != nil {
		id, ok := n.Text(mcp.RelatedTaskID)
		if !ok || n.Err(mcp.InMeta, mcp.RelatedTask, mcp.RelatedTaskID) != nil || !u.mayUse(ownedTask, u.ownTask(id)) {
			return unknownTask
		}
	}
	if n.Method.Name == "" && strings.HasPrefix(r.Method, "tasks/") { // an unknown method about a task
		return jsonrpc.MethodNotFound(r.Method)
	}
	return nil
}

var (
	unknownTask  = jsonrpc.InvalidParams("unknown task")
	foreignState = &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: requestState is not valid here",
		Data: map[string]string{"reason": "request_state_expired"}, // as for a state that nobody was given
	}
)

// ownTasks returns the client's own tasks of a list.
func (u *upstreamConn) ownTasks(listed []json.RawMessage) []json.RawMessage {
	if !u.s.router.Several.Load() {
		return listed
	}
	return slices.DeleteFunc(listed, func(task json.RawMessage) bool {
		id, _ := catalog.TaskState(task)
		return !u.mayUse(ownedTask, id)
	})
}
