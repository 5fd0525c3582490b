package main

import (
	"encoding/json"
	"time"
)

// A taskAnswer is what an answer says of a task.
type taskAnswer struct {
	Task   struct{ TaskID string } // of the legacy era, for the call
	TaskID string
	Status string
	Result struct{ StructuredContent json.RawMessage } // of the modern era, when it has ended
}

// tasksOf names the tasks that a principal has in an era.
func tasksOf(principal string, modern bool) string {
	if modern {
		return principal + " modern"
	}
	return principal
}

// aim lets an operation that is about a task be about the last one of another principal; if there is none it
// becomes a list.
func (c *client) aim(o *operation) {
	if o.Method == "" || o.Method == "tasks/list" {
		return
	}
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	for _, p := range principals {
		if p != principalOf(c.name) {
			o.Theirs = c.world.running[tasksOf(p, c.kind.modern)]
		}
	}
	if o.Theirs == "" {
		o.Method = ""
	}
}

// follows goes on with a call that is a task. In the legacy era there is a request for the result, in the
// modern one the client asks again and again.
func (c *client) follows(o *operation, a taskAnswer, text string) {
	created := a.Task.TaskID
	if o.task == "" && created == "" {
		created = a.TaskID
	}
	switch {
	case created != "":
		c.mu.Lock()
		o.task = created
		c.mu.Unlock()
		c.world.mu.Lock()
		c.world.running[tasksOf(principalOf(c.name), c.kind.modern)] = created
		c.world.mu.Unlock()
		if o.Task == "cancel" {
			time.AfterFunc(o.CancelTask, func() { c.request(o, "tasks/cancel", object{"taskId": created}) })
			return
		}
		c.request(o, "tasks/get", object{"taskId": created})
	case a.Status == "cancelled":
		c.outcome(o, Result, text)
	case !c.kind.modern:
		c.request(o, "tasks/result", object{"taskId": o.task})
	case a.Status == "completed":
		c.outcome(o, Result, string(a.Result.StructuredContent))
	default: // it works, or the request for its cancellation was taken
		time.AfterFunc(50*time.Millisecond, func() { c.request(o, "tasks/get", object{"taskId": o.task}) })
	}
}

// lateCancel goes on with a task that has ended before it was cancelled.
func (c *client) lateCancel(o *operation, m *message) bool {
	var e struct{ Message string }
	if o.Task != "cancel" || json.Unmarshal(m.Error, &e) != nil || e.Message != tooLate {
		return false
	}
	c.request(o, "tasks/result", object{"taskId": o.task})
	return true
}
