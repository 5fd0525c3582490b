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

// taskCreated remembers who runs the task that a call has become, and returns the
// result as the client may have it.
func (s *session) taskCreated(c *call, result json.RawMessage) json.RawMessage {
	id, ended := catalog.CreatedTask(result)
	r := c.sent
	if id == "" || r == nil {
		return result
	}
	r.conn.gave(taskThing, id)
	name := r.conn.taskName(id)
	n, _ := r.ID.Int()
	x := task{id: name, own: id, tool: c.tool, conn: r.conn, key: tokenKey{r.conn, n}, token: r.token, unfinished: !ended}
	if ended {
		x.token = nil
	}
	s.tasks.add(x)
	return catalog.Created(result, name)
}

// taskStatus passes on what an upstream says of one of its tasks.
func (u *upstreamConn) taskStatus(in incoming) {
	n := mcp.Read(in.m)
	id, ended := catalog.NotedTask(n)
	if !u.mayUse(taskThing, id) || !u.mayTask(u.s.grant.Load(), id) {
		u.s.drop("status of a task of nobody here", in.m)
		return
	}
	if ended {
		u.s.tasks.end(u, u.taskName(id))
	}
	u.pass(in, n, catalog.Renaming(n, mcp.Key, u.taskName)...)
}

// byTask forwards a request about a task to the upstream that runs it.
func (s *session) byTask(c *call) *jsonrpc.Error {
	if c.era == mcp.Modern {
		return s.byModernTask(c)
	}
	id, err := c.taskID()
	if err != nil {
		return invalidParams(err.Error())
	}
	u, own := c.upstreams.runner(id)
	if u == nil {
		return unknownTask
	}
	return s.toRunner(c, u, own, func(answer *jsonrpc.Message) {
		if answer.Error != nil {
			return
		}
		if _, ended := catalog.TaskState(answer.Result); ended || c.Method == mcp.MethodTasksResult {
			s.tasks.end(u, id)
		}
		answer.Result = catalog.GivenBack(answer.Result, id)
	})
}

