package session

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// maxHeld bounds what is kept of one upstream until the client is ready.
const maxHeld = 1024

// receive handles one message from the upstream.
func (u *upstreamConn) receive(a *attempt, m *jsonrpc.Message) {
	switch {
	case m.Batch != nil: // each element is a message of its own
		for _, e := range m.Batch {
			u.receive(a, e)
		}
	case m.IsResponse():
		u.answered(a, m)
	case u.era == mcp.Modern:
		u.handleModern(m)
	case m.Method == mcp.MethodPing && m.IsRequest():
		u.reply(a, jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	case u.hold(a, m):
	default:
		u.handle(a, m)
	}
}

// answered settles the request that m answers.
func (u *upstreamConn) answered(a *attempt, m *jsonrpc.Message) {
	n, ok := m.ID.Answered()
	u.s.mu.Lock()
	r := u.pending[n]
	known := ok && r != nil && r.sent // an id can be guessed before it was sent
	if known {
		delete(u.pending, n)
	}
	if a.ready && m.Result != nil {
		u.heardLocked(a)
	}
	u.s.mu.Unlock()
	if !known {
		u.s.drop("unknown or late answer from upstream", m)
		return
	}
	r.settle(m)
}

// reply answers the upstream, also while its initialize is not answered yet.
func (u *upstreamConn) reply(a *attempt, m *jsonrpc.Message) {
	u.s.mu.Lock()
	ready := a.ready
	u.s.mu.Unlock()
	if ready {
		u.tell(m)
		return
	}
	a.conn.Send(m) // nobody else sends before that; a failure is Recv's to report
}

// hold keeps what comes before the client is ready to hear it: what an upstream
// sends may overtake our answer to initialize. What finds no room is refused.
func (u *upstreamConn) hold(a *attempt, m *jsonrpc.Message) bool {
	u.s.mu.Lock()
	if u.s.hello.ready && len(u.held) == 0 {
		u.s.mu.Unlock()
		return false
	}
	size := m.Size()
	room := len(u.held) < maxHeld && u.heldBytes+size <= u.s.p.queueBytes()
	if room {
		u.held = append(u.held, incoming{a, m})
		u.heldBytes += size
	}
	u.s.mu.Unlock()
	if !room {
		u.s.drop("the client is not ready", m)
		if m.IsRequest() {
			u.tell(jsonrpc.NewError(m.ID, jsonrpc.Overloaded(u.up.Name)))
		}
	}
	return true
}

// release handles what was held, in order.
func (u *upstreamConn) release() {
	for {
		u.s.mu.Lock()
		if len(u.held) == 0 {
			u.held = nil
			u.s.mu.Unlock()
			return
		}
		next := u.held[0]
		u.s.mu.Unlock()
		u.handle(next.a, next.m)
		u.s.mu.Lock()
		if len(u.held) > 0 && u.held[0] == next { // the stream may have ended meanwhile
			u.held[0] = incoming{}
			u.held = u.held[1:]
			u.heldBytes -= next.m.Size()
		}
		u.s.mu.Unlock()
	}
}

// handle passes a request or notification of the upstream to the client.
func (u *upstreamConn) handle(a *attempt, m *jsonrpc.Message) {
	if m.IsRequest() {
		u.s.serverRequest(u, a, m)
		return
	}
	switch m.Method {
	case mcp.MethodProgress:
		u.progress(m)
	case mcp.MethodCancelled:
		u.s.serverRequestCancelled(u, m)
	case mcp.MethodToolsChanged:
		u.changed(catalog.Tools)
	case mcp.MethodPromptsChanged:
		u.changed(catalog.Prompts)
	case mcp.MethodResourcesChanged:
		u.changed(catalog.Resources)
	case mcp.MethodTaskStatus:
		u.taskStatus(m)
	default:
		u.pass(m, mcp.Read(m))
	}
}

// changed notes that the upstream changed a list, and tells the client.
func (u *upstreamConn) changed(k catalog.Kind) {
	u.lists.changed(k)
	u.s.news.tell(k)
}

// pass hands a message on to the client, with edits to its params.
func (u *upstreamConn) pass(m *jsonrpc.Message, n *mcp.Notes, edits ...jsonrpc.Edit) {
	out := u.exposed(m, n, edits...)
	out.Related = u.related(m.Related)
	u.s.out.wait(out)
}

// related translates the id of a request on this upstream connection to the client's own.
func (u *upstreamConn) related(id jsonrpc.ID) jsonrpc.ID {
	n, ok := id.Int()
	if !ok {
		return jsonrpc.ID{}
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if r := u.pending[n]; r != nil && r.call != nil {
		return r.call.id
	}
	return jsonrpc.ID{}
}

// progress passes a progress notification on with the token that the client
// chose. After the request was settled there is nobody to tell.
func (u *upstreamConn) progress(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	id, _ := notes.ID(mcp.Key)
	n, ok := id.Int()
	u.s.mu.Lock()
	var token json.RawMessage
	var related jsonrpc.ID
	if r := u.pending[n]; r != nil && r.call != nil {
		token, related = r.token, r.call.id
		r.extendLocked()
	} else {
		token = u.s.tasks.getByToken(tokenKey{u, n}).token
	}
	u.s.mu.Unlock()
	if !ok || token == nil {
		u.s.drop("late progress", m)
		return
	}
	out := u.exposed(m, notes, jsonrpc.Edit{Span: notes.At(mcp.Key), With: token})
	out.Related = related
	u.s.out.wait(out)
}

// exposed returns a copy of a message of the upstream with edits to its params made, and
// with the client's name of the task that it is tied to. A task that the client runs has
// the client's own name.
func (u *upstreamConn) exposed(m *jsonrpc.Message, n *mcp.Notes, edits ...jsonrpc.Edit) *jsonrpc.Message {
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, func(id string) string {
		if u.s.clientTasks.get(id).conn == u {
			return id
		}
		return u.taskName(id)
	})...)
	out := *m
	out.Params = jsonrpc.Replace(m.Params, edits...)
	return &out
}

