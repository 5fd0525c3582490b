package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// maxTasks bounds how many tasks of one client are remembered.
const maxTasks = 10000

// taskCreated remembers who runs the task that a call has become. Its progress
// token stays valid until the task ends (2025-11-25 basic/utilities/tasks).
func (s *session) taskCreated(c *call, result json.RawMessage) {
	id, ended := taskOf(result)
	if id == "" || c.request == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tasks) >= maxTasks {
		return
	}
	s.tasks[id] = c.request.leg
	if c.request.token != nil && !ended {
		c.request.leg.tokens[c.request.n] = c.request.token
		c.request.leg.taskTokens[id] = c.request.n
	}
}

// taskOf returns the id of the task in a CreateTaskResult and whether it ended.
func taskOf(result json.RawMessage) (string, bool) {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "task") != nil || at[0].IsZero() {
		return "", false
	}
	return taskState(result, at[0])
}

// taskState reads taskId and status of the object that in covers.
func taskState(doc json.RawMessage, in jsonrpc.Span) (id string, ended bool) {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(doc, in, at[:], "taskId", "status") != nil {
		return "", false
	}
	id, _ = jsonrpc.Unquote(at[0].Of(doc))
	status, _ := jsonrpc.Unquote(at[1].Of(doc))
	return id, status == "completed" || status == "failed" || status == "cancelled"
}

// taskStatus notes an upstream's word on one of its tasks.
func (l *leg) taskStatus(params json.RawMessage) {
	if id, ended := taskState(params, jsonrpc.Span{}); ended {
		l.s.taskEnded(l, id)
	}
}

// taskEnded lets go of a task's progress token. The task itself can still be
// asked for.
func (s *session) taskEnded(l *leg, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := l.taskTokens[id]; ok {
		delete(l.taskTokens, id)
		delete(l.tokens, n)
	}
}

// byTask forwards a request about a task to the upstream that runs it.
func (s *session) byTask(c *call) {
	raw, err := jsonrpc.Member(c.msg.Params, "taskId")
	id, ok := jsonrpc.Unquote(raw)
	if err == nil && !ok {
		err = errMissing("taskId")
	}
	if err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	s.mu.Lock()
	l := s.tasks[id]
	s.mu.Unlock()
	if l == nil && len(s.legs) == 1 {
		l = s.legs[0]
	}
	if l == nil {
		s.fail(c, invalidParams("unknown task"))
		return
	}
	c.after = func(answer *jsonrpc.Message) {
		_, ended := taskState(answer.Result, jsonrpc.Span{})
		if answer.Error == nil && (ended || c.method == "tasks/result") {
			s.taskEnded(l, id)
		}
	}
	s.forward(c, l, c.msg.Params)
}

// listTasks merges the tasks of all upstreams that have them.
func (s *session) listTasks(c *call) {
	if len(s.legs) == 1 {
		s.forward(c, s.legs[0], c.msg.Params)
		return
	}
	s.work(c, func(ctx context.Context) {
		found := make([][]json.RawMessage, len(s.legs))
		s.fanOut(ctx, func(l *leg) bool { return l.alive() && l.offers("tasks") }, func(ctx context.Context, l *leg) {
			elements, _, f := l.pages(ctx, c.method, "tasks")
			if f != nil {
				l.leftOut(c.method, f)
			}
			found[l.i] = elements
		})
		var merged [][]byte
		for i, elements := range found {
			for _, e := range elements {
				s.noteTask(s.legs[i], e)
				merged = append(merged, e)
			}
		}
		s.settle(c, jsonrpc.NewResult(c.id, slices.Concat([]byte(`{"tasks":[`), bytes.Join(merged, []byte{','}), []byte(`]}`))))
	})
}

// noteTask remembers who runs a task.
func (s *session) noteTask(l *leg, task json.RawMessage) {
	id, _ := taskState(task, jsonrpc.Span{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" && len(s.tasks) < maxTasks {
		s.tasks[id] = l
	}
}

// noteClientTask remembers which upstream a task of the client's own belongs to: one
// that the client made of an upstream's question.
func (s *session) noteClientTask(l *leg, result json.RawMessage) {
	id, _ := taskOf(result)
	if id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clientTasks) < maxTasks {
		s.clientTasks[id] = l
	}
}

// clientTaskStatus routes the client's word on a task of its own.
func (s *session) clientTaskStatus(m *jsonrpc.Message) {
	id, _ := taskState(m.Params, jsonrpc.Span{})
	s.mu.Lock()
	l := s.clientTasks[id]
	s.mu.Unlock()
	if l == nil {
		s.drop("status of no task", m)
		return
	}
	l.tell(m)
}
