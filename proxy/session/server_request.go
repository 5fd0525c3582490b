package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// maxServerRequests bounds the open server requests of one client.
const maxServerRequests = 1024

// A serverRequest is a request of an upstream that the client has not answered. It is the Value of
// the upstream's request and of the call to the client.
type serverRequest struct {
	conn   *upstreamConn // that asked
	token  json.RawMessage
	task   string                  // of the client, that it is about; "" for none
	causes atomic.Pointer[[]*call] // calls whose timeout is suspended while it is open
}

// serverRequest passes a request of an upstream to the client, under an id of the session, because
// two upstreams may use the same id.
func (s *session) serverRequest(u *upstreamConn, in incoming) {
	n := mcp.Read(in.m)
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		in.r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	c := s.client.NewCall(in.m.Method)
	sr := &serverRequest{conn: u, token: bytes.Clone(n.Raw(mcp.Token))}
	if n.Method.Owner == mcp.ByTask {
		sr.task, _ = n.Text(mcp.Key)
	}
	c.Value, c.Related = sr, in.related()
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil { // otherwise the stream to the upstream ends, too
			s.answered(c, answer)
		}
	}
	out := s.exposed(u, in.m, n, jsonrpc.Edit{Span: n.At(mcp.Token), With: c.ID.Raw()})
	out.Related = c.Related
	s.client.Wait(1)
	switch err := s.forwardToClient(in, c, out); {
	case err == errHalfClosed:
		in.r.Refuse(peer.ErrClientGone)
	case err == jsonrpc.ErrFull:
		in.r.Fail(jsonrpc.Overloaded(u.up.Name))
	case err != nil: // it was taken back
		sr.resumeTimers()
	}
}

var errHalfClosed = errors.New("the client sends no more")

// forwardToClient checks that the client can still answer, in one step with halfClose.
func (s *session) forwardToClient(in incoming, c *peer.Call, out *jsonrpc.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	open, _ := s.client.Open()
	switch {
	case s.phase >= halfClosed:
		return errHalfClosed
	case open >= maxServerRequests:
		return jsonrpc.ErrFull
	}
	sr := c.Value.(*serverRequest)
	in.r.Value = sr
	sr.suspendTimers(sr.conn.causes(in))
	return in.r.Forward(c, out)
}

// answered passes the client's answer to the upstream that asked.
func (s *session) answered(c *peer.Call, m *jsonrpc.Message) {
	sr := c.Value.(*serverRequest)
	sr.resumeTimers()
	id, ended := catalog.CreatedTask(m.Result)
	if n, _ := c.ID.Int(); id != "" && !ended {
		s.clientTasks.Add(task{ID: id, Conn: sr.conn, Key: tokenKey{N: n}, Token: sr.token, Unfinished: true})
	}
	if _, ended := catalog.TaskState(m.Result); ended || c.Method == mcp.MethodTasksResult && m.Error == nil {
		s.clientTasks.End(sr.conn, sr.task, true)
	}
	c.For.Respond(&jsonrpc.Message{Result: catalog.RenameRelated(m.Result, func(name string) string { return s.ownTask(sr.conn, name) }), Error: m.Error, Extra: m.Extra})
}

// questionCancelled cancels a server request at the client, because the upstream has cancelled it,
// by m, or its stream has ended. At the end of the session the client gets no cancellation.
func (s *session) questionCancelled(r *peer.Request, m *jsonrpc.Message, at jsonrpc.Span) {
	s.mu.Lock()
	sr, _ := r.Value.(*serverRequest)
	closing := s.phase >= closing
	s.mu.Unlock()
	if sr == nil {
		return // it was held back, and never sent
	}
	sr.resumeTimers()
	c := r.Forwarded()
	switch {
	case m != nil:
		s.client.Wait(1)
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
		c.CancelWith(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	case !closing:
		s.client.Wait(1)
		c.Cancel("upstream disconnected")
	}
}

// causes returns the calls that may have caused a server request: the one to which it belongs, or
// if it does not say, all calls to the upstream.
func (u *upstreamConn) causes(in incoming) (all []*call) {
	if u.up.RequestTimeout <= 0 {
		return nil
	}
	if !in.m.Related.IsZero() {
		if c := callOf(in.of); c != nil {
			return []*call{c}
		}
		return nil
	}
	for _, pc := range in.a.peer.Calls(nil) {
		if c := callOf(pc); c != nil && c.request != nil && pc.Sent() {
			all = append(all, c)
		}
	}
	return all
}

// suspendTimers suspends the timeouts of the calls that may have caused a server request.
func (sr *serverRequest) suspendTimers(askers []*call) {
	sr.causes.Store(&askers)
	for _, c := range askers {
		c.timeout.suspend(1)
	}
}

// resumeTimers restarts the timeouts. A call that was answered meanwhile has none: expire finds
// nothing to settle.
func (sr *serverRequest) resumeTimers() {
	askers := sr.causes.Swap(nil)
	if askers == nil {
		return
	}
	for _, c := range *askers {
		c.timeout.suspend(-1)
		c.timeout.extend(c.conn.up.RequestTimeout)
	}
}

// related returns the client's request to which a message belongs; zero if it does not say.
func (in incoming) related() (id jsonrpc.ID) {
	if c := callOf(in.of); c != nil && c.request != nil {
		return c.request.ID
	}
	return id
}
