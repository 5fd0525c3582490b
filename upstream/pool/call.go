package pool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxOrphans bounds the calls of clients that have left or cancelled which are
// remembered because they may still create a task, which is then cancelled.
// Tasks of those beyond expire.
const maxOrphans = 1024

// A sharedCall is a request of a client, or of this side, that is not settled.
type sharedCall struct {
	// Static after construction.
	by     *sharer    // nil for a call of this side
	id     jsonrpc.ID // the client's; zero without by
	method string
	then   func(answer *jsonrpc.Message) // gets the answer of a call of this side
	serves *sharedCall                   // the client's call that a call of this side is made for; nil for none

	// Static once it is with the server.
	token   json.RawMessage // the client's progress token, as it came; nil for none
	creates bool            // it asks for a task
	listens bool            // modern: it is subscriptions/listen
	logs    int             // modern: the least of the log messages it wants; zero for none
	task    string          // tasks/*: the id of the task that it is about

	// Guarded by shared.mu.
	n      int64 // minted; its text is the progress token, too. Zero if it stays here
	sent   bool  // its write has begun
	orphan bool  // nobody waits for the answer any more
	marked bool  // as a call of a flight is
	fades  bool  // see fadeLocked

	// It was cancelled while it waits here for its turn or for a call of this
	// side. Until then it counts as open, so that what waits is bounded.
	cancelled bool
}

// sharedMethods are the requests that are not just passed on.
var sharedMethods map[string]func(*sharer, *sharedCall, *jsonrpc.Message)

func init() { // not a literal: the handlers refer to the table
	sharedMethods = map[string]func(*sharer, *sharedCall, *jsonrpc.Message){
		mcp.MethodInitialize:  (*sharer).initialize,
		mcp.MethodPing:        (*sharer).pong,
		mcp.MethodSetLevel:    (*sharer).setLevel,
		mcp.MethodSubscribe:   (*sharer).subscribe,
		mcp.MethodUnsubscribe: (*sharer).subscribe,
		mcp.MethodTasksGet:    (*sharer).aboutTask,
		mcp.MethodTasksResult: (*sharer).aboutTask,
		mcp.MethodTasksCancel: (*sharer).aboutTask,
		mcp.MethodTasksList:   (*sharer).listTasks,
	}
}

// request handles a request of the client.
func (s *sharer) request(m *jsonrpc.Message) {
	c := s.begin(m)
	if c == nil {
		return
	}
	if s.sh.modern != nil {
		s.forwardModern(c, m)
		return
	}
	if handle := sharedMethods[m.Method]; handle != nil {
		handle(s, c, m)
		return
	}
	s.forward(c, m)
}

// begin enters a request into the table. It returns nil if it has answered the
// request itself, or if nobody waits for an answer.
func (s *sharer) begin(m *jsonrpc.Message) *sharedCall {
	c := &sharedCall{by: s, id: m.ID, method: m.Method}
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	switch {
	case s.ended:
		return nil
	case s.calls[m.ID] != nil: // with the id, the error would settle the first call
		s.putLocked(jsonrpc.NewError(jsonrpc.ID{}, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: the id is in use by a request in flight"}))
		return nil
	case len(s.calls) >= maxSharedCalls:
		s.putLocked(jsonrpc.NewError(m.ID, jsonrpc.Overloaded(s.sh.name)))
		return nil
	}
	s.calls[m.ID] = c
	return c
}

// initialize answers the client's own from the first. What the client can do is
// remembered, for what the server will ask.
func (s *sharer) initialize(c *sharedCall, m *jsonrpc.Message) {
	can, err := readAbilities(m.Params)
	sh := s.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case err != nil:
		sh.failLocked(c, jsonrpc.InvalidParams(err.Error()))
	case s.hello != nil:
		sh.failLocked(c, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: already initialized"})
	default:
		s.hello, s.can = c, can
		sh.countLocked(s, 1)
		sh.greetLocked(s)
		sh.levelLocked()
	}
}

// pong answers a ping, which is about this hop alone.
func (s *sharer) pong(c *sharedCall, _ *jsonrpc.Message) {
	s.settle(c, jsonrpc.NewResult(c.id, noResult))
}

var noResult = json.RawMessage(`{}`)

// forward passes a call on. It waits for room.
func (s *sharer) forward(c *sharedCall, m *jsonrpc.Message, edits ...jsonrpc.Edit) {
	token, err := s.checkMeta(m.Params)
	if err != nil {
		s.fail(c, jsonrpc.InvalidParams(err.Error()))
		return
	}
	c.creates = bytes.Contains(m.Params, []byte(`"task"`)) && strings.HasPrefix(member(m.Params, "task"), "{")
	s.pass(c, m, token, edits...)
}

// pass passes a call on, with an id and a progress token of ours. It waits for room.
func (s *sharer) pass(c *sharedCall, m *jsonrpc.Message, token jsonrpc.Span, edits ...jsonrpc.Edit) {
	sh := s.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !s.waitForRoomLocked() {
		return
	}
	n := sh.mintLocked(c)
	if !token.IsZero() {
		c.token = bytes.Clone(token.Of(m.Params))
		edits = append(edits, jsonrpc.Edit{Span: token, With: jsonrpc.IntID(n).Raw()})
	}
	params := m.Params
	if len(edits) > 0 {
		params = jsonrpc.Replace(params, edits...)
	}
	out := &jsonrpc.Message{ID: jsonrpc.IntID(n), Method: m.Method, Params: params, Extra: m.Extra}
	sh.sendLocked(outgoing{m: out, call: c, by: s})
}

// checkMeta returns where the progress token of what the client sends is. It may
// name no task but the client's own: the server might ask the owner of another what
// belongs to this call, and tell this client the answer.
func (s *sharer) checkMeta(params json.RawMessage) (token jsonrpc.Span, err error) {
	meta, err := readMeta(params)
	if err == nil && meta.task != "" && !s.owns(meta.task) {
		err = errUnknownTask
	}
	return meta.token, err
}

// mintLocked enters a call into the table of those with the server.
func (sh *shared) mintLocked(c *sharedCall) int64 {
	sh.minted++
	c.n = sh.minted
	sh.calls[c.n] = c
	return c.n
}

// askLocked makes a call of this side, for a client's call or of its own accord. It
// waits for no room.
func (sh *shared) askLocked(method string, params json.RawMessage, serves *sharedCall, then func(*jsonrpc.Message)) {
	c := &sharedCall{method: method, then: then, serves: serves}
	id := jsonrpc.IntID(sh.mintLocked(c))
	if meta, err := readMeta(params); err == nil && !meta.token.IsZero() { // a client's: it could be taken for one of ours
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: meta.token, With: id.Raw()})
	}
	sh.sendLocked(outgoing{m: jsonrpc.NewRequest(id, method, params), call: c})
}