// toRunner forwards a request about a task to the upstream that runs it, under that one's
// own id, if the client may. After sees the answer.
func (s *session) toRunner(c *call, u *upstreamConn, own string, after func(answer *jsonrpc.Message)) *jsonrpc.Error {
	if !u.mayUse(taskThing, own) {
		return unknownTask
	}
	switch denied, answered := s.deniedTask(c, u, own); {
	case answered:
		return nil
	case denied:
		s.noteDenial(c, "")
		return unknownTask
	}
	s.whenAnswered(c, after)
	s.forward(c, u, catalog.Renaming(c.notes, mcp.Key, func(string) string { return own })...)
	return nil
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
func (s *session) listTasks(c *call) *jsonrpc.Error {
	if u := c.upstreams.only(); u != nil && !s.p.Several && c.grant == nil {
		s.forward(c, u)
		return nil
	}
	cursor, meta, err := c.readList()
	switch {
	case err != nil:
		return invalidParams(err.Error())
	case cursor != nil:
		return unknownCursor
	case !slices.ContainsFunc(c.upstreams.conns, haveTasks):
		return methodNotFound(c.Method)
	}
	s.work(c, func(ctx context.Context) { s.mergeTasks(ctx, c, meta) })
	return nil
}

func haveTasks(u *upstreamConn) bool { return u.says().declares("tasks") }

// mergeTasks answers with the tasks of those upstreams that could list them, or, if none
// could, with the first failure.
func (s *session) mergeTasks(ctx context.Context, c *call, meta json.RawMessage) {
	set := c.upstreams
	found, failed := gather(ctx, set, c.Method, haveTasks, func(ctx context.Context, u *upstreamConn) (catalog.Collection, *failure) {
		return u.pages(ctx, c.Method, "tasks", meta)
	})
	var merged [][]byte
	var first *failure
	answers := 0
	for i, u := range set.conns {
		switch f := failed[i]; {
		case f != nil:
			u.leftOut(c.Method, f)
			first = orDefault(first, f)
		case haveTasks(u):
			answers++
		}
		for _, e := range u.ownTasks(found[i].Elements) {
			id, _ := catalog.TaskState(e)
			if !u.mayTask(c.grant, id) {
				continue
			}
			if id != "" {
				s.tasks.add(task{id: u.taskName(id), own: id, conn: u})
			}
			merged = append(merged, catalog.RenameTask(e, u.taskName))
		}
	}
	if first != nil && answers == 0 {
		s.settle(c, &jsonrpc.Message{ID: c.ID, Error: first.wire})
		return
	}
	s.settle(c, jsonrpc.NewResult(c.ID, slices.Concat([]byte(`{"tasks":[`), bytes.Join(merged, []byte{','}), []byte(`]}`))))
}

// clientTaskStatus routes what the client says of a task of its own, which an upstream has
// asked for.
func (s *session) clientTaskStatus(m *jsonrpc.Message, n *mcp.Notes) {
	id, ended := catalog.NotedTask(n)
	u := s.clientTasks.get(id).conn
	if u == nil {
		s.drop("status of no task", m)
		return
	}
	if ended {
		s.clientTasks.end(u, id)
	}
	u.tell(m)
}

// errNoTasks answers a client that does not declare the tasks extension.
var errNoTasks = mcp.MissingCapability(json.RawMessage(`{"extensions":{"` + mcp.ExtensionTasks + `":{}}}`))

// byModernTask forwards a request about a task to the upstream that runs it. If nobody here
// remembers the task, since the session is a new one, it is found by asking for it.
func (s *session) byModernTask(c *call) *jsonrpc.Error {
	id, err := c.taskID()
	switch {
	case !c.tasks:
		return errNoTasks
	case err != nil:
		return invalidParams(err.Error())
	}
	if u, own := c.upstreams.runner(id); u != nil {
		return s.toRunner(c, u, own, func(answer *jsonrpc.Message) { answer.Result = catalog.GivenBack(answer.Result, id) })
	}
	s.work(c, func(ctx context.Context) { s.findTask(ctx, c, id) })
	return nil
}

// findTask asks those upstreams that may run the task for it, in turn. It forwards the call
// to the one that knows it, and remembers that.
func (s *session) findTask(ctx context.Context, c *call, id string) {
	candidates := c.upstreams.withTasks(ctx, c.identity())
	candidates = slices.DeleteFunc(candidates, func(u *upstreamConn) bool { return !u.mayUse(taskThing, id) })
	if len(candidates) == 0 {
		s.fail(c, orDefault(c.upstreams.unreached(), unknownTask))
		return
	}
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "taskId", Text: jsonrpc.Quote(id)}, jsonrpc.Value{Key: "_meta", Text: c.identity()})
	if u := s.whoAnswers(ctx, c, candidates, mcp.MethodTasksGet, params); u != nil {
		s.tasks.add(task{id: id, own: id, conn: u}) // an id from when there was but one upstream
		s.forward(c, u)
	}
}

// withTasks returns the upstreams that declare the tasks extension. It first asks those that
// have not said. One that cannot say now comes last: if none of the others knows the task,
// the client should hear what is the matter with that one.
func (set *upstreamSet) withTasks(ctx context.Context, meta json.RawMessage) []*upstreamConn {
	silent := func(u *upstreamConn) bool { return u.says().result == nil && !u.late(mcp.MethodDiscover) }
	fanOut(ctx, set.those(silent), func(ctx context.Context, u *upstreamConn) { _, _ = u.discover(ctx, meta) })
	others := set.those(silent)
	known := set.those(func(u *upstreamConn) bool { return u.says().declaresTasks() && !slices.Contains(others, u) })
	slices.SortStableFunc(known, func(a, b *upstreamConn) int { return aliveFirst(a) - aliveFirst(b) })
	return append(known, others...)
}

func aliveFirst(u *upstreamConn) int {
	if u.alive() {
		return 0
	}
	return 1
}

// modernTaskCreated remembers who runs the task that a call has become, and returns
// the result as the client may have it. It has no progress token: the extension has no
// progress on tasks.
func (s *session) modernTaskCreated(c *call, result json.RawMessage) json.RawMessage {
	if c.sent == nil || c.kind != catalog.ResultTask {
		return result
	}
	id, err := catalog.TaskID(result)
	if err != nil {
		return result
	}
	c.sent.conn.gave(taskThing, id)
	name := c.sent.conn.taskName(id)
	s.tasks.add(task{id: name, own: id, tool: c.tool, conn: c.sent.conn})
	return catalog.GivenBack(result, name)
}
