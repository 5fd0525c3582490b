package session

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// maxTasks bounds the remembered tasks of one client, and maxKept their bytes.
const maxTasks = 10000

// A task is a request that continues after its answer.
type task struct {
	id   string        // the client's
	own  string        // the upstream's, if that runs it
	tool string        // the tool that it calls, by the upstream's name; "" if unknown
	conn *upstreamConn // that runs it, or that asked the client for it

	unfinished bool // as far as is known, and only if it began in this session

	// The progress token of the request stays valid until the task ends (2025-11-25
	// basic/utilities/tasks). key is the token on the side that runs the task, token the one that
	// the other side chose; nil for none.
	key   tokenKey
	token json.RawMessage
}

// A tokenKey is a progress token of the session, for an upstream or, if that is nil, for the
// client.
type tokenKey struct {
	conn *upstreamConn
	n    int64
}

// tasks are the remembered tasks of one side.
type tasks struct {
	mu      sync.Mutex // guards the fields below, and the tasks; nothing else is locked under it
	byID    map[string]*task
	byToken map[tokenKey]*task
	order   []string // oldest first, which is forgotten first
	bytes   int
}

// size returns the bytes that count in tasks.bytes.
func (x *task) size() int { return len(x.id) + len(x.own) + len(x.tool) + len(x.token) }

// isTooLong reports whether the name of a task is too long to be used in a request.
func isTooLong(name string) bool { return mcp.IsTooLong(jsonrpc.Quote(name)) }

// add remembers x, or a new upstream of x.
func (t *tasks) add(x task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.byID[x.id]
	switch {
	case x.conn.isHungUp(), isTooLong(x.id): // the answer was on the way; or the client chose the name
		return
	case known != nil && known.conn == x.conn && x.token == nil:
		return
	case known != nil:
		t.removeLocked(known)
	default:
		t.order = append(t.order, x.id)
	}
	put(&t.byID, x.id, &x)
	t.bytes += x.size()
	if x.token != nil {
		put(&t.byToken, x.key, &x)
	}
	for len(t.order) > maxTasks || t.bytes > maxKept {
		t.removeLocked(t.byID[t.order[0]])
		t.order = t.order[1:]
	}
}

func (t *tasks) removeLocked(x *task) {
	delete(t.byID, x.id)
	delete(t.byToken, x.key)
	t.bytes -= x.size()
}

// get returns the task with an id, the zero task if there is none.
func (t *tasks) get(id string) task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *cmp.Or(t.byID[id], &task{})
}

// getByToken returns the task with a progress token, the zero task if there is none.
func (t *tasks) getByToken(key tokenKey) task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *cmp.Or(t.byToken[key], &task{})
}

// end forgets the progress token of a task that ended, but not the task.
func (t *tasks) end(u *upstreamConn, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.byID[id]; x != nil && x.conn == u {
		delete(t.byToken, x.key)
		t.bytes -= len(x.token)
		x.token, x.unfinished = nil, false
	}
}

// forget forgets the tasks of an upstream that was hung up.
func (t *tasks) forget(u *upstreamConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byID {
		if x.conn == u {
			t.removeLocked(x)
		}
	}
	t.order = slices.DeleteFunc(t.order, func(id string) bool { return t.byID[id] == nil })
}

// haveUnfinished reports whether an upstream may still work on a task.
func (t *tasks) haveUnfinished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byID {
		if x.unfinished {
			return true
		}
	}
	return false
}

// taskName returns the client's name of a task of the upstream.
func (u *upstreamConn) taskName(id string) string {
	name := catalog.TaskName(u.up.Name, id)
	for _, given := range []string{id, name} {
		if x := u.s.tasks.get(given); x.conn == u && x.own == id {
			return given
		}
	}
	if u.s.upstreams.of(u.era).only() != nil {
		return id
	}
	return name
}

