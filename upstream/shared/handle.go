package shared

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// request handles a request of the client.
func (m *member) request(r *peer.Request) {
	notes := mcp.Read(r.Message)
	if m.s.modern != nil {
		m.forwardModern(r, notes)
		return
	}
	switch r.Method {
	case mcp.MethodInitialize:
		m.initialize(r)
	case mcp.MethodPing: // it concerns this hop alone
		r.Respond(&jsonrpc.Message{Result: noResult})
	case mcp.MethodSetLevel:
		m.setLevel(r, notes)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		m.subscribe(r, notes)
	case mcp.MethodTasksGet, mcp.MethodTasksResult, mcp.MethodTasksCancel:
		m.aboutTask(r, notes)
	case mcp.MethodTasksList:
		m.listTasks(r, notes)
	default:
		m.forward(r, notes)
	}
}

// initialize answers the client's initialize with the server's first answer, and stores what the client can be
// asked.
func (m *member) initialize(r *peer.Request) {
	capabilities, err := jsonrpc.Member(r.Message.Params, "capabilities")
	var can mcp.Abilities
	if err == nil {
		can, err = mcp.ReadAbilities(capabilities)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		r.Fail(jsonrpc.InvalidParams(err.Error()))
	case m.hello != nil:
		r.Fail(&jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: already initialized"})
	default:
		m.hello, m.can = r, can
		m.countLocked(1)
		s.greetLocked(m)
		s.level.bring()
	}
}

// setLevel records the log level that the client wants. It is answered when the server has accepted a level.
func (m *member) setLevel(r *peer.Request, notes *mcp.Notes) {
	wants := levelIn(notes)
	if wants == 0 {
		r.Fail(jsonrpc.InvalidParams(`"level" is not a log level`))
		return
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.gone:
		return
	case m.waiting >= maxMemberCalls:
		r.Fail(jsonrpc.Overloaded(s.up.Name))
		return
	}
	m.countLocked(-1)
	m.level = wants
	m.countLocked(1)
	m.waiting++
	s.level.wait(func(answer *jsonrpc.Message) {
		m.waiting--
		r.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error})
	})
	s.level.bring()
}

// maxMemberSubs bounds the subscriptions of one client. More are refused.
const maxMemberSubs = 1024

// subscribe handles resources/subscribe and resources/unsubscribe.
func (m *member) subscribe(r *peer.Request, notes *mcp.Notes) {
	uri, ok := notes.Text(mcp.Key)
	err := notes.Err(mcp.Key)
	if err == nil && !ok {
		err = mcp.Missing("uri")
	}
	if err == nil {
		err = m.checkMeta(notes)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	on := r.Method == mcp.MethodSubscribe
	held, has := s.subs.Held(m, uri)
	switch {
	case m.gone:
		return
	case err != nil:
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	case on && !has && held >= maxMemberSubs, m.waiting >= maxMemberCalls:
		r.Fail(jsonrpc.Overloaded(s.up.Name))
		return
	}
	if on {
		s.users.add(m.holder.Who)
	}
	m.waiting++
	s.subs.Add(uri, mcp.Subscribing[*member]{
		By: m, On: on, Params: bytes.Clone(r.Message.Params), Of: r, Wanted: r.Open,
		Done: func(answer *jsonrpc.Message) {
			m.waiting--
			if answer != nil {
				r.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
			}
		},
	})
}

// askSub asks the server to subscribe or to unsubscribe.
func (s *sharedSession) askSub(method string, params json.RawMessage, op mcp.Subscribing[*member], answered func(*jsonrpc.Message)) {
	if op.By != nil {
		op.By.sent.Store(true)
	}
	r, _ := op.Of.(*peer.Request)
	s.askFor(op.By, r, method, params, func(answer *jsonrpc.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		answered(answer)
	})
}

// aboutTask handles tasks/get, tasks/result and tasks/cancel. A request about another client's task is answered
// here, as for a task that does not exist.
func (m *member) aboutTask(r *peer.Request, notes *mcp.Notes) {
	id, ok := notes.Text(mcp.Key)
	err := notes.Err(mcp.Key)
	switch {
	case err == nil && !ok:
		err = mcp.Missing("taskId")
	case err == nil && !m.owns(id):
		err = errUnknownTask
	}
	if err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	m.forward(r, notes)
}

// listTasks asks the server for a page of its tasks. ownTasks filters the answer.
func (m *member) listTasks(r *peer.Request, notes *mcp.Notes) {
	err := notes.Err(mcp.Cursor)
	if err == nil && !notes.Has(mcp.Cursor) {
		m.forward(r, notes)
		return
	}
	ours, _ := notes.Text(mcp.Cursor)
	m.s.mu.Lock()
	theirs := m.s.tasks.cursor(m, ours)
	m.s.mu.Unlock()
	if err == nil && theirs == nil {
		err = errors.New("unknown cursor")
	}
	if err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	m.forward(r, notes, jsonrpc.Edit{Span: notes.At(mcp.Cursor), With: theirs})
}

// notified handles a notification of the client. Changes of roots and vendor notifications go to the server, which
// all clients share.
func (m *member) notified(msg *jsonrpc.Message, _ *peer.Call) {
	switch {
	case msg.Method == mcp.MethodCancelled: // of a request that is not open
		return
	case m.s.modern != nil:
	case msg.Method == mcp.MethodInitialized, // we have sent our own
		msg.Method == mcp.MethodProgress,   // of no open request
		msg.Method == mcp.MethodTaskStatus, // the server was told that clients have no tasks
		m.checkMeta(mcp.Read(msg)) != nil:
		return
	}
	c, err := m.callNamed(mcp.Read(msg))
	if err != nil {
		return
	}
	if c != nil {
		msg = &jsonrpc.Message{Method: msg.Method, Params: mcp.Read(msg).Own(c.ID, c.token), Extra: msg.Extra}
	}
	if m.s.server.WaitIn(m.ctx, &m.room) == nil {
		m.uses()
		m.s.server.SendIn(&m.room, msg)
	}
}
