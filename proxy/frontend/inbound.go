package frontend

import (
	"context"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// Why a POST is not accepted.
var (
	errDuplicateID  = errors.New("a request with this id is in flight")
	errSessionEnded = errors.New("the session has ended")
)

// expect opens a stream for the responses to the requests among messages; nil if
// there are none. No response can come before it is there.
func (s *session) expect(messages []*jsonrpc.Message, batch bool) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSessionEnded
	}
	st := newPostStream(0, batch)
	for i, m := range messages {
		if !m.IsRequest() {
			continue
		}
		if s.pending[m.ID] != nil {
			for _, before := range messages[:i] {
				if s.pending[before.ID] == st {
					delete(s.pending, before.ID)
				}
			}
			return nil, errDuplicateID
		}
		s.pending[m.ID] = st
		st.init = m.Method == "initialize" // a second one was refused before
		st.owed++
	}
	if st.owed == 0 {
		return nil, nil
	}
	return st, nil
}

// deliver hands messages to Recv, waiting for room. If the client goes away
// meanwhile, what was not handed over was not sent.
func (s *session) deliver(ctx context.Context, messages []*jsonrpc.Message) error {
	for i, m := range messages {
		select {
		case s.in <- m:
		case <-s.done:
			return errSessionEnded
		case <-ctx.Done():
			s.withdraw(messages[i:])
			return ctx.Err()
		}
		if m.Method == "notifications/cancelled" && !s.legacy {
			s.cancelled(m)
		}
	}
	return nil
}

func (s *session) withdraw(messages []*jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if st := s.pending[m.ID]; st != nil && m.IsRequest() {
			delete(s.pending, m.ID)
			st.owed--
		}
	}
}

// cancelled ends the wait of a request that its client cancelled: the proxy never
// answers such a request, but the POST needs an end. initialize cannot be
// cancelled.
func (s *session) cancelled(m *jsonrpc.Message) {
	raw, err := jsonrpc.Member(m.Params, "requestId")
	id, ok := jsonrpc.ParseID(raw)
	if err != nil || !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.pending[id]; st != nil && !st.init {
		s.settleErrorLocked(id, st, &jsonrpc.Error{Code: jsonrpc.CodeRequestCancelled, Message: "Request cancelled"})
	}
}

// versions are the protocol versions of Streamable HTTP, oldest first.
var versions = []string{"2025-03-26", "2025-06-18", "2025-11-25"}

func (s *session) versionOf() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// accepts reports whether a client of this session may send the header
// MCP-Protocol-Version: v. Without the header the negotiated version holds.
func (s *session) accepts(v string) bool {
	return knownVersion(v) || v == "2024-11-05" && v == s.versionOf()
}

func knownVersion(v string) bool { return v == "" || slices.Contains(versions, v) }
