package frontend

import (
	"context"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// inbound bounds the messages of POSTs that wait for Recv. When it is reached, POSTs wait.
const inbound = 64

// unusable makes Recv return an error for the question that bad should have answered, if it should
// have and s is not nil.
func (s *httpSession) unusable(bad *jsonrpc.InvalidError) {
	if s != nil && bad.Reply && !bad.ID.IsZero() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answerLocked(jsonrpc.NewError(bad.ID, bad.Wire()))
	}
}

// answerLocked makes Recv return m, an answer that the client cannot give.
func (s *httpSession) answerLocked(m *jsonrpc.Message) { s.in.Force(jsonrpc.Queued{Message: m}) }

// expect opens a stream for the responses to the requests among messages, and returns its reader;
// nil if there are no requests. It must be called before the requests are delivered. It answers the
// unusable elements of a batch.
func (s *httpSession) expect(messages []*jsonrpc.Message, batch bool) (*reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil || errors.Is(s.in.Err(), errMoved) {
		return nil, errMoved
	}
	var rd *reader
	var unusable []*jsonrpc.InvalidError
	for i, m := range messages {
		if !m.IsRequest() && m.Unusable == nil {
			continue
		}
		if rd == nil {
			rd = s.out.newPost(batch)
		}
		if m.Unusable != nil {
			unusable = append(unusable, m.Unusable)
			continue
		}
		if err := s.pending.Add(m.ID, rd.st); err != nil {
			s.withdrawLocked(rd, messages[:i])
			return nil, err
		}
		rd.st.init = m.Method == mcp.MethodInitialize // a second initialize was refused earlier
		rd.st.owed++
	}
	for _, bad := range unusable {
		s.out.push(rd.st, eventOf(bad.Answer(s.pending.Get(bad.ID) != nil)))
	}
	return rd, nil
}

// deliver passes messages to Recv, and waits for room. rd is the result of expect for them. If the
// client leaves meanwhile, it withdraws the remaining messages.
func (s *httpSession) deliver(ctx context.Context, rd *reader, messages []*jsonrpc.Message) error {
	if len(messages) == 1 && messages[0].IsRequest() && s.pass(messages[0]) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range messages {
		if m.Unusable != nil { // expect has answered it
			continue
		}
		err := s.in.WaitContext(ctx, &s.room, 1)
		if err == nil {
			err = s.in.Put(jsonrpc.Queued{Message: m, Room: &s.room})
		}
		if err != nil {
			if ctx.Err() != nil {
				s.withdrawLocked(rd, messages[i:])
			}
			return err
		}
		if m.Method == mcp.MethodCancelled && m.IsNotification() && !s.sse {
			s.cancelledLocked(m)
		}
		s.noteLocked(m)
	}
	return nil
}

// pass has a request handled in this goroutine, unless others are ahead of it.
func (s *httpSession) pass(m *jsonrpc.Message) bool {
	q := jsonrpc.Queued{Message: m}
	if s.said != nil {
		q.Of = noting{s, m}
	}
	return s.in.Pass(q)
}

// A noting message is remembered when it is passed, in the order in which Serve gets it.
type noting struct {
	s *httpSession
	m *jsonrpc.Message
}

// Leave implements [jsonrpc.Leaving].
func (n noting) Leave() bool {
	n.s.noteLocked(n.m)
	return true
}

// noteLocked remembers what a client says once, for another replica.
func (s *httpSession) noteLocked(m *jsonrpc.Message) {
	if s.said != nil && s.said.note(m) {
		s.changes.note(s.id)
	}
}

// withdrawLocked removes the requests among messages for which rd waits.
func (s *httpSession) withdrawLocked(rd *reader, messages []*jsonrpc.Message) {
	for _, m := range messages {
		if m.IsRequest() && rd != nil && s.pending.Take(m.ID, rd.st) {
			rd.st.owed--
		}
	}
}

// cancelledLocked answers a request that its client cancels: Serve never answers it, but the POST
// needs a response. initialize cannot be cancelled.
func (s *httpSession) cancelledLocked(m *jsonrpc.Message) {
	id, ok := mcp.Read(m).ID(mcp.Key)
	if !ok {
		return
	}
	if st := s.pending.Get(id); st != nil && !st.init {
		s.failLocked(id, &jsonrpc.Error{Code: jsonrpc.CodeRequestCancelled, Message: "Request cancelled"})
	}
}