// handleModern passes a notification of an upstream of the modern era on, if it
// belongs to a request of the client. A request is none that this era has.
func (u *upstreamConn) handleModern(m *jsonrpc.Message) {
	if m.IsRequest() {
		u.s.drop("request from an upstream of the modern era", m)
		return
	}
	switch m.Method {
	case mcp.MethodProgress:
		u.progress(m)
	case mcp.MethodLog:
		u.passModern(m)
	case mcp.MethodCancelled:
		u.subscriptionCancelled(m)
	default:
		tell := u.toldOf(m)
		switch {
		case tell != nil:
			tell(m)
		case mcp.MethodOf(m.Method).OnListen:
			u.s.drop("nobody has subscribed", m)
		default:
			u.passModern(m)
		}
	}
}

// passModern hands a message on with the request of the client that it belongs to;
// there is no other way for it. A log message goes only to one who has asked, with
// the request, for its level.
func (u *upstreamConn) passModern(m *jsonrpc.Message) {
	id, ok := m.Related.Int()
	u.s.mu.Lock()
	var c *call
	if r := u.pending[id]; ok && r != nil {
		c = r.call
	}
	u.s.mu.Unlock()
	n := mcp.Read(m)
	if c == nil || m.Method == mcp.MethodLog && !c.logs(n) {
		u.s.drop("nobody has asked for it", m)
		return
	}
	out := u.exposed(m, n)
	out.Related = c.id
	u.s.out.wait(out)
}

// logs reports whether whoever made the call wants to hear a log message.
func (c *call) logs(n *mcp.Notes) bool {
	level, _ := n.Text(mcp.Key)
	return n.Err(mcp.Key) == nil && c.level > 0 && slices.Index(mcp.LogLevels, level)+1 >= c.level
}

// toldOf returns who is told of a notification that belongs to a subscription; nil for nobody.
func (u *upstreamConn) toldOf(m *jsonrpc.Message) func(*jsonrpc.Message) {
	id := m.Related
	if id.IsZero() {
		id, _ = mcp.Read(m).ID(mcp.Subscription)
	}
	n, ok := id.Int()
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if r := u.pending[n]; ok && r != nil {
		return r.told
	}
	return nil
}

// subscriptionCancelled handles an upstream's cancellation of a subscription, which is how
// some end one.
func (u *upstreamConn) subscriptionCancelled(m *jsonrpc.Message) {
	id, _ := mcp.Read(m).ID(mcp.Key)
	n, ok := id.Int()
	u.s.mu.Lock()
	r := u.pending[n]
	known := ok && r != nil && r.told != nil
	if known {
		r.removeLocked()
	}
	u.s.mu.Unlock()
	if !known {
		u.s.drop("cancellation of no subscription", m)
		return
	}
	r.settle(jsonrpc.NewResult(r.id, json.RawMessage(`{}`)))
}
