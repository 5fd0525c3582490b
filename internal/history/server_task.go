package main

import "time"

// extensionTasks is what tasks of the modern era are called. Those of the legacy era are of 2025-11-25.
const extensionTasks = "io.modelcontextprotocol/tasks"

// A task is a call that goes on after its answer. The mutex of its server guards it.
type task struct {
	nonce  string
	state  string
	result object        // when it has ended
	taken  bool          // it has its effect, or is about to
	ended  chan struct{} // closed then
	stop   chan struct{} // closed when it is cancelled
}

// taskOf returns the id that a server gives to the task of a call.
func taskOf(nonce string) string { return "task-" + nonce }

// tooLate is the error for the cancellation of a task that has ended.
const tooLate = "the task has ended"

// mayTask reports whether a call wants to be a task, and says so in the way of its era: without that the server has to
// run it as any other call.
func (p *params) mayTask() bool {
	return p.Arguments.Task != "" && (p.Task != nil || p.Meta.Capabilities.Extensions[extensionTasks] != nil)
}

// view returns a task as clients see it.
func (t *task) view() object {
	return object{"taskId": taskOf(t.nonce), "status": t.state, "createdAt": "2026-01-01T00:00:00Z",
		"lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": 60_000, "ttlMs": 60_000, "pollInterval": 50, "pollIntervalMs": 50}
}

// startTask answers a call with a task.
func (c *connection) startTask(m *message, a call) {
	t := &task{nonce: a.Nonce, state: "working", ended: make(chan struct{}), stop: make(chan struct{})}
	s := c.server
	s.mu.Lock()
	s.tasks[taskOf(a.Nonce)] = t
	answer := t.view()
	s.mu.Unlock()
	s.journal.add(Began, a.Nonce, "")
	go s.runTask(t, a)
	if c.modern {
		answer["resultType"] = "task"
		c.reply(m, answer, nil)
		return
	}
	c.reply(m, object{"task": answer}, nil)
}

func (s *server) runTask(t *task, a call) {
	select {
	case <-t.stop:
		return
	case <-time.After(time.Duration(a.MS) * time.Millisecond):
	}
	s.mu.Lock()
	if t.state != "working" {
		s.mu.Unlock()
		return
	}
	t.taken = true
	s.mu.Unlock()
	s.journal.add(Effect, a.Nonce, "")
	s.journal.add(Ended, a.Nonce, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	t.state = "completed"
	t.result = object{"content": []object{}, "structuredContent": answer{Nonce: a.Nonce, Server: s.journal.by}}
	close(t.ended)
}

// aboutTask answers a request about a task, whoever sends it: to say whose a task is is left to the proxy.
func (c *connection) aboutTask(m *message, p params) {
	s := c.server
	s.mu.Lock()
	t := s.tasks[p.TaskID]
	s.mu.Unlock()
	if t == nil && m.Method != "tasks/list" {
		c.reply(m, nil, object{"code": -32602, "message": "no such task"})
		return
	}
	switch m.Method {
	case "tasks/list":
		c.reply(m, object{"tasks": s.listTasks()}, nil)
	case "tasks/get":
		c.reply(m, c.complete(s.getTask(t)), nil)
	case "tasks/cancel":
		c.cancelTask(m, t)
	case "tasks/result":
		<-t.ended
		if t.result["structuredContent"] == nil {
			c.reply(m, nil, object{"code": -32603, "message": taskCancelled})
			return
		}
		c.reply(m, object{"content": t.result["content"], "structuredContent": t.result["structuredContent"],
			"_meta": object{"io.modelcontextprotocol/related-task": object{"taskId": p.TaskID}}}, nil)
	}
}

// complete adds what results of the modern era have.
func (c *connection) complete(result object) object {
	if c.modern {
		result["resultType"] = "complete"
	}
	return result
}

func (s *server) listTasks() []object {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []object{}
	for _, t := range s.tasks {
		all = append(all, t.view())
	}
	return all
}

func (s *server) getTask(t *task) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	view := t.view()
	if s.modern && t.state == "completed" {
		view["result"] = t.result
	}
	return view
}

func (c *connection) cancelTask(m *message, t *task) {
	s := c.server
	s.mu.Lock()
	late := t.taken || t.state != "working"
	if !late {
		t.state, t.result = "cancelled", object{"content": []object{}}
		close(t.stop)
		close(t.ended)
	}
	view := t.view()
	s.mu.Unlock()
	if !late {
		s.journal.add(Cancelled, t.nonce, "")
	}
	switch {
	case c.modern:
		c.reply(m, c.complete(object{}), nil)
	case late:
		c.reply(m, nil, object{"code": -32602, "message": tooLate})
	default:
		c.reply(m, view, nil)
	}
}

// taskCancelled is what a server says of the result of a cancelled task.
const taskCancelled = "the task was cancelled"
