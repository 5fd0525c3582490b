package frontend

import (
	"context"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
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
	var st *stream
	for i, m := range messages {
		if !m.IsRequest() {
			continue
		}
		if s.pending[m.ID] != nil {
			s.withdrawLocked(st, messages[:i])
			return nil, errDuplicateID
		}
		if st == nil {
			st = newPostStream(batch)
		}
		s.pending[m.ID] = st
		st.init = m.Method == mcp.MethodInitialize // a second one was refused before
		st.owed++
	}
	return st, nil
}

// deliver hands messages to Recv, waiting for room; st is what expect returned
// for them. If the client goes away meanwhile, the rest was not sent.
func (s *session) deliver(ctx context.Context, st *stream, messages []*jsonrpc.Message) error {
	for i, m := range messages {
		select {
		case s.in <- m:
		case <-s.done:
			return errSessionEnded
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.withdrawLocked(st, messages[i:])
			return ctx.Err()
		}
		if m.Method == mcp.MethodCancelled && !s.legacy {
			s.cancelled(m)
		}
	}
	return nil
}

// withdrawLocked takes back the requests among messages for which st waits.
func (s *session) withdrawLocked(st *stream, messages []*jsonrpc.Message) {
	for _, m := range messages {
		if m.IsRequest() && st != nil && s.pending[m.ID] == st {
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
