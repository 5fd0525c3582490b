package shared

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A level is the log level of a shared server: the most verbose one that any client wants. The session's lock
// guards it.
type level struct {
	ask func(wanted int) // asks the server for a level, and calls answered with the answer. Static

	ready   bool                            // the server has answered initialize
	offered bool                            // it declares logging
	wanted  bool                            // a client has set a level; before, the server keeps its own
	current int                             // the level that the server has accepted; zero for its own
	asking  bool                            // a request to the server is not answered
	waiting []func(answer *jsonrpc.Message) // clients whose setLevel is not answered
	wanting [9]int                          // number of initialized clients by the level that they want
}

// wait calls answered when the server has accepted the wanted level, or has refused it.
func (l *level) wait(answered func(*jsonrpc.Message)) {
	l.wanted = true
	l.waiting = append(l.waiting, answered)
}

// bring asks the server for the wanted level if it differs from the current one, and answers waiting clients if it
// does not. It is called when a client comes, leaves or sets its level.
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

// mostVerbose returns the most verbose level that any client wants; zero without clients.
func (l *level) mostVerbose() int {
	for wanted, n := range l.wanting {
		if n > 0 {
			return wanted
		}
	}
	return 0
}

// answered handles the server's answer. An error fails all waiting clients; the next setLevel asks again.
func (l *level) answered(asked int, m *jsonrpc.Message) {
	l.asking = false
	if m.Error != nil {
		l.answer(&jsonrpc.Message{Error: m.Error})
		return
	}
	l.current = asked
	l.bring()
}

// answer answers all waiting clients.
func (l *level) answer(m *jsonrpc.Message) {
	waiting := l.waiting
	l.waiting = nil
	for _, answered := range waiting {
		answered(m)
	}
}

// infoLevel is the level of clients that set none.
var infoLevel = mcp.ReadLevel([]byte(`"info"`))

// levelIn returns the level in logging/setLevel or in a log message; zero if there is none.
func levelIn(notes *mcp.Notes) int {
	if notes.Err(mcp.Key) != nil {
		return 0
	}
	return mcp.ReadLevel(notes.Raw(mcp.Key))
}

// levelOf returns the level that a request asks for. An invalid level is left to the server to refuse, and until
// then counts as the most verbose.
func levelOf(raw json.RawMessage) int {
	if raw == nil || string(raw) == "null" {
		return 0
	}
	return max(1, mcp.ReadLevel(raw))
}

// wants reports whether a client that wants messages from a level on (zero: none) wants one of a level. A message
// without a valid level may be of any.
func wants(level, from int) bool { return from != 0 && (level == 0 || level >= from) }
