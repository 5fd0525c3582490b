package pool

import (
	"cmp"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// infoLevel is what a client hears that did not say what it wants to hear.
var infoLevel = mcp.ReadLevel([]byte(`"info"`))

// levelIn returns the level in the params of a message; zero if it has none.
func levelIn(params json.RawMessage) int {
	return mcp.ReadLevel(json.RawMessage(member(params, "level")))
}

// A sharedLevel is the log level of the server: the most verbose that any client
// wants. Guarded by shared.mu.
type sharedLevel struct {
	offered bool          // the server declares logging
	wanted  bool          // a client has said what it wants; until then the server is not told
	current int           // that the server has accepted; zero for its own choice
	asking  bool          // a setLevel of ours is not answered
	waiting []*sharedCall // setLevel of clients
	wanting [9]int        // clients that have said hello, by what they want: nobody counts thousands each time one comes
}

func (s *sharer) wantsLocked() int { return cmp.Or(s.level, infoLevel) }

// setLevel notes what the client wants to hear. It is answered when the server
// says as much.
func (s *sharer) setLevel(c *sharedCall, m *jsonrpc.Message) {
	level := levelIn(m.Params)
	if level == 0 {
		s.fail(c, jsonrpc.InvalidParams(`"level" is not a log level`))
		return
	}
	sh := s.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s.ended {
		return
	}
	sh.countLocked(s, -1)
	s.level, sh.level.wanted = level, true
	sh.countLocked(s, 1)
	sh.level.waiting = append(sh.level.waiting, c)
	sh.levelLocked()
}

// levelLocked brings the server to the level that is wanted now, and answers who
// waited for it. It is called whenever a client says what it wants, comes or goes.
func (sh *shared) levelLocked() {
	l := &sh.level
	want := l.current
	if most := sh.mostVerboseLocked(); l.wanted && most != 0 {
		want = most
	}
	switch {
	case sh.welcome == nil || l.asking:
	case !l.offered:
		sh.leveledLocked(func(c *sharedCall) *jsonrpc.Message { return jsonrpc.NewError(c.id, noLogging) })
	case want == l.current:
		sh.leveledLocked(func(c *sharedCall) *jsonrpc.Message { return jsonrpc.NewResult(c.id, noResult) })
	default:
		l.asking = true
		for s := range sh.sharers {
			s.sent = s.sent || s.level != 0
		}
		sh.askLocked(mcp.MethodSetLevel, json.RawMessage(`{"level":"`+mcp.LogLevels[want-1]+`"}`), nil,
			func(answer *jsonrpc.Message) { sh.levelAnswered(want, answer) })
	}
}

var noLogging = jsonrpc.MethodNotFound(mcp.MethodSetLevel)

// mostVerboseLocked returns what the server must say so that each client hears
// what it wants; zero without clients.
func (sh *shared) mostVerboseLocked() int {
	for level, n := range sh.level.wanting {
		if n > 0 {
			return int(level)
		}
	}
	return 0
}

// countLocked adds n clients that want what s does, once s has said hello.
func (sh *shared) countLocked(s *sharer, n int) {
	if s.hello != nil {
		sh.level.wanting[s.wantsLocked()] += n
	}
}

// levelAnswered handles the server's answer. An error is that of all who waited;
// the next to say something asks again.
func (sh *shared) levelAnswered(level int, answer *jsonrpc.Message) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.level.asking = false
	if answer.Error != nil {
		sh.leveledLocked(func(c *sharedCall) *jsonrpc.Message { return &jsonrpc.Message{ID: c.id, Error: answer.Error} })
		return
	}
	sh.level.current = level
	sh.levelLocked()
}

// leveledLocked answers all that wait for a level.
func (sh *shared) leveledLocked(answer func(*sharedCall) *jsonrpc.Message) {
	waiting := sh.level.waiting
	sh.level.waiting = nil
	for _, c := range waiting {
		sh.settleLocked(c, answer(c))
	}
}
