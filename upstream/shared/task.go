package shared

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Limits for one client. When a limit is reached, the oldest entry is forgotten, and unknown from then on.
const (
	maxMemberTasks   = 1024
	maxMemberCursors = 1024
	maxElicited      = 1024
)

// A task is a task at the server. Only the client that created it may use it.
type task[H comparable] struct {
	by    H
	id    string
	raw   json.RawMessage // the JSON text of id
	n     int64           // id of the call that created the task, and its progress token
	token json.RawMessage // the client's progress token; nil for none
	ended bool
}

// tasks are the tasks of all clients (H) of a session. The session's lock guards them.
type tasks[H comparable] struct {
	byID    map[string]*task[H]
	byToken map[int64]*task[H] // until the task ends (2025-11-25 basic/utilities/tasks)
	held    map[H]*heldTasks[H]
}

// heldTasks are the tasks and cursors of one client.
type heldTasks[H comparable] struct {
	all     []*task[H] // oldest first
	running int        // tasks in all that have not ended

	// Cursors of tasks/list. The server's own cursor may be the id of another client's task, so the
	// client gets a number instead.
	cursors map[string]json.RawMessage // the server's cursor by ours
	order   []string                   // our cursors, oldest first
	last    int                        // the last cursor
}

// of returns the heldTasks of a client.
func (ts *tasks[H]) of(by H) *heldTasks[H] {
	h := ts.held[by]
	if h == nil {
		if ts.held == nil {
			ts.held, ts.byID, ts.byToken = make(map[H]*heldTasks[H]), make(map[string]*task[H]), make(map[int64]*task[H])
		}
		h = &heldTasks[H]{cursors: make(map[string]json.RawMessage)}
		ts.held[by] = h
	}
	return h
}

func (ts *tasks[H]) add(t *task[H]) {
	h := ts.of(t.by)
	if len(h.all) >= maxMemberTasks {
		ts.remove(h.all[0])
		h.all = slices.Delete(h.all, 0, 1)
	}
	h.all = append(h.all, t)
	ts.byID[t.id] = t
	if t.ended {
		return
	}
	h.running++
	if t.token != nil {
		ts.byToken[t.n] = t
	}
}

func (ts *tasks[H]) remove(t *task[H]) {
	delete(ts.byID, t.id)
	ts.end(t)
}

// end marks a task as ended. Its client can still ask for it.
func (ts *tasks[H]) end(t *task[H]) {
	delete(ts.byToken, t.n)
	if !t.ended {
		t.ended = true
		ts.held[t.by].running--
	}
}

// owns reports whether a task is a client's.
func (ts *tasks[H]) owns(by H, id string) bool {
	t := ts.byID[id]
	return t != nil && t.by == by
}

func (ts *tasks[H]) running(by H) bool { return ts.held[by] != nil && ts.held[by].running > 0 }

// leave forgets a client, and returns the ids of its tasks that have not ended.
func (ts *tasks[H]) leave(by H) (running []json.RawMessage) {
	h := ts.held[by]
	if h == nil {
		return nil
	}
	for _, t := range h.all {
		if !t.ended {
			running = append(running, t.raw)
		}
		ts.remove(t)
	}
	delete(ts.held, by)
	return running
}

// cursor returns the server's cursor for one of ours; nil if there is none.
func (ts *tasks[H]) cursor(by H, ours string) json.RawMessage {
	if h := ts.held[by]; h != nil {
		return h.cursors[ours]
	}
	return nil
}

// addCursor returns our cursor for one of the server's.
func (ts *tasks[H]) addCursor(by H, theirs json.RawMessage) string {
	h := ts.of(by)
	if len(h.order) >= maxMemberCursors {
		delete(h.cursors, h.order[0])
		h.order = h.order[1:]
	}
	h.last++
	ours := strconv.Itoa(h.last)
	h.cursors[ours] = bytes.Clone(theirs)
	h.order = append(h.order, ours)
	return ours
}

var errUnusableList = errors.New("unusable list")

