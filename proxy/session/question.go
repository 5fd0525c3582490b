package session

import (
	"bytes"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxQuestions bounds the questions that one client has open.
const maxQuestions = 1024

// A question is a request from an upstream that the client has not answered.
type question struct {
	n     int64      // our id for it at the client, and its progress token there
	leg   *leg       // who asked
	id    jsonrpc.ID // the asker's own id
	token json.RawMessage
	rel   jsonrpc.ID // the client's request that it belongs to

	askers []*request // whose time does not run while it is open
}

// questions is the table of what the client was asked. Guarded by session.mu.
type questions struct {
	minted int64
	open   map[int64]*question
}

// takeAllLocked takes all open questions.
func (q *questions) takeAllLocked() []*question {
	return q.takeWhereLocked(func(*question) bool { return true })
}

// takeLegLocked takes the questions of one upstream.
func (q *questions) takeLegLocked(l *leg) []*question {
	return q.takeWhereLocked(func(x *question) bool { return x.leg == l })
}

func (q *questions) takeWhereLocked(match func(*question) bool) []*question {
	var taken []*question
	for _, x := range q.open {
		if match(x) {
			q.removeLocked(x)
			taken = append(taken, x)
		}
	}
	return taken
}

func (q *questions) removeLocked(x *question) {
	delete(q.open, x.n)
	x.goOnLocked()
	if x.leg.asked[x.id] == x.n {
		delete(x.leg.asked, x.id)
	}
}

// question passes a request of an upstream to the client, under an id of ours:
// two upstreams may use the same.
func (s *session) question(l *leg, a *attempt, m *jsonrpc.Message) {
	token, err := findToken(m.Params)
	if err != nil {
		l.tell(jsonrpc.NewError(m.ID, invalidParams(err.Error())))
		return
	}
	related := l.related(m.Related)
	s.mu.Lock()
	if a.ended { // it was held back until nobody waits for the answer
		s.mu.Unlock()
		return
	}
	if s.phase >= halfClosed {
		markAll(l.askersLocked(m.Related))
		s.mu.Unlock()
		s.refuseQuestion(l, m.ID)
		return
	}
	if len(s.questions.open) >= maxQuestions {
		s.mu.Unlock()
		l.tell(jsonrpc.NewError(m.ID, jsonrpc.Overloaded(l.up.Name)))
		return
	}
	s.questions.minted++
	q := &question{n: s.questions.minted, leg: l, id: m.ID, token: bytes.Clone(token.Of(m.Params)), rel: related,
		askers: l.askersLocked(m.Related)}
	q.waitLocked()
	s.questions.open[q.n] = q
	l.asked[m.ID] = q.n
	s.mu.Unlock()

	id := jsonrpc.IntID(q.n)
	params := m.Params
	if !token.IsZero() {
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: token, With: id.Raw()})
	}
	s.out.wait(l.exposed(&jsonrpc.Message{ID: id, Method: m.Method, Params: params, Extra: m.Extra, Related: related}))
}

// refuseQuestion answers an upstream whose question the client can not answer any
// more.
func (s *session) refuseQuestion(l *leg, id jsonrpc.ID) {
	l.tell(jsonrpc.NewError(id, jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", "client disconnected", jsonrpc.InFlight)))
}

// answered hands the client's answer to the upstream that asked.
func (s *session) answered(m *jsonrpc.Message) {
	n, ok := m.ID.Int()
	id, ended := taskOf(m.Result)
	s.mu.Lock()
	q := s.questions.open[n]
	if !ok || q == nil {
		s.mu.Unlock()
		s.drop("answer to no question", m)
		return
	}
	s.questions.removeLocked(q)
	result := renamedRelated(m.Result, q.leg.ownTaskLocked)
	if id != "" && !ended {
		s.clientTasks.addLocked(&task{id: id, leg: q.leg, key: tokenKey{nil, q.n}, token: q.token})
	}
	// An open question means an open stream: its end would have taken it.
	room := q.leg.queueLocked(&jsonrpc.Message{ID: q.id, Result: result, Error: m.Error, Extra: m.Extra}, nil)
	s.mu.Unlock()
	if !room {
		q.leg.unread(m)
	}
}

// questionCancelled passes an upstream's cancellation of its question on.
func (s *session) questionCancelled(l *leg, m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "requestId")
	id, ok := jsonrpc.ParseID(at[0].Of(m.Params))
	s.mu.Lock()
	q := s.questions.open[l.asked[id]]
	if q != nil {
		s.questions.removeLocked(q)
	}
	s.mu.Unlock()
	if err != nil || !ok || q == nil {
		s.drop("cancellation of no question", m)
		return
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: jsonrpc.IntID(q.n).Raw()})
	s.out.wait(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: q.rel})
}

// withdraw tells the client that nobody waits for its answer any more.
func (s *session) withdraw(q *question) {
	m := cancellation(jsonrpc.IntID(q.n), "upstream disconnected")
	m.Related = q.rel
	s.out.wait(m)
}

// clientProgress routes progress on a question to who asked it.
func (s *session) clientProgress(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "progressToken")
	id, _ := jsonrpc.ParseID(at[0].Of(m.Params))
	n, ok := id.Int()
	var l *leg
	var token json.RawMessage
	s.mu.Lock()
	if q := s.questions.open[n]; q != nil {
		l, token = q.leg, q.token
	} else if x := s.clientTasks.byToken[tokenKey{nil, n}]; x != nil {
		l, token = x.leg, x.token
	}
	s.mu.Unlock()
	if err != nil || !ok || token == nil {
		s.drop("progress on no question", m)
		return
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: token})
	l.tell(&jsonrpc.Message{Method: m.Method, Params: renamedRelated(params, l.ownTask), Extra: m.Extra})
}
