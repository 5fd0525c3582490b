package shared

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A level is the log level of a shared server: the most verbose that any client
// wants. Guarded by session.mu.
type level struct {
	ask func(wanted int) // has the server asked for a level; then answered is called. Static

	ready   bool            // the server can be asked
	offered bool            // it declares logging
	wanted  bool            // a client has said what it wants; until then the server is not told
	current int             // that the server has accepted; zero for its own choice
	asking  bool            // it is asked, and has not answered
	waiting []queuedRequest // setLevel of clients
	wanting [9]int          // clients that have said hello, by what they want: nobody counts thousands each time one comes
}

// count adds n clients that want to hear from a level on.
func (l *level) count(from, n int) { l.wanting[from] += n }

// wait has a client's setLevel be answered when the server is at the level that is wanted.
func (l *level) wait(t queuedRequest) {
	l.wanted = true
	l.waiting = append(l.waiting, t)
}

// bring brings the server to the level that is wanted now, and answers who
// waited for it. It is called whenever a client says what it wants, comes or goes.
func (l *level) bring() {
	want := l.current
	if most := l.mostVerbose(); l.wanted && most != 0 {
		want = most
	}
	switch {
	case !l.ready || l.asking:
	case !l.offered:
		l.answer(jsonrpc.Failure(jsonrpc.MethodNotFound(mcp.MethodSetLevel)))
	case want == l.current:
		l.answer(&jsonrpc.Message{Result: noResult})
	default:
		l.asking = true
		l.ask(want)
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

// answered handles the server's answer. An error is that of all who waited; the next to say
// something asks again.
func (l *level) answered(asked int, m *jsonrpc.Message) {
	l.asking = false
	if m.Error != nil {
		l.answer(&jsonrpc.Message{Error: m.Error})
		return
	}
	l.current = asked
	l.bring()
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
