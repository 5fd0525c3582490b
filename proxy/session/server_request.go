package session

import (
	"bytes"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// maxServerRequests bounds the server requests that one client has open.
const maxServerRequests = 1024

// A server request is a request from an upstream that the client has not answered.
type serverRequest struct {
	n     int64         // our id for it at the client, and its progress token there
	conn  *upstreamConn // who asked
	id    jsonrpc.ID    // the asker's own id
	token json.RawMessage
	rel   jsonrpc.ID // the client's request that it belongs to

	askers []*request // whose time does not run while it is open
}

// server requests is the table of what the client was asked. Guarded by session.mu.
type serverRequests struct {
	minted int64
	open   map[int64]*serverRequest
}

// takeAllLocked takes all open server requests.
func (q *serverRequests) takeAllLocked() []*serverRequest {
	return q.takeWhereLocked(func(*serverRequest) bool { return true })
}

// takeUpstreamLocked takes the server requests of one upstream.
func (q *serverRequests) takeUpstreamLocked(u *upstreamConn) []*serverRequest {
	return q.takeWhereLocked(func(x *serverRequest) bool { return x.conn == u })
}

func (q *serverRequests) takeWhereLocked(match func(*serverRequest) bool) []*serverRequest {
	var taken []*serverRequest
	for _, x := range q.open {
		if match(x) {
			q.removeLocked(x)
			taken = append(taken, x)
		}
	}
	return taken
}

func (q *serverRequests) removeLocked(x *serverRequest) {
	delete(q.open, x.n)
	x.goOnLocked()
	if x.conn.asked[x.id] == x.n {
		delete(x.conn.asked, x.id)
	}
}

// server request passes a request of an upstream to the client, under an id of ours:
// two upstreams may use the same.
func (s *session) serverRequest(u *upstreamConn, a *attempt, m *jsonrpc.Message) {
	n := mcp.Read(m)
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		u.tell(jsonrpc.NewError(m.ID, invalidParams(err.Error())))
		return
	}
	related := u.related(m.Related)
	s.mu.Lock()
	if a.ended { // it was held back until nobody waits for the answer
		s.mu.Unlock()
		return
	}
	if s.phase >= halfClosed {
		markAll(u.askersLocked(m.Related))
		s.mu.Unlock()
		s.refuseServerRequest(u, m.ID)
		return
	}
	if len(s.serverRequests.open) >= maxServerRequests {
		s.mu.Unlock()
		u.tell(jsonrpc.NewError(m.ID, jsonrpc.Overloaded(u.up.Name)))
		return
	}
	s.serverRequests.minted++
	sr := &serverRequest{n: s.serverRequests.minted, conn: u, id: m.ID, token: bytes.Clone(n.Raw(mcp.Token)), rel: related,
		askers: u.askersLocked(m.Related)}
	sr.waitLocked()
	s.serverRequests.open[sr.n] = sr
	u.asked[m.ID] = sr.n
	s.mu.Unlock()

	id := jsonrpc.IntID(sr.n)
	out := u.exposed(m, n, jsonrpc.Edit{Span: n.At(mcp.Token), With: id.Raw()})
	out.ID, out.Related = id, related
	s.out.wait(out)
}

// refuseServerRequest answers an upstream whose server request the client can not answer any
// more.
func (s *session) refuseServerRequest(u *upstreamConn, id jsonrpc.ID) {
	u.tell(jsonrpc.NewError(id, jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientGone, jsonrpc.InFlight)))
}

// answered hands the client's answer to the upstream that asked.
func (s *session) answered(m *jsonrpc.Message) {
	n, ok := m.ID.Int()
	id, ended := catalog.CreatedTask(m.Result)
	s.mu.Lock()
	sr := s.serverRequests.open[n]
	if !ok || sr == nil {
		s.mu.Unlock()
		s.drop("answer to no server request", m)
		return
	}
	s.serverRequests.removeLocked(sr)
	result := catalog.RenameRelated(m.Result, sr.conn.ownTask)
	if id != "" && !ended {
		s.clientTasks.add(task{id: id, conn: sr.conn, key: tokenKey{nil, sr.n}, token: sr.token})
	}
	// An open server request means an open stream: its end would have taken it.
	room := sr.conn.queueLocked(&jsonrpc.Message{ID: sr.id, Result: result, Error: m.Error, Extra: m.Extra}, nil)
	s.mu.Unlock()
	if !room {
		sr.conn.unread(m)
	}
}

// serverRequestCancelled passes an upstream's cancellation of its server request on.
func (s *session) serverRequestCancelled(u *upstreamConn, m *jsonrpc.Message) {
	n := mcp.Read(m)
	id, ok := n.ID(mcp.Key)
	s.mu.Lock()
	sr := s.serverRequests.open[u.asked[id]]
	if sr != nil {
		s.serverRequests.removeLocked(sr)
	}
	s.mu.Unlock()
	if !ok || sr == nil {
		s.drop("cancellation of no server request", m)
		return
	}
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: n.At(mcp.Key), With: jsonrpc.IntID(sr.n).Raw()})
	s.out.wait(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: sr.rel})
}

// withdraw tells the client that nobody waits for its answer any more.
func (s *session) withdraw(sr *serverRequest) {
	m := mcp.Cancellation(jsonrpc.IntID(sr.n), "upstream disconnected")
	m.Related = sr.rel
	s.out.wait(m)
}

// clientProgress routes progress on a server request to who asked it.
func (s *session) clientProgress(m *jsonrpc.Message, notes *mcp.Notes) {
	id, _ := notes.ID(mcp.Key)
	n, ok := id.Int()
	var u *upstreamConn
	var token json.RawMessage
	s.mu.Lock()
	if sr := s.serverRequests.open[n]; sr != nil {
		u, token = sr.conn, sr.token
	} else {
		x := s.clientTasks.getByToken(tokenKey{nil, n})
		u, token = x.conn, x.token
	}
	s.mu.Unlock()
	if !ok || token == nil {
		s.drop("progress on no server request", m)
		return
	}
	edits := append(catalog.Renaming(notes, mcp.RelatedTaskID, u.ownTask), jsonrpc.Edit{Span: notes.At(mcp.Key), With: token})
	u.tell(&jsonrpc.Message{Method: m.Method, Params: jsonrpc.Replace(m.Params, edits...), Extra: m.Extra})
}
