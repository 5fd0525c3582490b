package pool

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// maxSharerTasks bounds the tasks of one client, and likewise what else is
	// remembered for it. The oldest is forgotten: it then is unknown to all.
	maxSharerTasks   = 1024
	maxSharerSubs    = 1024 // those beyond are refused
	maxSharerURLs    = 1024
	maxSharerCursors = 1024
)

// A sharedTask is a task at the server. It is its creator's alone.
type sharedTask struct {
	by    *sharer
	id    string
	raw   json.RawMessage // the JSON text of id
	n     int64           // of the call that created it, and its progress token
	token json.RawMessage // the client's; nil for none
	ended bool
}

// sharedTasks are the tasks of all clients. Guarded by shared.mu.
type sharedTasks struct {
	byID    map[string]*sharedTask
	byToken map[int64]*sharedTask // until they end (2025-11-25 basic/utilities/tasks)
	orphans int                   // calls without a client that may create one
}

func (t *sharedTasks) addLocked(x *sharedTask) {
	if t.byID == nil {
		t.byID, t.byToken = make(map[string]*sharedTask), make(map[int64]*sharedTask)
	}
	t.byID[x.id] = x
	if x.ended {
		return
	}
	x.by.running++
	if x.token != nil {
		t.byToken[x.n] = x
	}
}

// removeLocked forgets x.
func (t *sharedTasks) removeLocked(x *sharedTask) {
	delete(t.byID, x.id)
	t.endLocked(x)
}

// endLocked notes that x is finished. It can still be asked for.
func (t *sharedTasks) endLocked(x *sharedTask) {
	delete(t.byToken, x.n)
	if !x.ended {
		x.ended = true
		x.by.running--
	}
}

// taskCreated remembers whose the task is that a call has become. Without a
// client it is cancelled. An id that is taken stays whose it is: nobody gets
// another's task because the server is mistaken.
func (sh *shared) taskCreated(c *sharedCall, answer *jsonrpc.Message) {
	task, _ := jsonrpc.Member(answer.Result, "task")
	raw, id, ended := readTask(task)
	if id == "" {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := c.by
	switch {
	case sh.tasks.byID[id] != nil:
		return
	case s.calls[c.id] != c:
		if !ended {
			sh.cancelTaskLocked(raw)
		}
		return
	}
	if len(s.tasks) >= maxSharerTasks {
		sh.tasks.removeLocked(s.tasks[0])
		s.tasks = slices.Delete(s.tasks, 0, 1)
	}
	x := &sharedTask{by: s, id: id, raw: bytes.Clone(raw), n: c.n, token: c.token, ended: ended}
	s.tasks = append(s.tasks, x)
	sh.tasks.addLocked(x)
}

// cancelTaskLocked ends a task without a client. The answer is of no interest.
func (sh *shared) cancelTaskLocked(raw json.RawMessage) {
	sh.minted++
	params := slices.Concat([]byte(`{"taskId":`), raw, []byte(`}`))
	sh.tellLocked(jsonrpc.NewRequest(jsonrpc.IntID(sh.minted), mcp.MethodTasksCancel, params))
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

// aboutTask handles tasks/get, tasks/result and tasks/cancel. The server is not
// asked about a task of another client, and the answer is that for a task which
// does not exist.
func (s *sharer) aboutTask(c *sharedCall, m *jsonrpc.Message) {
	raw, err := jsonrpc.Member(m.Params, "taskId")
	id, ok := jsonrpc.Unquote(raw)
	if err == nil && !ok {
		err = errMissing("taskId")
	}
	switch {
	case err != nil:
		s.fail(c, jsonrpc.InvalidParams(err.Error()))
	case !s.owns(id):
		s.fail(c, jsonrpc.InvalidParams(errUnknownTask.Error()))
	default:
		c.task = id
		s.forward(c, m)
	}
}

var errUnknownTask = errors.New("unknown task")

// owns reports whether a task is this client's.
func (s *sharer) owns(task string) bool {
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	x := s.sh.tasks.byID[task]
	return x != nil && x.by == s
}

// taskAnswered notes what the answer to tasks/get, tasks/result or tasks/cancel
// says about the task.
func (sh *shared) taskAnswered(c *sharedCall, answer *jsonrpc.Message) {
	_, _, ended := readTask(answer.Result)
	if answer.Error != nil || !ended && c.method != mcp.MethodTasksResult {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if x := sh.tasks.byID[c.task]; x != nil {
		sh.tasks.endLocked(x)
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
	if len(cs.order) >= maxSharerCursors {
		delete(cs.theirs, cs.order[0])
		cs.order = cs.order[1:]
	}
	cs.last++
	ours := strconv.Itoa(cs.last)
	cs.theirs[ours] = bytes.Clone(theirs)
	cs.order = append(cs.order, ours)
	return ours
}

// listTasks asks the server for a page of its tasks, of which ownTasks leaves the
// client's own.
func (s *sharer) listTasks(c *sharedCall, m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "cursor"); err != nil {
		s.fail(c, jsonrpc.InvalidParams(err.Error()))
		return
	}
	if at[0].IsZero() {
		s.forward(c, m)
		return
	}
	ours, _ := jsonrpc.Unquote(at[0].Of(m.Params))
	s.sh.mu.Lock()
	theirs := s.cursors.theirs[ours]
	s.sh.mu.Unlock()
	if theirs == nil {
		s.fail(c, jsonrpc.InvalidParams("unknown cursor"))
		return
	}
	s.forward(c, m, jsonrpc.Edit{Span: at[0], With: theirs})
}

// ownTasks returns the answer to tasks/list with what is the client's own. A page
// may come to be empty and yet have a next one.
func (sh *shared) ownTasks(c *sharedCall, answer *jsonrpc.Message) *jsonrpc.Message {
	if answer.Error != nil {
		return answer
	}
	var at [2]jsonrpc.Span
	err := jsonrpc.Find(answer.Result, jsonrpc.Span{}, at[:], "tasks", "nextCursor")
	listed, bad := jsonrpc.Elements(at[0].Of(answer.Result))
	if err != nil || bad != nil {
		return jsonrpc.NewError(answer.ID, jsonrpc.InvalidResponse(sh.name, "unusable list"))
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	own := [][]byte{}
	for _, task := range listed {
		_, id, _ := readTask(task)
		if x := sh.tasks.byID[id]; x != nil && x.by == c.by {
			own = append(own, task)
		}
	}
	edits := []jsonrpc.Edit{{Span: at[0], With: slices.Concat([]byte{'['}, bytes.Join(own, []byte{','}), []byte{']'})}}
	if next := at[1].Of(answer.Result); len(next) > 0 && next[0] == '"' {
		edits = append(edits, jsonrpc.Edit{Span: at[1], With: jsonrpc.Quote(c.by.cursors.add(next))})
	}
	return &jsonrpc.Message{ID: answer.ID, Result: jsonrpc.Replace(answer.Result, edits...), Extra: answer.Extra}
}
