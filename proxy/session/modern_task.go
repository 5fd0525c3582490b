package session

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// errNoTasks is what a client hears that does not declare the tasks extension.
var errNoTasks = mcp.MissingCapability(json.RawMessage(`{"extensions":{"` + mcp.ExtensionTasks + `":{}}}`))

// byModernTask forwards a request about a task to the upstream that runs it. That
// of one nobody here remembers, since a session began anew, is found by asking for it.
func (s *session) byModernTask(c *call) {
	id, err := c.taskID()
	switch {
	case !c.tasks:
		s.fail(c, errNoTasks)
		return
	case err != nil:
		s.fail(c, invalidParams(err.Error()))
		return
	}
	if u, own := c.upstreams.runner(id); u != nil {
		s.whenAnswered(c, func(answer *jsonrpc.Message) { answer.Result = catalog.GivenBack(answer.Result, id) })
		s.forwardTask(c, u, own)
		return
	}
	s.work(c, func(ctx context.Context) { s.findTask(ctx, c, id) })
}

// findTask asks those upstreams that may run the task for it, in turn, and forwards
// the call to the one that knew it, which is remembered.
func (s *session) findTask(ctx context.Context, c *call, id string) {
	candidates := c.upstreams.withTasks(ctx, c.identity())
	if len(candidates) == 0 {
		s.fail(c, orDefault(c.upstreams.unreached(), invalidParams("unknown task")))
		return
	}
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "taskId", Text: jsonrpc.Quote(id)}, jsonrpc.Value{Key: "_meta", Text: c.identity()})
	if u := s.whoAnswers(ctx, c, candidates, mcp.MethodTasksGet, params); u != nil {
		s.rememberTask(id, id, u) // an id from when there was but one upstream
		s.forward(c, u)
	}
}

func (s *session) rememberTask(name, own string, u *upstreamConn) {
	s.tasks.add(&task{id: name, own: own, conn: u})
}

// withTasks returns the upstreams that declare the tasks extension, after asking
// those that have not said yet. One that cannot say now comes last: if none of the
// others knows the task, its state is what the client should hear.
func (set *upstreamSet) withTasks(ctx context.Context, meta json.RawMessage) []*upstreamConn {
	set.fanOut(ctx, func(u *upstreamConn) bool { return u.unknown() && !u.late(mcp.MethodDiscover) }, func(ctx context.Context, _ int, u *upstreamConn) { _, _ = u.discover(ctx, meta) })
	var known, others []*upstreamConn
	for _, u := range set.conns {
		switch {
		case u.unknown() && !u.late(mcp.MethodDiscover):
			others = append(others, u)
		case u.declaresTasks():
			known = append(known, u)
		}
	}
	slices.SortStableFunc(known, func(a, b *upstreamConn) int { return aliveFirst(a) - aliveFirst(b) })
	return append(known, others...)
}

func aliveFirst(u *upstreamConn) int {
	if u.alive() {
		return 0
	}
	return 1
}

// unknown reports whether the upstream has never said what it is.
func (u *upstreamConn) unknown() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.info.result == nil
}

func (u *upstreamConn) declaresTasks() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	tasks, _ := jsonrpc.Member(u.info.capabilities["extensions"], mcp.ExtensionTasks)
	return tasks != nil
}

// modernTaskCreated remembers who runs the task that a call has become, and returns
// the result as the client may have it. It has no progress token: the extension has no
// progress on tasks.
func (s *session) modernTaskCreated(c *call, result json.RawMessage) json.RawMessage {
	if c.request == nil || c.kind != resultTask {
		return result
	}
	id, err := catalog.TaskID(result)
	if err != nil {
		return result
	}
	name := c.request.conn.taskName(id)
	s.rememberTask(name, id, c.request.conn)
	return catalog.GivenBack(result, name)
}
