package pool

import (
	"cmp"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A level is the log level of a shared server: the most verbose that any client
// wants. Guarded by session.mu.
type level struct {
	offered bool   // the server declares logging
	wanted  bool   // a client has said what it wants; until then the server is not told
	current int    // that the server has accepted; zero for its own choice
	asking  bool   // a setLevel of ours is not answered
	waiting []turn // setLevel of clients
	wanting [9]int // clients that have said hello, by what they want: nobody counts thousands each time one comes
}

func (m *member) wantsLocked() int { return cmp.Or(m.level, infoLevel) }

// levelLocked brings the server to the level that is wanted now, and answers who
// waited for it. It is called whenever a client says what it wants, comes or goes.
func (s *session) levelLocked() {
	l := &s.level
	want := l.current
	if most := l.mostVerbose(); l.wanted && most != 0 {
		want = most
	}
	switch {
	case s.welcome == nil || l.asking:
	case !l.offered:
		l.answer(failure(jsonrpc.MethodNotFound(mcp.MethodSetLevel)))
	case want == l.current:
		l.answer(&jsonrpc.Message{Result: noResult})
	default:
		l.asking = true
		for m := range s.members {
			if m.level != 0 {
				m.sent.Store(true)
			}
		}
		params := jsonrpc.Set(nil, jsonrpc.Value{Key: "level", Text: jsonrpc.Quote(mcp.LogLevels[want-1])})
		s.ask(mcp.MethodSetLevel, params, turn{}, func(answer *jsonrpc.Message) { s.levelAnswered(want, answer) })
	}
}

// mostVerbose returns what the server must say so that each client hears what it wants;
// zero without clients.
func (l *level) mostVerbose() int {
	for wanted, n := range l.wanting {
		if n > 0 {
			return wanted
		}
	}
	return 0
}

// countLocked adds n clients that want what m does, once m has said hello.
func (s *session) countLocked(m *member, n int) {
	if m.hello != nil {
		s.level.wanting[m.wantsLocked()] += n
	}
}

// levelAnswered handles the server's answer. An error is that of all who waited;
// the next to say something asks again.
func (s *session) levelAnswered(asked int, answer *jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level.asking = false
	if answer.Error != nil {
		s.level.answer(&jsonrpc.Message{Error: answer.Error})
		return
	}
	s.level.current = asked
	s.levelLocked()
}

// answer answers all that wait for a level.
func (l *level) answer(m *jsonrpc.Message) {
	waiting := l.waiting
	l.waiting = nil
	for _, t := range waiting {
		t.m.waiting--
		t.r.Respond(&jsonrpc.Message{Result: m.Result, Error: m.Error})
	}
}
