package session

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
)

// taskCreated remembers the task that a call has become, and puts the client's name for it into the
// answer.
func (s *session) taskCreated(r *request, answer *jsonrpc.Message) {
	id, ended := catalog.CreatedTask(answer.Result)
	c := r.sent
	if id == "" || c == nil {
		return
	}
	name, ok := s.noteTask(r, c.conn, id, answer)
	if !ok {
		return
	}
	n, _ := c.ID.Int()
	x := task{ID: name, Own: id, Tool: r.tool, Conn: c.conn, Key: tokenKey{Conn: c.conn, N: n}, Token: c.token, Unfinished: !ended}
	if ended {
		x.Token, x.Uncollected = nil, time.Now()
	}
	s.tasks.Add(x)
	answer.Result = catalog.Created(answer.Result, name)
}

// noteTask records that an upstream gave a task to the client, and returns the client's name for it. If
// that is too long for any client to use, it replaces the answer by an error, and returns false.
func (s *session) noteTask(r *request, u *upstreamConn, id string, answer *jsonrpc.Message) (name string, ok bool) {
	name = s.taskName(u, id)
	if owners.IsTooLong(name) {
		u.lists.WarnTooLong(r.Method, "taskId")
		answer.Result, answer.Error = nil, jsonrpc.InvalidResponse(u.up.Name, `"taskId" `+mcp.ErrTooLong.Error()).Raw()
		return "", false
	}
	s.noteTaskOwner(u, id, r.tool)
	return name, true
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
			s.tasks.End(u, id, r.Method != mcp.MethodTasksGet)
		}
		answer.Result = catalog.GivenBack(answer.Result, id)
	})
}

// toRunner forwards a request about a task to the upstream that runs it, with that upstream's own
// id, if the client may use it. after is called with the answer.
func (s *session) toRunner(r *request, u *upstreamConn, own string, after func(answer *jsonrpc.Message)) *jsonrpc.Error {
	if !s.mayUse(u, owners.OfTask, own) {
		return unknownTask
	}
	switch denied, answered := s.deniedTask(r, u, own); {
	case answered:
		return nil
	case denied:
		s.noteDenial(r, "")
		return unknownTask
	}
	r.whenAnswered(after)
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
	}
	s.work(r, func(ctx context.Context) {
		// A client that was told of tasks may ask just after its upstream was replaced.
		if r.upstreams.introduceAll(ctx, r); !slices.ContainsFunc(r.upstreams.conns, mayHaveTasks) {
			s.fail(r, cmp.Or(r.upstreams.unreached(r.grant), jsonrpc.MethodNotFound(r.Method)))
			return
		}
		s.mergeTasks(ctx, r, meta)
	})
	return nil
}

func haveTasks(u *upstreamConn) bool { return u.lists.Says().Declares("tasks") }

// mayHaveTasks reports whether an upstream has tasks, or has not said.
func mayHaveTasks(u *upstreamConn) bool { return u.lists.Says().Result == nil || haveTasks(u) }

// mergeTasks answers with the tasks of the upstreams that could list them, or, if none could, with
// the first failure of one that may have some.
func (s *session) mergeTasks(ctx context.Context, r *request, meta json.RawMessage) {
	set := r.upstreams
	want := func(i int) bool { return mayHaveTasks(set.conns[i]) }
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
			if first == nil || first.Unsupported && !f.Unsupported {
				first = f
			}
		case haveTasks(u):
			answers++
		}
		for _, e := range s.ownTasks(u, found[i].Elements) {
			id, _ := catalog.TaskState(e)
			if !s.mayTask(u, r.grant, id) {
				continue
			}
			name := s.taskName(u, id)
			if owners.IsTooLong(name) {
				u.lists.WarnTooLong(r.Method, "taskId")
				continue
			}
			if id != "" {
				s.tasks.Add(task{ID: name, Own: id, Conn: u})
			}
			merged = append(merged, catalog.RenameTask(e, func(id string) string { return s.taskName(u, id) }))
		}
	}
	if first != nil && answers == 0 {
		s.settle(r, &jsonrpc.Message{ID: r.ID, Error: first.Wire})
		return
	}
	s.settle(r, jsonrpc.NewResult(r.ID, slices.Concat([]byte(`{"tasks":`), jsonrpc.Array(merged), []byte{'}'})))
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
				s.tasks.End(u, id, true)
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
	candidates = slices.DeleteFunc(candidates, func(u *upstreamConn) bool {
		return u.cannotKnow(r) || !s.mayUse(u, owners.OfTask, id) || !s.mayTask(u, r.grant, id)
	})
	if len(candidates) == 0 {
		s.fail(r, cmp.Or(r.upstreams.unreached(r.grant), unknownTask))
		return
	}
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "taskId", Text: jsonrpc.Quote(id)}, jsonrpc.Value{Key: "_meta", Text: r.identity()})
	if u := s.whoAnswers(ctx, r, candidates, mcp.MethodTasksGet, params); u != nil {
		s.tasks.Add(task{ID: id, Own: id, Conn: u}) // an id from when there was only one upstream
		if bad := s.toRunner(r, u, id, nil); bad != nil {
			s.fail(r, bad)
		}
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
	known := set.filter(func(u *upstreamConn) bool {
		return u.lists.Says().DeclaresExtension(mcp.ExtensionTasks) && !slices.Contains(others, u)
	})
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
	name, ok := s.noteTask(r, u, id, answer)
	if !ok {
		return
	}
	_, ended := catalog.TaskState(answer.Result)
	s.tasks.Add(task{ID: name, Own: id, Tool: r.tool, Conn: u, Unfinished: !ended})
	answer.Result = catalog.GivenBack(answer.Result, name)
}
