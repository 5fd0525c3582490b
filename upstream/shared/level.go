package shared

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A level is the log level of a shared server: the most verbose that any client
// wants. Guarded by session.mu.
type level struct {
	ask func(wanted int) // has the server asked for a level; then answered is called. Static

	ready   bool                            // the server can be asked
	offered bool                            // it declares logging
	wanted  bool                            // a client has said what it wants; until then the server is not told
	current int                             // that the server has accepted; zero for its own choice
	asking  bool                            // it is asked, and has not answered
	waiting []func(answer *jsonrpc.Message) // clients whose setLevel is not answered
	wanting [9]int                          // clients that have said hello, by what they want: nobody counts thousands each time one comes
}

// count adds n clients that want to hear from a level on.
func (l *level) count(from, n int) { l.wanting[from] += n }

// wait has a client's setLevel be answered when the server is at the level that is wanted.
func (l *level) wait(answered func(*jsonrpc.Message)) {
	l.wanted = true
	l.waiting = append(l.waiting, answered)
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
		l.answer(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
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
	for _, answered := range waiting {
		answered(m)
	}
}

// infoLevel is what a client hears that did not say what it wants to hear.
var infoLevel = mcp.ReadLevel([]byte(`"info"`))

// levelIn returns the level of logging/setLevel or of a log message; zero if it has none.
func levelIn(notes *mcp.Notes) int {
	if notes.Err(mcp.Key) != nil {
		return 0
	}
	return mcp.ReadLevel(notes.Raw(mcp.Key))
}

// levelOf returns the level that a request asks for. What is none is the server's to
// refuse; until then it may log anything.
func levelOf(raw json.RawMessage) int {
	if raw == nil || string(raw) == "null" {
		return 0
	}
	return max(1, mcp.ReadLevel(raw))
}

// wants reports whether somebody who wants to hear from a level on, if not zero, wants to
// hear a message of a level. One that is of none may be of any.
func wants(level, from int) bool { return from != 0 && (level == 0 || level >= from) }