// runner returns the upstream that runs a task, given the client's name, and the upstream's own id;
// nil if unknown. If the task is not remembered, it is the upstream with the longest name that
// begins the task's name.
func (set *upstreamSet) runner(name string) (found *upstreamConn, own string) {
	if x := set.s.tasks.get(name); x.conn != nil && x.conn.era == set.era {
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

// ownTask returns the upstream's own id of one of its tasks.
func (u *upstreamConn) ownTask(name string) string {
	if runner, own := u.s.upstreams.of(u.era).runner(name); runner == u {
		return own
	}
	return name
}

// taskCreated remembers the task that a call has become, and puts the client's name for it into the
// answer.
func (s *session) taskCreated(r *request, answer *jsonrpc.Message) {
	id, ended := catalog.CreatedTask(answer.Result)
	c := r.sent
	if id == "" || c == nil {
		return
	}
	name := c.conn.taskName(id)
	if isTooLong(name) {
		c.conn.refuseTask(r.Method, answer)
		return
	}
	c.conn.noteOwner(ownedTask, id)
	n, _ := c.ID.Int()
	x := task{id: name, own: id, tool: r.tool, conn: c.conn, key: tokenKey{c.conn, n}, token: c.token, unfinished: !ended}
	if ended {
		x.token = nil
	}
	s.tasks.add(x)
	answer.Result = catalog.Created(answer.Result, name)
}

// refuseTask replaces an answer by an error, because no client could use the name of its task.
func (u *upstreamConn) refuseTask(method string, answer *jsonrpc.Message) {
	u.lists.WarnTooLong(method, "taskId")
	answer.Result, answer.Error = nil, jsonrpc.InvalidResponse(u.up.Name, `"taskId" `+mcp.ErrTooLong.Error()).Raw()
}

// taskStatus forwards an upstream's status of one of its tasks.
func (u *upstreamConn) taskStatus(in incoming) {
	n := mcp.Read(in.m)
	id, ended := catalog.NotedTask(n)
	if !u.mayUse(ownedTask, id) || !u.mayTask(u.s.grant(), id) {
		u.s.drop("status of an unknown task", in.m)
		return
	}
	if ended {
		u.s.tasks.end(u, u.taskName(id))
	}
	u.pass(in, n, catalog.Renaming(n, mcp.Key, u.taskName)...)
}

// byTask forwards a request about a task to the upstream that runs it.
func (s *session) byTask(r *request) *jsonrpc.Error {
	if r.era == mcp.Modern {
		return s.byModernTask(r)
	}
	id, err := r.taskID()
	if err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	u, own := r.upstreams.runner(id)
	if u == nil {
		return unknownTask
	}
	return s.toRunner(r, u, own, func(answer *jsonrpc.Message) {
		if answer.Error != nil {
			return
		}
		if _, ended := catalog.TaskState(answer.Result); ended || r.Method == mcp.MethodTasksResult {
			s.tasks.end(u, id)
		}
		answer.Result = catalog.GivenBack(answer.Result, id)
	})
}

// toRunner forwards a request about a task to the upstream that runs it, with that upstream's own
// id, if the client may use it. after is called with the answer.
func (s *session) toRunner(r *request, u *upstreamConn, own string, after func(answer *jsonrpc.Message)) *jsonrpc.Error {
	if !u.mayUse(ownedTask, own) {
		return unknownTask
	}
	switch denied, answered := s.deniedTask(r, u, own); {
	case answered:
		return nil
	case denied:
		s.noteDenial(r, "")
		return unknownTask
	}
	s.whenAnswered(r, after)
	s.forward(r, u, catalog.Renaming(r.notes, mcp.Key, func(string) string { return own })...)
	return nil
}

// taskID returns the id of the task that a request is about.
func (r *request) taskID() (string, error) {
	id, ok := r.notes.Text(mcp.Key)
	err := r.notes.Err(mcp.Key)
	if err == nil && !ok {
		err = mcp.Missing("taskId")
	}
	return id, err
}

// listTasks merges the tasks of all upstreams that have any, on one page.
func (s *session) listTasks(r *request) *jsonrpc.Error {
	if u := r.upstreams.only(); u != nil && !s.router.Several.Load() && r.grant == nil {
		s.forward(r, u)
		return nil
	}
	cursor, meta, err := r.readList()
	switch {
	case err != nil:
		return jsonrpc.InvalidParams(err.Error())
	case cursor != nil:
		return unknownCursor
	case !slices.ContainsFunc(r.upstreams.conns, haveTasks):
		return jsonrpc.MethodNotFound(r.Method)
	}
	s.work(r, func(ctx context.Context) { s.mergeTasks(ctx, r, meta) })
	return nil
}

func haveTasks(u *upstreamConn) bool { return u.lists.Says().Declares("tasks") }

// mergeTasks answers with the tasks of the upstreams that could list them, or, if none could, with
// the first failure.
func (s *session) mergeTasks(ctx context.Context, r *request, meta json.RawMessage) {
	set := r.upstreams
	want := func(i int) bool { return haveTasks(set.conns[i]) }
	found, failed := lists.Gather(ctx, listsOf(set.conns), r.Method, want, func(ctx context.Context, i int) (catalog.Collection, *lists.Failure) {
		return set.conns[i].lists.Pages(ctx, r.Method, "tasks", meta)
	})
	var merged []json.RawMessage
	var first *lists.Failure
	answers := 0
	for i, u := range set.conns {
		switch f := failed[i]; {
		case f != nil:
			u.lists.LeftOut(r.Method, f)
			first = cmp.Or(first, f)
		case haveTasks(u):
			answers++
		}
		for _, e := range u.ownTasks(found[i].Elements) {
			id, _ := catalog.TaskState(e)
			if !u.mayTask(r.grant, id) {
				continue
			}
			if isTooLong(u.taskName(id)) {
				u.lists.WarnTooLong(r.Method, "taskId")
				continue
			}
			if id != "" {
				s.tasks.add(task{id: u.taskName(id), own: id, conn: u})
			}
			merged = append(merged, catalog.RenameTask(e, u.taskName))
		}
	}
	if first != nil && answers == 0 {
		s.settle(r, &jsonrpc.Message{ID: r.ID, Error: first.Wire})
		return
	}
	s.settle(r, jsonrpc.NewResult(r.ID, slices.Concat([]byte(`{"tasks":`), jsonrpc.Array(merged), []byte{'}'})))
}

// clientTaskStatus forwards the client's status of one of its tasks to the upstream that asked for
// it.
func (s *session) clientTaskStatus(m *jsonrpc.Message, n *mcp.Notes) {
	id, ended := catalog.NotedTask(n)
	u := s.clientTasks.get(id).conn
	if u == nil {
		s.drop("task status without a task", m)
		return
	}
	if ended {
		s.clientTasks.end(u, id)
	}
	u.tell(m)
}

// errNoTasks answers a client that does not declare the tasks extension.
var errNoTasks = mcp.MissingCapability(json.RawMessage(`{"extensions":{"` + mcp.ExtensionTasks + `":{}}}`))

// byModernTask forwards a request about a task to the upstream that runs it. If the task is
// unknown, because the session is new, it is found by asking.
func (s *session) byModernTask(r *request) *jsonrpc.Error {
	id, err := r.taskID()
	switch {
	case !r.tasks:
		return errNoTasks
	case err != nil:
		return jsonrpc.InvalidParams(err.Error())
	}
	if u, own := r.upstreams.runner(id); u != nil {
		return s.toRunner(r, u, own, func(answer *jsonrpc.Message) {
			if _, ended := catalog.TaskState(answer.Result); ended {
				s.tasks.end(u, id)
			}
			answer.Result = catalog.GivenBack(answer.Result, id)
		})
	}
	s.work(r, func(ctx context.Context) { s.findTask(ctx, r, id) })
	return nil
}

// findTask asks the upstreams that may run the task in turn, and forwards the request to the one
// that does.
func (s *session) findTask(ctx context.Context, r *request, id string) {
	candidates := r.upstreams.withTasks(ctx, r.identity())
	candidates = slices.DeleteFunc(candidates, func(u *upstreamConn) bool { return !u.mayUse(ownedTask, id) })
	if len(candidates) == 0 {
		s.fail(r, cmp.Or(r.upstreams.unreached(r.grant), unknownTask))
		return
	}
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "taskId", Text: jsonrpc.Quote(id)}, jsonrpc.Value{Key: "_meta", Text: r.identity()})
	if u := s.whoAnswers(ctx, r, candidates, mcp.MethodTasksGet, params); u != nil {
		s.tasks.add(task{id: id, own: id, conn: u}) // an id from when there was only one upstream
		s.forward(r, u)
	}
}

