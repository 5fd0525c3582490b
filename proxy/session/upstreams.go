package session

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxHeld bounds what is kept of one upstream until the client is ready.
const maxHeld = 1024

// receive handles one message from the upstream.
func (l *leg) receive(a *attempt, m *jsonrpc.Message) {
	switch {
	case m.Batch != nil: // each element is a message of its own
		for _, e := range m.Batch {
			l.receive(a, e)
		}
	case m.IsResponse():
		l.answered(a, m)
	case l.era == mcp.Modern:
		l.handleModern(m)
	case m.Method == "ping" && m.IsRequest():
		l.reply(a, jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	case l.hold(a, m):
	default:
		l.handle(a, m)
	}
}

// answered settles the request that m answers.
func (l *leg) answered(a *attempt, m *jsonrpc.Message) {
	n, ok := m.ID.Answered()
	l.s.mu.Lock()
	r := l.pending[n]
	known := ok && r != nil && r.sent // an id can be guessed before it was sent
	if known {
		delete(l.pending, n)
	}
	if a.ready && m.Result != nil {
		l.heardLocked(a)
	}
	l.s.mu.Unlock()
	if !known {
		l.s.drop("unknown or late answer from upstream", m)
		return
	}
	r.settle(m)
}

// reply answers the upstream, also while its initialize is not answered yet.
func (l *leg) reply(a *attempt, m *jsonrpc.Message) {
	l.s.mu.Lock()
	ready := a.ready
	l.s.mu.Unlock()
	if ready {
		l.tell(m)
		return
	}
	a.conn.Send(m) // nobody else sends before that; a failure is Recv's to report
}

// hold keeps what comes before the client is ready to hear it: what an upstream
// sends may overtake our answer to initialize. What finds no room is refused.
func (l *leg) hold(a *attempt, m *jsonrpc.Message) bool {
	l.s.mu.Lock()
	if l.s.hello.ready && len(l.held) == 0 {
		l.s.mu.Unlock()
		return false
	}
	size := m.Size()
	room := len(l.held) < maxHeld && l.heldBytes+size <= l.s.p.queueBytes()
	if room {
		l.held = append(l.held, incoming{a, m})
		l.heldBytes += size
	}
	l.s.mu.Unlock()
	if !room {
		l.s.drop("the client is not ready", m)
		if m.IsRequest() {
			l.tell(jsonrpc.NewError(m.ID, jsonrpc.Overloaded(l.up.Name)))
		}
	}
	return true
}

// release handles what was held, in order.
func (l *leg) release() {
	for {
		l.s.mu.Lock()
		if len(l.held) == 0 {
			l.held = nil
			l.s.mu.Unlock()
			return
		}
		next := l.held[0]
		l.s.mu.Unlock()
		l.handle(next.a, next.m)
		l.s.mu.Lock()
		if len(l.held) > 0 && l.held[0] == next { // the stream may have ended meanwhile
			l.held[0] = incoming{}
			l.held = l.held[1:]
			l.heldBytes -= next.m.Size()
		}
		l.s.mu.Unlock()
	}
}

// handle passes a request or notification of the upstream to the client.
func (l *leg) handle(a *attempt, m *jsonrpc.Message) {
	if m.IsRequest() {
		l.s.question(l, a, m)
		return
	}
	switch m.Method {
	case "notifications/progress":
		l.progress(m)
	case "notifications/cancelled":
		l.s.questionCancelled(l, m)
	case "notifications/tools/list_changed":
		l.listChanged(tools)
	case "notifications/prompts/list_changed":
		l.listChanged(prompts)
	case "notifications/resources/list_changed":
		l.listChanged(resources)
	case "notifications/tasks/status":
		l.taskStatus(m)
	default:
		l.pass(m)
	}
}

// pass hands a message on to the client as it is.
func (l *leg) pass(m *jsonrpc.Message) {
	out := *l.exposed(m)
	out.Related = l.related(m.Related)
	l.s.out.wait(&out)
}

// related translates the id of a request on this leg to the client's own.
func (l *leg) related(id jsonrpc.ID) jsonrpc.ID {
	n, ok := id.Int()
	if !ok {
		return jsonrpc.ID{}
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if r := l.pending[n]; r != nil && r.call != nil {
		return r.call.id
	}
	return jsonrpc.ID{}
}

// progress passes a progress notification on with the token that the client
// chose. After the request was settled there is nobody to tell.
func (l *leg) progress(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "progressToken"); err != nil {
		l.s.drop("unusable progress", m)
		return
	}
	id, _ := jsonrpc.ParseID(at[0].Of(m.Params))
	n, ok := id.Int()
	l.s.mu.Lock()
	var token json.RawMessage
	var related jsonrpc.ID
	if r := l.pending[n]; r != nil && r.call != nil {
		token, related = r.token, r.call.id
		r.extendLocked()
	} else if x := l.s.tasks.byToken[tokenKey{l, n}]; x != nil {
		token = x.token
	}
	l.s.mu.Unlock()
	if !ok || token == nil {
		l.s.drop("late progress", m)
		return
	}
	out := *m
	out.Params = jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: token})
	out.Related = related
	l.s.out.wait(l.exposed(&out))
}
