package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// tasks judges that a principal has its own tasks alone, and that what is cancelled is not executed.
func (j *judge) tasks(r *record) {
	for _, o := range r.outcomes {
		switch {
		case o.What != Result:
		case r.op.Theirs != "":
			j.found(3, fmt.Sprintf("%s got what is %s's: %s", r.nonce, r.op.Theirs, o.Text), r.nonce, r.op.Theirs)
		case r.op.Method == "tasks/list":
			j.listOfTasks(r, o)
		case isCancelled(o) && r.op.Task != "cancel" && !j.happened(o.At, endings...):
			j.found(4, r.nonce+" was cancelled, but not by its client", r.nonce)
		case isCancelled(o) && len(r.effects) > 0:
			j.found(4, r.nonce+" was cancelled, and was executed", r.nonce)
		}
	}
}

// listOfTasks judges that each task in a list is of a client of the same principal.
func (j *judge) listOfTasks(r *record, o Event) {
	var list struct{ Tasks []struct{ TaskID string } }
	_ = json.Unmarshal([]byte(o.Text), &list) // of another shape it has none
	for _, t := range list.Tasks {
		nonce := t.TaskID[strings.LastIndex(t.TaskID, "task-")+len("task-"):]
		if of := j.calls[nonce]; of == nil || principalOf(of.client) != principalOf(r.client) {
			j.found(3, fmt.Sprintf("%s lists %s", r.nonce, t.TaskID), r.nonce, nonce)
		}
	}
}

// isCancelled reports whether an outcome is that of a task that was cancelled.
func isCancelled(o Event) bool {
	var t taskAnswer
	return o.What == Result && json.Unmarshal([]byte(o.Text), &t) == nil && t.Status == "cancelled"
}

// taskFailed reports whether an error belongs to what is asked of a task: it is another's, or its server or the
// proxy, which remembers whose it is, may have been replaced since. A server has no result for a task that its client
// cancelled.
func (j *judge) taskFailed(r *record, f failure) bool {
	if r.op.CancelTask > 0 && f.Message == taskCancelled {
		return true
	}
	return f.Code == -32602 && (r.op.Theirs != "" || r.op.Task != "" && j.died(r.op.Server, r.sent))
}