// answered handles a response of the server. One to a call that is settled, or
// was cancelled, is late, and dropped.
func (sh *shared) answered(m *jsonrpc.Message) {
	c := sh.take(m.ID)
	switch {
	case c == nil:
		return
	case c.then != nil:
		c.then(m)
		return
	case c.creates:
		sh.taskCreated(c, m)
	case c.task != "":
		sh.taskAnswered(c, m)
	case c.method == mcp.MethodTasksList && sh.modern == nil:
		m = sh.ownTasks(c, m)
	case c.listens && m.Error == nil:
		m = listenResult(c, m)
	}
	if m.Error != nil && sh.modern == nil {
		sh.elicitedBy(c, m.Error)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.settleLocked(c, &jsonrpc.Message{ID: c.id, Result: m.Result, Error: m.Error, Extra: m.Extra})
}

// take takes the call out that a response answers. The server answers with the
// same number, or a string of it.
func (sh *shared) take(id jsonrpc.ID) *sharedCall {
	n, ok := id.Answered()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.calls[n]
	if !ok || c == nil || !c.sent {
		return nil
	}
	sh.removeLocked(c)
	return c
}

// removeLocked takes c out of the table of those with the server.
func (sh *shared) removeLocked(c *sharedCall) {
	if sh.calls[c.n] != c {
		return
	}
	delete(sh.calls, c.n)
	if c.orphan {
		sh.tasks.orphans--
		if c.fades {
			sh.fading--
		}
	} else if c.sent && c.by != nil {
		c.by.atServer--
	}
}

// settleLocked answers c, unless somebody else has taken it.
func (sh *shared) settleLocked(c *sharedCall, answer *jsonrpc.Message) {
	s := c.by
	if s.calls[c.id] != c {
		return
	}
	delete(s.calls, c.id)
	if !c.cancelled {
		s.putLocked(answer)
	}
}

func (sh *shared) failLocked(c *sharedCall, err *jsonrpc.Error) {
	sh.settleLocked(c, jsonrpc.NewError(c.id, err))
}

func (s *sharer) settle(c *sharedCall, answer *jsonrpc.Message) {
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	s.sh.settleLocked(c, answer)
}

func (s *sharer) fail(c *sharedCall, err *jsonrpc.Error) { s.settle(c, jsonrpc.NewError(c.id, err)) }

// abandonLocked forgets a call for which nobody waits any more. It reports whether
// the server is at work on it. One that may create a task is remembered.
func (sh *shared) abandonLocked(c *sharedCall) bool {
	delete(c.by.calls, c.id)
	if sh.calls[c.n] != c {
		return false
	}
	sh.removeLocked(c)
	if c.logs != 0 && c.sent {
		sh.modern.gaveUpLocked(c)
	}
	if c.creates && c.sent && sh.tasks.orphans < maxOrphans {
		c.orphan = true
		sh.tasks.orphans++
		sh.calls[c.n] = c
	}
	return c.sent
}

// cancelled handles the client's cancellation of a call of its own. What it says
// about any other id, or about initialize, is ignored (2025-11-25
// basic/utilities/cancellation).
func (s *sharer) cancelled(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "requestId") != nil {
		return
	}
	id, ok := jsonrpc.ParseID(at[0].Of(m.Params))
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	c := s.calls[id]
	if !ok || c == nil || c.method == mcp.MethodInitialize {
		return
	}
	if c.n == 0 {
		c.cancelled = true
		return
	}
	if !s.sh.abandonLocked(c) {
		return
	}
	s.lingers = time.Now().Add(lingering)
	s.overLocked(c)
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: jsonrpc.IntID(c.n).Raw()})
	s.sh.tellLocked(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
}

// notified handles a notification of the client. The client's roots and what a
// vendor has to say are for the server, which is all clients' the same.
func (s *sharer) notified(m *jsonrpc.Message) {
	if s.sh.modern != nil && m.Method != mcp.MethodCancelled {
		s.send(m)
		return
	}
	switch m.Method {
	case mcp.MethodInitialized: // the server had ours
	case mcp.MethodCancelled:
		s.cancelled(m)
	case mcp.MethodProgress:
		s.progress(m)
	case mcp.MethodTaskStatus: // no client was said to have tasks
	default:
		if _, err := s.checkMeta(m.Params); err == nil {
			s.send(m)
		}
	}
}

func errMissing(key string) error { return fmt.Errorf("%q is missing or not a string", key) }
