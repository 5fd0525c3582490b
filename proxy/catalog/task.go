package catalog

import (
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The id of a task is unique at its upstream, and must be unique here, too (2025-11-25
// basic/utilities/tasks: "Task IDs MUST be unique among all tasks controlled by the receiver"). So
// if there are several upstreams, clients get it with the upstream's name as a prefix:
// docs__786512e2. An id from when there was one upstream stays valid.

// TaskName returns the id that clients get for a task of one of several upstreams.
func TaskName(upstream, id string) string { return upstream + separator + id }

// OwnTask returns the upstream's own id of a task, if name begins with the upstream's name.
func OwnTask(upstream, name string) (id string, ok bool) {
	return strings.CutPrefix(name, upstream+separator)
}

// RenameTask returns doc with its taskId renamed.
func RenameTask(doc json.RawMessage, rename func(string) string) json.RawMessage {
	return jsonrpc.Replace(doc, renaming(doc, jsonrpc.Span{End: len(doc)}, rename)...)
}

// RenameRelated is RenameTask for the member of _meta that ties a message to a task.
func RenameRelated(doc json.RawMessage, rename func(string) string) json.RawMessage {
	var meta [1]jsonrpc.Span
	if !mcp.MayHave(doc, []byte(mcp.KeyRelatedTask)) ||
		jsonrpc.Find(doc, jsonrpc.Span{}, meta[:], "_meta") != nil || meta[0].IsZero() {
		return doc
	}
	var at [1]jsonrpc.Span
	if jsonrpc.Find(doc, meta[0], at[:], mcp.KeyRelatedTask) != nil {
		return doc
	}
	return jsonrpc.Replace(doc, renaming(doc, at[0], rename)...)
}

// GivenBack returns the answer to a request about a task, with the task's name in the request.
func GivenBack(result json.RawMessage, name string) json.RawMessage {
	rename := func(string) string { return name }
	return RenameRelated(RenameTask(result, rename), rename)
}

// Created returns the answer to a request that became a task, with the client's name for the task.
func Created(result json.RawMessage, name string) json.RawMessage {
	rename := func(string) string { return name }
	return RenameRelated(jsonrpc.Replace(result, renaming(result, createdIn(result), rename)...), rename)
}

// renaming returns the edits that rename the taskId of the object at in; none if there is nothing
// to rename.
func renaming(doc json.RawMessage, in jsonrpc.Span, rename func(string) string) []jsonrpc.Edit {
	var at [1]jsonrpc.Span
	if in.IsZero() || jsonrpc.Find(doc, in, at[:], "taskId") != nil {
		return nil
	}
	id, ok := jsonrpc.Unquote(at[0].Of(doc))
	if !ok {
		return nil
	}
	return renamed(at[0], id, rename)
}

// Renaming is renaming for a member of params: the task that the message is about, or to which it
// is tied.
func Renaming(n *mcp.Notes, in mcp.Member, rename func(string) string) []jsonrpc.Edit {
	id, ok := n.Text(in)
	if !ok || n.Err(in) != nil || in == mcp.RelatedTaskID && n.Err(mcp.InMeta, mcp.RelatedTask) != nil {
		return nil
	}
	return renamed(n.At(in), id, rename)
}

func renamed(at jsonrpc.Span, id string, rename func(string) string) []jsonrpc.Edit {
	name := rename(id)
	if name == id {
		return nil
	}
	return []jsonrpc.Edit{{Span: at, With: jsonrpc.Quote(name)}}
}

// TaskID returns the id of the task that a result is about.
func TaskID(result json.RawMessage) (string, error) {
	raw, err := jsonrpc.Member(result, "taskId")
	id, ok := jsonrpc.Unquote(raw)
	if err == nil && !ok {
		err = mcp.Missing("taskId")
	}
	return id, err
}

// CreatedTask returns the id of the task in a CreateTaskResult, and whether the task has ended.
func CreatedTask(result json.RawMessage) (id string, ended bool) {
	in := createdIn(result)
	if in.IsZero() {
		return "", false
	}
	return taskState(result, in)
}

func createdIn(result json.RawMessage) jsonrpc.Span {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "task") != nil {
		return jsonrpc.Span{}
	}
	return at[0]
}

// TaskState returns the id of a task, and whether it has ended.
func TaskState(doc json.RawMessage) (id string, ended bool) { return taskState(doc, jsonrpc.Span{}) }

func taskState(doc json.RawMessage, in jsonrpc.Span) (id string, ended bool) {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(doc, in, at[:], "taskId", "status") != nil {
		return "", false
	}
	id, _ = jsonrpc.Unquote(at[0].Of(doc))
	status, _ := jsonrpc.Unquote(at[1].Of(doc))
	return id, isLast(status)
}

// NotedTask returns the id of the task that a notification is about, and whether it has ended.
func NotedTask(n *mcp.Notes) (id string, ended bool) {
	if n.Err(mcp.Key, mcp.Status) != nil {
		return "", false
	}
	id, _ = n.Text(mcp.Key)
	status, _ := n.Text(mcp.Status)
	return id, isLast(status)
}

// isLast reports whether a status is final.
func isLast(status string) bool {
	return status == "completed" || status == "failed" || status == "cancelled"
}
