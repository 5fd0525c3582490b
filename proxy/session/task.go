package session

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// maxTasks bounds how many tasks of one client are remembered.
const maxTasks = 10000

// A task is a request that was accepted and goes on after its answer.
type task struct {
	id   string        // as the client has it
	own  string        // as upstream connection has it, if that runs it
	conn *upstreamConn // the upstream that runs it, or, for one of the client's own, that asked for it

	unfinished bool // as far as is known; only of those that began here

	// The progress token of the request stays valid until the task ends
	// (2025-11-25 basic/utilities/tasks). key is the token on the side that
	// runs the task, token the one that the other side chose; nil for none.
	key   tokenKey
	token json.RawMessage
}

// A tokenKey is a progress token that was minted here. The upstream connection is nil for those
// given to the client.
type tokenKey struct {
	conn *upstreamConn
	n    int64
}

// tasks remembers the tasks that one side runs. Guarded by session.mu.
type tasks struct {
	byID    map[string]*task
	byToken map[tokenKey]*task
	order   []string // the oldest, which is forgotten first, first
}

// addLocked remembers x, or that x belongs to another upstream now.
func (t *tasks) addLocked(x *task) {
	if t.byID == nil {
		t.byID, t.byToken = make(map[string]*task), make(map[tokenKey]*task)
	}
	known := t.byID[x.id]
	switch {
	case x.conn.closed: // its answer was on the way when it went
		return
	case known != nil && known.conn == x.conn && x.token == nil:
		return
	case known != nil:
		delete(t.byToken, known.key)
	default:
		if len(t.order) >= maxTasks {
			oldest := t.byID[t.order[0]]
			delete(t.byToken, oldest.key)
			delete(t.byID, oldest.id)
			t.order = t.order[1:]
		}
		t.order = append(t.order, x.id)
	}
	t.byID[x.id] = x
	if x.token != nil {
		t.byToken[x.key] = x
	}
}

// forgetLocked forgets the tasks of an upstream that is gone.
func (t *tasks) forgetLocked(u *upstreamConn) {
	for id, x := range t.byID {
		if x.conn == u {
			delete(t.byToken, x.key)
			delete(t.byID, id)
		}
	}
	t.order = slices.DeleteFunc(t.order, func(id string) bool { return t.byID[id] == nil })
}

// endLocked lets go of the progress token of a task that ended. The task itself
// can still be asked for.
func (t *tasks) endLocked(u *upstreamConn, id string) {
	if x := t.byID[id]; x != nil && x.conn == u {
		delete(t.byToken, x.key)
		x.token, x.unfinished = nil, false
	}
}

// hasUnfinished reports whether an upstream still works on a task.
func (s *session) hasUnfinished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.tasks.byID {
		if x.unfinished {
			return true
		}
	}
	return false
}

// taskCreated remembers who runs the task that a call has become, and returns the
// result as the client may have it.
func (s *session) taskCreated(c *call, result json.RawMessage) json.RawMessage {
	id, ended := catalog.CreatedTask(result)
	r := c.request
	if id == "" || r == nil {
		return result
	}
	s.mu.Lock()
	x := &task{id: r.conn.taskNameLocked(id), own: id, conn: r.conn, key: tokenKey{r.conn, r.n}, token: r.token, unfinished: !ended}
	if ended {
		x.token = nil
	}
	s.tasks.addLocked(x)
	s.mu.Unlock()
	return catalog.Created(result, x.id)
}

// taskStatus passes an upstream's word on one of its tasks on.
func (u *upstreamConn) taskStatus(m *jsonrpc.Message) {
	n := mcp.Read(m)
	if id, ended := catalog.NotedTask(n); ended {
		u.taskEnded(u.taskName(id))
	}
	u.pass(m, n, catalog.Renaming(n, mcp.Key, u.taskName)...)
}

func (u *upstreamConn) taskEnded(name string) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.s.tasks.endLocked(u, name)
}

// byTask forwards a request about a task to the upstream that runs it.
func (s *session) byTask(c *call) {
	if c.era == mcp.Modern {
		s.byModernTask(c)
		return
	}
	id, err := c.taskID()
	if err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	u, own := c.upstreams.runner(id)
	if u == nil {
		s.fail(c, invalidParams("unknown task"))
		return
	}
	s.whenAnswered(c, func(answer *jsonrpc.Message) {
		if answer.Error != nil {
			return
		}
		if _, ended := catalog.TaskState(answer.Result); ended || c.method == mcp.MethodTasksResult {
			u.taskEnded(id)
		}
		answer.Result = catalog.GivenBack(answer.Result, id)
	})
	s.forwardTask(c, u, own)
}

// forwardTask forwards a request about a task under the upstream's own id.
func (s *session) forwardTask(c *call, u *upstreamConn, own string) {
	s.forward(c, u, catalog.Renaming(c.notes, mcp.Key, func(string) string { return own })...)
}

// taskID returns which task a request is about.
func (c *call) taskID() (string, error) {
	id, ok := c.notes.Text(mcp.Key)
	err := c.notes.Err(mcp.Key)
	if err == nil && !ok {
		err = errMissing("taskId")
	}
	return id, err
}

