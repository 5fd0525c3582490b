package session

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// errNoTasks is what a client hears that does not declare the tasks extension.
var errNoTasks = mcp.MissingCapability(json.RawMessage(`{"extensions":{"` + mcp.ExtensionTasks + `":{}}}`))

// byModernTask forwards a request about a task to the upstream that runs it. That
// of one nobody here remembers, since a session began anew, is found by asking for it.
func (s *session) byModernTask(c *call) {
	id, err := readTaskID(c.msg.Params)
	switch {
	case !c.tasks:
		s.fail(c, errNoTasks)
		return
	case err != nil:
		s.fail(c, invalidParams(err.Error()))
		return
	}
	if l, own := c.lineup.runner(id); l != nil {
		s.whenAnswered(c, func(answer *jsonrpc.Message) { answer.Result = givenBack(answer.Result, id) })
		s.forwardTask(c, l, own)
		return
	}
	s.work(c, func(ctx context.Context) { s.findTask(ctx, c, id) })
}

// findTask asks those upstreams that may run the task for it, in turn, and forwards
// the call to the one that knew it, which is remembered.
func (s *session) findTask(ctx context.Context, c *call, id string) {
	candidates := c.lineup.withTasks(ctx, c.identity())
	if len(candidates) == 0 {
		s.fail(c, orDefault(c.lineup.unreached(), invalidParams("unknown task")))
		return
	}
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "taskId", Text: jsonrpc.Quote(id)}, jsonrpc.Value{Key: "_meta", Text: c.identity()})
	if l := s.whoAnswers(ctx, c, candidates, "tasks/get", params); l != nil {
		s.rememberTask(id, id, l) // an id from when there was but one upstream
		s.forward(c, l, c.msg.Params)
	}
}

func (s *session) rememberTask(name, own string, l *leg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks.addLocked(&task{id: name, own: own, leg: l})
}

// withTasks returns the upstreams that declare the tasks extension, after asking
// those that have not said yet. One that cannot say now comes last: if none of the
// others knows the task, its state is what the client should hear.
func (v *lineup) withTasks(ctx context.Context, meta json.RawMessage) []*leg {
	v.fanOut(ctx, func(l *leg) bool { return l.unknown() && !l.late(mcp.DiscoverMethod) }, func(ctx context.Context, _ int, l *leg) { _, _ = l.discover(ctx, meta) })
	var known, others []*leg
	for _, l := range v.legs {
		switch {
		case l.unknown() && !l.late(mcp.DiscoverMethod):
			others = append(others, l)
		case l.declaresTasks():
			known = append(known, l)
		}
	}
	slices.SortStableFunc(known, func(a, b *leg) int { return aliveFirst(a) - aliveFirst(b) })
	return append(known, others...)
}

func aliveFirst(l *leg) int {
	if l.alive() {
		return 0
	}
	return 1
}

// unknown reports whether the upstream has never said what it is.
func (l *leg) unknown() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.info.result == nil
}

func (l *leg) declaresTasks() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	tasks, _ := jsonrpc.Member(l.info.capabilities["extensions"], mcp.ExtensionTasks)
	return tasks != nil
}

// modernTaskCreated remembers who runs the task that a call has become, and returns
// the result as the client may have it. It has no progress token: the extension has no
// progress on tasks.
func (s *session) modernTaskCreated(c *call, result json.RawMessage) json.RawMessage {
	if c.request == nil || c.kind != resultTask {
		return result
	}
	id, err := readTaskID(result)
	if err != nil {
		return result
	}
	name := c.request.leg.taskName(id)
	s.rememberTask(name, id, c.request.leg)
	return givenBack(result, name)
}