// page returns a result of tasks/list with the client's own tasks and a cursor of ours. A page
// may be empty and yet have a next one.
func (ts *tasks[H]) page(by H, result json.RawMessage) (json.RawMessage, error) {
	var at [2]jsonrpc.Span
	err := jsonrpc.Find(result, jsonrpc.Span{}, at[:], "tasks", "nextCursor")
	listed, bad := jsonrpc.Elements(at[0].Of(result))
	if err != nil || bad != nil {
		return nil, errUnusableList
	}
	var own []json.RawMessage
	for _, object := range listed {
		if _, id, _ := readTask(object); ts.owns(by, id) {
			own = append(own, object)
		}
	}
	edits := []jsonrpc.Edit{{Span: at[0], With: jsonrpc.Array(own)}}
	switch next := at[1].Of(result); {
	case len(next) == 0 || next[0] != '"':
	case mcp.IsTooLong(next): // the list ends here
		return jsonrpc.Set(jsonrpc.Replace(result, edits...), jsonrpc.Value{Key: "nextCursor"}), nil
	default:
		edits = append(edits, jsonrpc.Edit{Span: at[1], With: jsonrpc.Quote(ts.addCursor(by, next))})
	}
	return jsonrpc.Replace(result, edits...), nil
}

// readTask reads the id, raw and decoded, and the status of a Task object.
func readTask(task json.RawMessage) (raw json.RawMessage, id string, ended bool) {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(task, jsonrpc.Span{}, at[:], "taskId", "status") != nil {
		return nil, "", false
	}
	raw = at[0].Of(task)
	id, _ = jsonrpc.Unquote(raw)
	status, _ := jsonrpc.Unquote(at[1].Of(task))
	return raw, id, status == "completed" || status == "failed" || status == "cancelled"
}

// relatedTask returns the task that a message names in its _meta; "" for none. It returns an error
// if _meta is ambiguous.
func relatedTask(notes *mcp.Notes) (string, error) {
	err := notes.Err(mcp.InMeta, mcp.Token, mcp.RelatedTask, mcp.RelatedTaskID)
	if err != nil || !notes.Has(mcp.RelatedTask) {
		return "", err
	}
	task, ok := notes.Text(mcp.RelatedTaskID)
	if !ok {
		return "", mcp.Missing("taskId")
	}
	return task, nil
}

// elicitations are the clients (H) that were given each elicitation, by its elicitationId: "MUST
// only send the notification to the client that initiated the elicitation request" (2025-11-25
// client/elicitation). The session's lock guards them.
type elicitations[H comparable] struct {
	byID map[string]H
	of   map[H][]string // oldest first
}

// add remembers that a client was given elicitations. The first client of an id keeps it.
func (el *elicitations[H]) add(by H, ids ...string) {
	for _, id := range ids {
		if _, taken := el.byID[id]; taken || len(id) > mcp.MaxRouted {
			continue
		}
		if el.byID == nil {
			el.byID, el.of = make(map[string]H), make(map[H][]string)
		}
		if held := el.of[by]; len(held) >= maxElicited {
			delete(el.byID, held[0])
			el.of[by] = held[1:]
		}
		el.byID[id] = by
		el.of[by] = append(el.of[by], id)
	}
}

// leave forgets what a client was given.
func (el *elicitations[H]) leave(by H) {
	for _, id := range el.of[by] {
		delete(el.byID, id)
	}
	delete(el.of, by)
}

// elicitationsIn returns the ids of the elicitations that an error names.
func elicitationsIn(err json.RawMessage) (ids []string) {
	if err == nil || string(jsonrpc.Get(err, "code")) != strconv.Itoa(mcp.CodeURLElicitation) {
		return nil
	}
	all, _ := jsonrpc.Elements(jsonrpc.Get(jsonrpc.Get(err, "data"), "elicitations"))
	for _, e := range all {
		if id, ok := jsonrpc.Unquote(jsonrpc.Get(e, "elicitationId")); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