// listTasks merges the tasks of all upstreams that have them, on one page.
func (s *session) listTasks(c *call) {
	if u := c.upstreams.only(); u != nil {
		s.forward(c, u)
		return
	}
	cursor, meta, err := c.readList()
	switch {
	case err != nil:
		s.fail(c, invalidParams(err.Error()))
	case cursor != nil:
		s.fail(c, invalidParams("unknown cursor"))
	case !slices.ContainsFunc(c.upstreams.conns, haveTasks):
		s.fail(c, methodNotFound(c.method))
	default:
		s.work(c, func(ctx context.Context) { s.mergeTasks(ctx, c, meta) })
	}
}

func haveTasks(u *upstreamConn) bool { return u.declares("tasks") }

// mergeTasks answers with the tasks of those upstreams that can say; if none
// can, with the first failure.
func (s *session) mergeTasks(ctx context.Context, c *call, meta json.RawMessage) {
	set := c.upstreams
	found, failed := gather(ctx, set, c.method, haveTasks, func(ctx context.Context, u *upstreamConn) (catalog.Collection, *failure) {
		return u.pages(ctx, c.method, "tasks", meta)
	})
	var merged [][]byte
	var first *failure
	answers := 0
	for i, u := range set.conns {
		switch f := failed[i]; {
		case f != nil:
			u.leftOut(c.method, f)
			first = orDefault(first, f)
		case haveTasks(u):
			answers++
		}
		for _, e := range found[i].Elements {
			s.noteTask(u, e)
			merged = append(merged, catalog.RenameTask(e, u.taskName))
		}
	}
	if first != nil && answers == 0 {
		s.settle(c, &jsonrpc.Message{ID: c.id, Error: first.wire})
		return
	}
	s.settle(c, jsonrpc.NewResult(c.id, slices.Concat([]byte(`{"tasks":[`), bytes.Join(merged, []byte{','}), []byte(`]}`))))
}

// noteTask remembers who runs a task.
func (s *session) noteTask(u *upstreamConn, listed json.RawMessage) {
	if id, _ := catalog.TaskState(listed); id != "" {
		s.rememberTask(u.taskName(id), id, u)
	}
}

// clientTaskStatus routes the client's word on a task of its own: one that it
// made of an upstream's server request.
func (s *session) clientTaskStatus(m *jsonrpc.Message, n *mcp.Notes) {
	id, ended := catalog.NotedTask(n)
	s.mu.Lock()
	x := s.clientTasks.byID[id]
	if x != nil && ended {
		s.clientTasks.endLocked(x.conn, id)
	}
	s.mu.Unlock()
	if x == nil {
		s.drop("status of no task", m)
		return
	}
	x.conn.tell(m)
}

// taskNameLocked returns what the client calls a task of the upstream.
func (u *upstreamConn) taskNameLocked(id string) string {
	name := catalog.TaskName(u.up.Name, id)
	for _, given := range []string{id, name} {
		if x := u.s.tasks.byID[given]; x != nil && x.conn == u && x.own == id {
			return given
		}
	}
	if u.s.upstreamsLocked(u.era).only() != nil {
		return id
	}
	return name
}

func (u *upstreamConn) taskName(id string) string {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.taskNameLocked(id)
}

// runner returns the upstream that runs a task which the client calls so, and what
// it calls it itself; nil if that is not known. The longest name of an upstream counts,
// unless the task is remembered.
func (set *upstreamSet) runner(name string) (found *upstreamConn, own string) {
	set.s.mu.Lock()
	defer set.s.mu.Unlock()
	return set.runnerLocked(name)
}

func (set *upstreamSet) runnerLocked(name string) (found *upstreamConn, own string) {
	if x := set.s.tasks.byID[name]; x != nil && x.conn.era == set.era {
		return x.conn, x.own
	}
	if u := set.only(); u != nil {
		return u, name
	}
	for _, u := range set.conns {
		id, ok := catalog.OwnTask(u.up.Name, name)
		if ok && (found == nil || len(u.up.Name) > len(found.up.Name)) {
			found, own = u, id
		}
	}
	return found, own
}

// ownTaskLocked returns what the upstream itself calls a task of its own.
func (u *upstreamConn) ownTaskLocked(name string) string {
	if runner, own := u.s.upstreamsLocked(u.era).runnerLocked(name); runner == u {
		return own
	}
	return name
}

func (u *upstreamConn) ownTask(name string) string {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.ownTaskLocked(name)
}

// exposed returns a copy of a message of the upstream with edits to its params made, and
// with the client's name of the task that it is tied to. A task that the client runs has
// the client's own name.
func (u *upstreamConn) exposed(m *jsonrpc.Message, n *mcp.Notes, edits ...jsonrpc.Edit) *jsonrpc.Message {
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, func(id string) string {
		u.s.mu.Lock()
		defer u.s.mu.Unlock()
		if x := u.s.clientTasks.byID[id]; x != nil && x.conn == u {
			return id
		}
		return u.taskNameLocked(id)
	})...)
	out := *m
	out.Params = jsonrpc.Replace(m.Params, edits...)
	return &out
}
