package frontend

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A resumption is the state of a session that has moved here, while the proxy repeats to its servers what the client
// has said.
type resumption struct {
	first    jsonrpc.ID            // initialize
	rest     []*jsonrpc.Message    // what the client said after it
	uris     map[jsonrpc.ID]string // of the subscriptions among them
	changed  bool                  // the lists may be others
	answered chan struct{}         // closed with the answer to the first, or the end of the session; the client's messages wait for it
}

// resume makes s the session of a record. Nobody uses s yet.
func (s *httpSession) resume(r *record, from caller, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said, s.version, s.moves, s.out.last, s.resumed = &r.Said, r.Protocol, r.Moves, r.Last, "moved"
	if r.Adopted {
		s.resumed = "adopted"
	}
	for _, st := range r.Streams {
		s.out.restore(st)
	}
	first, rest, uris := r.Said.again()
	for _, m := range append([]*jsonrpc.Message{first}, rest...) {
		from.sent(m)
		m.Notes = mcp.Read(m)
	}
	s.resuming = &resumption{first.ID, rest, uris, changed, make(chan struct{})}
	s.answerLocked(first)
}

// resumedLocked takes the answer to something that was said again, and returns whether m is one. A
// session whose servers now have another version, or none, cannot go on.
func (s *httpSession) resumedLocked(m *jsonrpc.Message) (is, fails bool) {
	r := s.resuming
	if r == nil || !m.IsResponse() {
		return false, false
	}
	if uri, ok := r.uris[m.ID]; ok {
		delete(r.uris, m.ID)
		if m.Error == nil { // it may have changed meanwhile
			params := slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte("}"))
			s.tellLocked(mcp.MethodResourceUpdated, params)
		}
	} else if m.ID != r.first {
		return false, false
	} else {
		version, _ := jsonrpc.Member(m.Result, "protocolVersion")
		if text, ok := jsonrpc.Unquote(version); !ok || text != s.version {
			return true, true
		}
		s.established = true
		for _, again := range r.rest {
			s.answerLocked(again)
		}
		if r.changed {
			s.listsLocked(m.Result)
		}
		close(r.answered)
		r.answered = nil
	}
	if r.answered == nil && len(r.uris) == 0 {
		s.resuming = nil
	}
	return true, false
}

// listsLocked tells the client that the lists may have changed, as far as it expects to be told.
func (s *httpSession) listsLocked(result json.RawMessage) {
	can, _ := jsonrpc.Member(result, "capabilities")
	for kind, method := range map[string]string{
		"tools": mcp.MethodToolsChanged, "prompts": mcp.MethodPromptsChanged, "resources": mcp.MethodResourcesChanged,
	} {
		of, _ := jsonrpc.Member(can, kind)
		if tells, _ := jsonrpc.Member(of, "listChanged"); string(tells) == "true" {
			s.tellLocked(method, nil)
		}
	}
}

// tellLocked puts a notification on the standalone stream.
func (s *httpSession) tellLocked(method string, params json.RawMessage) {
	s.out.push(s.out.standalone, event{data: jsonrpc.NewNotification(method, params).Text()})
}

// awaitResumed waits until the servers of a session that has moved here know its client, or ctx ends.
func (s *httpSession) awaitResumed(ctx context.Context) {
	s.mu.Lock()
	var answered chan struct{}
	if s.resuming != nil {
		answered = s.resuming.answered
	}
	s.mu.Unlock()
	if answered != nil {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
}

// Asked returns the number of the last question that the client may have been asked before the session
// moved here. A late answer to one must not be taken for that to another.
func (s *httpSession) Asked() int64 { return s.moves << 32 }

// askedBefore reports whether a question with that id was asked before the session moved here, or was continued
// here. The call that asked has ended.
func (s *httpSession) askedBefore(question jsonrpc.ID) bool {
	n, ok := question.Int()
	return ok && n <= s.Asked()
}
