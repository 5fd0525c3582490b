package shared

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// maxKeptCalls bounds the abandoned calls that are not cancelled at once: they may create a
	// task, which is then cancelled, or end by themselves. Further calls are cancelled, and
	// their tasks expire.
	maxKeptCalls = 1024

	// refusedFor is how long a call, whose client leaves, may take to end by itself after a question
	// that it may have asked was refused: an error that ended its handler is its one stimulus. Most
	// such calls have asked nothing, and so it is short.
	refusedFor = 10 * time.Second
)

// forward forwards a request. It blocks until the queue has room.
func (m *member) forward(r *peer.Request, notes *mcp.Notes, edits ...jsonrpc.Edit) {
	if err := m.checkMeta(notes); err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	m.pass(r, &memberCall{creates: bytes.HasPrefix(notes.Raw(mcp.Task), []byte("{"))}, notes, edits...)
}

// pass forwards a request under an id and a progress token of ours. It blocks until the queue has room.
func (m *member) pass(r *peer.Request, c *memberCall, notes *mcp.Notes, edits ...jsonrpc.Edit) {
	if notes.Has(mcp.Subscription) {
		named, err := m.callNamed(notes)
		if err != nil {
			r.Fail(jsonrpc.InvalidParams(err.Error()))
			return
		}
		if named != nil {
			edits = append(edits, jsonrpc.Edit{Span: notes.At(mcp.Subscription), With: named.ID.Raw()})
		}
	}
	server := m.s.server
	if server.WaitIn(m.ctx, &m.room) != nil {
		return // the session or the member has ended, which answers the request
	}
	m.uses()
	c.Call, c.member, c.request = server.NewCall(r.Method), m, r
	c.Value, c.Owner, c.Room, c.Works = c, m, &m.room, notes.Method.Works
	c.Task = c.task(notes)
	c.Done, c.Progress = c.answered, c.progress
	msg := r.Message
	params := msg.Params
	if at := notes.At(mcp.Token); !at.IsZero() {
		c.token = bytes.Clone(at.Of(params))
		edits = append(edits, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
	}
	if len(edits) > 0 {
		params = jsonrpc.Replace(params, edits...)
	}
	r.Message = nil // its bytes are not kept until the answer
	r.OnCancel(c.cancelled)
	_ = r.Forward(c.Call, &jsonrpc.Message{Params: params, Extra: msg.Extra})
}

// task returns the id of the task that the call is about.
func (c *memberCall) task(notes *mcp.Notes) string {
	if notes.Method.Owner != mcp.ByTask || c.member.s.modern != nil {
		return ""
	}
	id, _ := notes.Text(mcp.Key)
	return id
}

var errUnknownTask = errors.New("unknown task")

// checkMeta validates the _meta of a client's message. It may only name the client's own tasks: otherwise the
// server might ask the owner of the task about this call, and pass the answer to this client.
func (m *member) checkMeta(notes *mcp.Notes) error {
	task, err := relatedTask(notes)
	if err == nil && task != "" && !m.owns(task) {
		err = errUnknownTask
	}
	return err
}

// answered passes the server's answer to the client, if the client still waits.
func (c *memberCall) answered(m *jsonrpc.Message, lost *peer.Lost) {
	if lost != nil {
		return // the client's stream ends with that
	}
	s := c.member.s
	c.member.sent.Store(true)
	m = &jsonrpc.Message{Result: mcp.AnsweredAs(m.Result, c.ID, c.request.ID), Error: mcp.AnsweredAs(m.Error, c.ID, c.request.ID), Extra: m.Extra}
	switch {
	case c.creates:
		s.taskCreated(c, m)
	case c.Task != "":
		s.taskAnswered(c, m)
	case c.Method == mcp.MethodTasksList && s.modern == nil:
		m = s.ownTasks(c.member, m)
	case c.listens && m.Error == nil:
		m = listenResult(c, m)
	case s.modern != nil && becameTask(m):
		s.mu.Lock()
		s.gaveUpLocked(c.member, c) // the server still works on it
		s.keepForTaskLocked(m.Result)
		s.mu.Unlock()
	}
	if ids := elicitationsIn(m.Error); len(ids) > 0 && s.modern == nil {
		s.mu.Lock()
		s.elicitedLocked(c.member, ids...)
		s.mu.Unlock()
	}
	c.request.Respond(m)
	if c.isOwn() {
		s.ownAnswered(c)
	}
}

// becameTask reports whether a modern server continues a call as a task.
func becameTask(answer *jsonrpc.Message) bool {
	if !bytes.Contains(answer.Result, []byte(`"task"`)) { // most results lack it, and some are large
		return false
	}
	kind, _ := jsonrpc.Member(answer.Result, "resultType")
	return string(kind) == `"task"`
}

// progress passes progress to the client under the client's own token.
func (c *memberCall) progress(m *jsonrpc.Message, at jsonrpc.Span) {
	if c.token == nil || !c.Sent() || !c.request.Open() {
		return
	}
	edit, ok := jsonrpc.Edit{Span: at, With: c.token}, true
	params := m.Params
	if mcp.MayHave(params, metaKey) { // which may name the call once more
		params, ok = c.params(m, edit)
	} else {
		params = jsonrpc.Replace(params, edit)
	}
	if ok {
		c.member.put(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.request.ID})
	}
}

