package shared

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// maxMemberTasks bounds the tasks of one client, and likewise what else is
	// remembered for it. The oldest is forgotten: it then is unknown to all.
	maxMemberTasks   = 1024
	maxMemberSubs    = 1024 // those beyond are refused
	maxMemberCursors = 1024
)

// A task is a task at the server. It is its creator's alone.
type task struct {
	by    *member
	id    string
	raw   json.RawMessage // the JSON text of id
	n     int64           // of the call that created it, and its progress token
	token json.RawMessage // the client's; nil for none
	ended bool
}

// Tasks are the tasks of all clients. Guarded by session.mu.
type tasks struct {
	byID    map[string]*task
	byToken map[int64]*task // until they end (2025-11-25 basic/utilities/tasks)
}

// MemberTasks are what one client has of tasks. Guarded by session.mu.
type memberTasks struct {
	all     []*task // the oldest, which is forgotten first, first
	running int     // of them, not ended
	cursors cursors
}

func (ts *tasks) add(t *task) {
	if ts.byID == nil {
		ts.byID, ts.byToken = make(map[string]*task), make(map[int64]*task)
	}
	ts.byID[t.id] = t
	if t.ended {
		return
	}
	t.by.tasks.running++
	if t.token != nil {
		ts.byToken[t.n] = t
	}
}

// remove forgets t.
func (ts *tasks) remove(t *task) {
	delete(ts.byID, t.id)
	ts.end(t)
}

// end notes that t is finished. It can still be asked for.
func (ts *tasks) end(t *task) {
	delete(ts.byToken, t.n)
	if !t.ended {
		t.ended = true
		t.by.tasks.running--
	}
}

var errLongTask = fmt.Errorf("%q %w", "taskId", mcp.ErrTooLong)

// taskCreated remembers whose the task is that a call has become. Without a
// client it is cancelled. An id that is taken stays whose it is: nobody gets
// another's task because the server is mistaken.
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
	if len(m.tasks.all) >= maxMemberTasks {
		s.tasks.remove(m.tasks.all[0])
		m.tasks.all = slices.Delete(m.tasks.all, 0, 1)
	}
	n, _ := c.ID.Int()
	t := &task{by: m, id: id, raw: bytes.Clone(raw), n: n, token: c.token, ended: ended}
	m.tasks.all = append(m.tasks.all, t)
	s.tasks.add(t)
}

// cancelTask ends a task without a client. The answer is of no interest.
func (s *sharedSession) cancelTask(raw json.RawMessage) {
	params := slices.Concat([]byte(`{"taskId":`), raw, []byte(`}`))
	s.ask(mcp.MethodTasksCancel, params, queuedRequest{}, func(*jsonrpc.Message) {})
}

// taskProgress passes progress on a task on, under the client's own token, until it has
// ended.
func (s *sharedSession) taskProgress(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	id, _ := notes.ID(mcp.Key)
	n, ok := id.Answered()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks.byToken[n]; ok && t != nil {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: notes.At(mcp.Key), With: t.token})
		t.by.put(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	}
}

// taskStatus passes a word on a task on to its owner.
func (s *sharedSession) taskStatus(m *jsonrpc.Message, of *peer.Call) {
	_, id, ended := readTask(m.Params)
	if id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	owner, call, _ := s.ownerLocked(m.Related, of, id)
	if owner == nil {
		return
	}
	if ended {
		s.tasks.end(s.tasks.byID[id])
	}
	owner.hearLocked(m, call)
}

// readTask reads the id, raw and decoded, and the status of a Task object.
func readTask(task json.RawMessage) (raw json.RawMessage, id string, ended bool) {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(task, jsonrpc.Span{}, at[:], "taskId", "status") != nil {
		return nil, "", false
	}
	raw = at[0].Of(task)
	id, _ = jsonrpc.Unquote(raw)
	status, _ := jsonrpc.Unquote(at[1].Of(task))
	return raw, id, status == "completed" || status == "failed" || status == "cancelled"
}

// owns reports whether a task is this client's.
func (m *member) owns(id string) bool {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	t := m.s.tasks.byID[id]
	return t != nil && t.by == m
}

// taskAnswered notes what the answer to tasks/get, tasks/result or tasks/cancel
// says about the task.
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

// cursors are those of tasks/list that one client was given. The server's own may
// be the id of another client's task.
type cursors struct {
	last   int
	theirs map[string]json.RawMessage // the server's, by ours
	order  []string                   // the oldest, which is forgotten first, first
}

func (cs *cursors) add(theirs json.RawMessage) string {
	if cs.theirs == nil {
		cs.theirs = make(map[string]json.RawMessage)
	}
	if len(cs.order) >= maxMemberCursors {
		delete(cs.theirs, cs.order[0])
		cs.order = cs.order[1:]
	}
	cs.last++
	ours := strconv.Itoa(cs.last)
	cs.theirs[ours] = bytes.Clone(theirs)
	cs.order = append(cs.order, ours)
	return ours
}

// ownTasks returns the answer to tasks/list with what is the client's own. A page
// may come to be empty and yet have a next one.
func (s *sharedSession) ownTasks(c *memberCall, answer *jsonrpc.Message) *jsonrpc.Message {
	if answer.Error != nil {
		return answer
	}
	var at [2]jsonrpc.Span
	err := jsonrpc.Find(answer.Result, jsonrpc.Span{}, at[:], "tasks", "nextCursor")
	listed, bad := jsonrpc.Elements(at[0].Of(answer.Result))
	if err != nil || bad != nil {
		return jsonrpc.Failure(jsonrpc.InvalidResponse(s.up.Name, "unusable list"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := [][]byte{}
	for _, object := range listed {
		_, id, _ := readTask(object)
		if t := s.tasks.byID[id]; t != nil && t.by == c.member {
			own = append(own, object)
		}
	}
	edits := []jsonrpc.Edit{{Span: at[0], With: slices.Concat([]byte{'['}, bytes.Join(own, []byte{','}), []byte{']'})}}
	switch next := at[1].Of(answer.Result); {
	case len(next) == 0 || next[0] != '"':
	case mcp.IsTooLong(next): // the list ends here
		return &jsonrpc.Message{Result: jsonrpc.Set(jsonrpc.Replace(answer.Result, edits...), jsonrpc.Value{Key: "nextCursor"}), Extra: answer.Extra}
	default:
		edits = append(edits, jsonrpc.Edit{Span: at[1], With: jsonrpc.Quote(c.member.tasks.cursors.add(next))})
	}
	return &jsonrpc.Message{Result: jsonrpc.Replace(answer.Result, edits...), Extra: answer.Extra}
}