// withTasks returns the upstreams that declare the tasks extension. It first asks those whose
// description is unknown. Those that cannot answer now come last: if none of the others knows the
// task, the client should get their error.
func (set *upstreamSet) withTasks(ctx context.Context, meta json.RawMessage) []*upstreamConn {
	silent := func(u *upstreamConn) bool { return u.lists.Says().Result == nil && !u.lists.IsLate(mcp.MethodDiscover) }
	asked := set.filter(silent)
	lists.ForEach(ctx, listsOf(asked), func(ctx context.Context, i int) { _, _ = asked[i].discover(ctx, meta) })
	others := set.filter(silent)
	known := set.filter(func(u *upstreamConn) bool { return u.lists.Says().DeclaresTasks() && !slices.Contains(others, u) })
	slices.SortStableFunc(known, func(a, b *upstreamConn) int { return aliveFirst(a) - aliveFirst(b) })
	return append(known, others...)
}

func aliveFirst(u *upstreamConn) int {
	if u.alive() {
		return 0
	}
	return 1
}

// modernTaskCreated is taskCreated for the extension of the modern era, in which tasks have no
// progress.
func (s *session) modernTaskCreated(r *request, answer *jsonrpc.Message) {
	if r.sent == nil || r.kind != catalog.ResultTask {
		return
	}
	id, err := catalog.TaskID(answer.Result)
	if err != nil {
		return
	}
	u := r.sent.conn
	name := u.taskName(id)
	if isTooLong(name) {
		u.refuseTask(r.Method, answer)
		return
	}
	u.noteOwner(ownedTask, id)
	_, ended := catalog.TaskState(answer.Result)
	s.tasks.add(task{id: name, own: id, tool: r.tool, conn: u, unfinished: !ended})
	answer.Result = catalog.GivenBack(answer.Result, name)
}