// cancelled handles a call that the client abandoned: m is its cancellation, or nil if the client has left. A call
// that was not sent leaves no trace. A call that may create a task, or that ends by itself, is kept: see
// maxKeptCalls.
func (c *memberCall) cancelled(m *jsonrpc.Message, at jsonrpc.Span) {
	s := c.member.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.Recall() || !c.Open():
		return
	case m == nil && c.endsLocked() > 0 && s.keepLocked(c):
		return
	case m != nil && !c.Marked() && clientLeft(m) && c.endsLocked() > 0 && s.keepLocked(c):
		s.timers.After(c.endsLocked(), func() { s.cancelLate(c) })
		return
	case c.creates && s.keepLocked(c):
		c.quiet = true
	case !c.Take(): // it is answered at this moment
		return
	}
	s.gaveUpLocked(c.member, c)
	switch {
	case m != nil:
		c.Forget()
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
		s.tell(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	case !c.creates:
		s.tell(mcp.Cancellation(c.ID, jsonrpc.CauseClientGone.String()))
	}
}

// clientLeft reports whether a session cancels a call because its client has left.
func clientLeft(m *jsonrpc.Message) bool {
	raw, _ := jsonrpc.Member(m.Params, "reason")
	reason, _ := jsonrpc.Unquote(raw)
	return reason == jsonrpc.CauseClientGone.String()
}

// endsLocked returns how long the call has to end by itself if its client has left, since an error for a question
// that it may have asked is its one stimulus.
func (c *memberCall) endsLocked() time.Duration {
	if c.Marked() {
		return peer.FadeFor
	}
	return max(refusedFor-time.Since(c.refused), 0)
}

// keepLocked keeps an abandoned call, unless there are too many.
func (s *sharedSession) keepLocked(c *memberCall) bool {
	c.kept = len(s.server.Calls(func(other *peer.Call) bool { return callOf(other).kept })) < maxKeptCalls
	return c.kept
}

// cancelLate cancels a call that has not ended by itself in time.
func (s *sharedSession) cancelLate(c *memberCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !c.Open():
		return
	case c.creates: // it is cancelled as the task that it may become
		c.quiet = true
	case c.Take():
		s.tell(mcp.Cancellation(c.ID, jsonrpc.CauseClientGone.String()))
	}
	s.gaveUpLocked(c.member, c)
}

var errLongTask = fmt.Errorf("%q %w", "taskId", mcp.ErrTooLong)

// taskCreated records the owner of the task that a call has become. The task is cancelled if its client is gone. A
// task id that is in use keeps its owner, so that a mistake of the server gives no client another's task.
func (s *sharedSession) taskCreated(c *memberCall, answer *jsonrpc.Message) {
	object, _ := jsonrpc.Member(answer.Result, "task")
	raw, id, ended := readTask(object)
	if id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := c.member
	switch {
	case s.tasks.byID[id] != nil:
		return
	case mcp.IsTooLong(raw): // to be kept
		s.log.Warn("upstream sent an overlong value", "method", c.Method, "err", errLongTask)
		*answer = *jsonrpc.Failure(jsonrpc.InvalidResponse(s.up.Name, errLongTask.Error()))
		fallthrough
	case m.gone || !c.request.Open():
		if !ended {
			s.cancelTask(raw)
		}
		return
	}
	n, _ := c.ID.Int()
	s.tasks.add(&task[*member]{by: m, id: id, raw: bytes.Clone(raw), n: n, token: c.token, ended: ended})
}

// cancelTask cancels a task without a client and ignores the answer.
func (s *sharedSession) cancelTask(raw json.RawMessage) {
	params := slices.Concat([]byte(`{"taskId":`), raw, []byte(`}`))
	s.ask(mcp.MethodTasksCancel, params, func(*jsonrpc.Message) {})
}

