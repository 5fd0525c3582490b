package session

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"

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

// tasks remembers the tasks that go on for one client.
type tasks struct {
	mu     sync.Mutex // guards both, and the tasks in them; nothing else is locked under it
	server taskTable  // those that upstreams run
	client taskTable  // those that the client runs, for upstreams
}

// A taskTable is the tasks that one side runs.
type taskTable struct {
	byID    map[string]*task
	byToken map[tokenKey]*task
	order   []string // the oldest, which is forgotten first, first
}

// add remembers a task that an upstream runs, or that it belongs to another one now.
func (ts *tasks) add(x *task) { ts.addTo(&ts.server, x) }

// addClient remembers a task that the client runs.
func (ts *tasks) addClient(x *task) { ts.addTo(&ts.client, x) }

func (ts *tasks) addTo(t *taskTable, x *task) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if x.conn.isHungUp() { // its answer was on the way when it went
		return
	}
	t.add(x)
}

// forget forgets the tasks of an upstream that was hung up.
func (ts *tasks) forget(u *upstreamConn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.server.forget(u)
	ts.client.forget(u)
}

// runner returns who runs a task that the client calls so, and what it calls it itself.
// It is nil if that is not remembered.
func (ts *tasks) runner(era mcp.Era, name string) (u *upstreamConn, own string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if x := ts.server.byID[name]; x != nil && x.conn.era == era {
		return x.conn, x.own
	}
	return nil, ""
}

// isNamed reports whether the client was given a name for a task of an upstream.
func (ts *tasks) isNamed(u *upstreamConn, own, name string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	x := ts.server.byID[name]
	return x != nil && x.conn == u && x.own == own
}

// isClients reports whether the client runs a task for an upstream.
func (ts *tasks) isClients(u *upstreamConn, id string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	x := ts.client.byID[id]
	return x != nil && x.conn == u
}

// token returns the client's progress token of the task that has become of the request n
// to an upstream; nil for none.
func (ts *tasks) token(u *upstreamConn, n int64) json.RawMessage {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if x := ts.server.byToken[tokenKey{u, n}]; x != nil {
		return x.token
	}
	return nil
}

// clientToken returns who asked the client for the task that has become of the request n
// to it, and its progress token.
func (ts *tasks) clientToken(n int64) (*upstreamConn, json.RawMessage) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if x := ts.client.byToken[tokenKey{nil, n}]; x != nil {
		return x.conn, x.token
	}
	return nil, nil
}

// ended notes that a task of an upstream has ended.
func (ts *tasks) ended(u *upstreamConn, name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.server.end(u, name)
}

// heard notes what the client says of a task of its own, and returns who asked for it;
// nil if nobody did.
func (ts *tasks) heard(id string, ended bool) *upstreamConn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	x := ts.client.byID[id]
	if x == nil {
		return nil
	}
	if ended {
		ts.client.end(x.conn, id)
	}
	return x.conn
}

// unfinished reports whether an upstream still works on a task.
func (ts *tasks) unfinished() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, x := range ts.server.byID {
		if x.unfinished {
			return true
		}
	}
	return false
}

// add remembers x, or that x belongs to another upstream now.
func (t *taskTable) add(x *task) {
	if t.byID == nil {
		t.byID, t.byToken = make(map[string]*task), make(map[tokenKey]*task)
	}
	known := t.byID[x.id]
	switch {
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

func (t *taskTable) forget(u *upstreamConn) {
	for id, x := range t.byID {
		if x.conn == u {
			delete(t.byToken, x.key)
			delete(t.byID, id)
		}
	}
	t.order = slices.DeleteFunc(t.order, func(id string) bool { return t.byID[id] == nil })
}

// end lets go of the progress token of a task that ended. The task itself can still be
// asked for.
func (t *taskTable) end(u *upstreamConn, id string) {
	if x := t.byID[id]; x != nil && x.conn == u {
		delete(t.byToken, x.key)
		x.token, x.unfinished = nil, false
	}
}

// taskCreated remembers who runs the task that a call has become, and returns the
// result as the client may have it.
func (s *session) taskCreated(c *call, result json.RawMessage) json.RawMessage {
	id, ended := catalog.CreatedTask(result)
	r := c.request
	if id == "" || r == nil {
		return result
	}
	name := r.conn.taskName(id)
	x := &task{id: name, own: id, conn: r.conn, key: tokenKey{r.conn, r.n}, token: r.token, unfinished: !ended}
	if ended {
		x.token = nil
	}
	s.tasks.add(x)
	return catalog.Created(result, name)
}

// taskStatus passes an upstream's word on one of its tasks on.
func (u *upstreamConn) taskStatus(m *jsonrpc.Message) {
	n := mcp.Read(m)
	if id, ended := catalog.NotedTask(n); ended {
		u.s.tasks.ended(u, u.taskName(id))
	}
	u.pass(m, n, catalog.Renaming(n, mcp.Key, u.taskName)...)
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
			s.tasks.ended(u, id)
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
	u := s.tasks.heard(id, ended)
	if u == nil {
		s.drop("status of no task", m)
		return
	}
	u.tell(m)
}

// taskName returns what the client calls a task of the upstream.
func (u *upstreamConn) taskName(id string) string {
	name := catalog.TaskName(u.up.Name, id)
	switch {
	case u.s.tasks.isNamed(u, id, id):
		return id
	case u.s.tasks.isNamed(u, id, name):
		return name
	case u.s.upstreams.of(u.era).only() != nil:
		return id
	}
	return name
}

// runner returns the upstream that runs a task which the client calls so, and what
// it calls it itself; nil if that is not known. The longest name of an upstream counts,
// unless the task is remembered.
func (set *upstreamSet) runner(name string) (found *upstreamConn, own string) {
	if u, own := set.s.tasks.runner(set.era, name); u != nil {
		return u, own
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

// ownTask returns what the upstream itself calls a task of its own.
func (u *upstreamConn) ownTask(name string) string {
	if runner, own := u.s.upstreams.of(u.era).runner(name); runner == u {
		return own
	}
	return name
}

// exposed returns a copy of a message of the upstream with edits to its params made, and
// with the client's name of the task that it is tied to. A task that the client runs has
// the client's own name.
func (u *upstreamConn) exposed(m *jsonrpc.Message, n *mcp.Notes, edits ...jsonrpc.Edit) *jsonrpc.Message {
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, func(id string) string {
		if u.s.tasks.isClients(u, id) {
			return id
		}
		return u.taskName(id)
	})...)
	out := *m
	out.Params = jsonrpc.Replace(m.Params, edits...)
	return &out
}