// taskAnswered updates a task from the answer to tasks/get, tasks/result or tasks/cancel.
func (s *sharedSession) taskAnswered(c *memberCall, answer *jsonrpc.Message) {
	_, _, ended := readTask(answer.Result)
	if answer.Error != nil || !ended && c.Method != mcp.MethodTasksResult {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks.byID[c.Task]; t != nil {
		s.tasks.end(t)
	}
}

// ownTasks returns the answer to tasks/list with the client's own tasks.
func (s *sharedSession) ownTasks(m *member, answer *jsonrpc.Message) *jsonrpc.Message {
	if answer.Error != nil {
		return answer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.gone {
		return answer // no client waits for the answer
	}
	page, err := s.tasks.page(m, answer.Result)
	if err != nil {
		return jsonrpc.Failure(jsonrpc.InvalidResponse(s.up.Name, err.Error()))
	}
	return &jsonrpc.Message{Result: page, Extra: answer.Extra}
}

// owns reports whether a task is this client's.
func (m *member) owns(id string) bool {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return m.s.tasks.owns(m, id)
}

// listenResult returns an answer with the client's own subscription id.
func listenResult(c *memberCall, m *jsonrpc.Message) *jsonrpc.Message {
	result := mcp.SetMeta(m.Result, jsonrpc.Value{Key: mcp.KeySubscription, Text: c.request.ID.Raw()})
	return &jsonrpc.Message{Result: result, Extra: m.Extra}
}

var noResult = json.RawMessage(`{}`)

// gaveUpLocked records that the server may still work on an abandoned call of m.
func (s *sharedSession) gaveUpLocked(m *member, c *memberCall) {
	s.gaveUp.add(m.holder.Who)
	if c.listens { // servers neither log nor ask because of it
		return
	}
	m.gaveUp = time.Now()
	if m.gone {
		s.leftLocked(m)
	}
}

// ask makes a call of our own. It does not wait for room.
func (s *sharedSession) ask(method string, params json.RawMessage, then func(answer *jsonrpc.Message)) {
	s.askFor(nil, nil, method, params, then)
}

// askFor is ask on behalf of a client's request; both are nil for none.
func (s *sharedSession) askFor(m *member, r *peer.Request, method string, params json.RawMessage,
	then func(answer *jsonrpc.Message),
) {
	c := &memberCall{Call: s.server.NewCall(method), member: m, request: r}
	c.Value, c.Room = c, &s.own
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			then(answer)
		}
	}
	if at := mcp.ReadParams(method, params).At(mcp.Token); !at.IsZero() { // a client's token could equal one of ours
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
	}
	_ = c.Send(&jsonrpc.Message{Params: params}) // if the session has ended, so have all waiting requests
}

// askLevel asks the server for the log level that clients want.
func (s *sharedSession) askLevel(wanted int) {
	for m := range s.members {
		if m.level != 0 {
			m.sent.Store(true)
		}
	}
	s.ask(mcp.MethodSetLevel, mcp.LevelParams(wanted), func(answer *jsonrpc.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.level.answered(wanted, answer)
	})
}

// othersGaveUpLocked reports whether another client than m has recently abandoned a call: a client of the same
// principal within the time same, others within peer.FadeFor.
func (s *sharedSession) othersGaveUpLocked(m *member, same time.Duration) bool {
	late := func(who string, at time.Time) bool {
		within := peer.FadeFor
		if who == m.holder.Who {
			within = same
		}
		return time.Since(at) < within
	}
	for who, at := range s.left {
		if late(who, at) {
			return true
		}
	}
	for other := range s.members {
		if other != m && late(other.holder.Who, other.gaveUp) {
			return true
		}
	}
	return false
}

// initialized handles the answer to initialize. If the server refuses, the session ends and counts as a failed
// start.
func (s *sharedSession) initialized(answer *jsonrpc.Message) {
	if len(answer.Result) == 0 || answer.Result[0] != '{' {
		s.stop(jsonrpc.CauseRefused)
		return
	}
	capabilities, _ := jsonrpc.Member(answer.Result, "capabilities")
	logging, _ := jsonrpc.Member(capabilities, "logging")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.welcome = answer.Result
	s.level.ready, s.level.offered = true, logging != nil
	s.server.Release(afterWelcome, jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	for m := range s.members {
		s.greetLocked(m)
	}
	s.level.bring()
	s.idleLocked()
}
