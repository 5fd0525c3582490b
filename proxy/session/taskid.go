package session

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The id of a task is unique at the upstream that runs it, and has to be here
// (2025-11-25 basic/utilities/tasks: "Task IDs MUST be unique among all tasks
// controlled by the receiver"). Among several upstreams a client is given it with
// the upstream's name before it: docs__786512e2. What it was given otherwise, since
// there was one upstream then, stays good.

// taskNameLocked returns what the client calls a task of the upstream.
func (u *upstreamConn) taskNameLocked(id string) string {
	name := u.up.Name + "__" + id
	for _, given := range []string{id, name} {
		if x := u.s.tasks.byID[given]; x != nil && x.conn == u && x.own == id {
			return given
		}
	}
	if u.s.upstreamsLocked(u.era).only() != nil {
		return id
	}
	return name
}

func (u *upstreamConn) taskName(id string) string {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.taskNameLocked(id)
}

// runner returns the upstream that runs a task which the client calls so, and what
// it calls it itself; nil if that is not known. The longest name of an upstream counts,
// unless the task is remembered.
func (set *upstreamSet) runner(name string) (found *upstreamConn, own string) {
	set.s.mu.Lock()
	defer set.s.mu.Unlock()
	return set.runnerLocked(name)
}

func (set *upstreamSet) runnerLocked(name string) (found *upstreamConn, own string) {
	if x := set.s.tasks.byID[name]; x != nil && x.conn.era == set.era {
		return x.conn, x.own
	}
	if u := set.only(); u != nil {
		return u, name
	}
	for _, u := range set.conns {
		id, ok := strings.CutPrefix(name, u.up.Name+"__")
		if ok && (found == nil || len(u.up.Name) > len(found.up.Name)) {
			found, own = u, id
		}
	}
	return found, own
}

// ownTaskLocked returns what the upstream itself calls a task of its own.
func (u *upstreamConn) ownTaskLocked(name string) string {
	if runner, own := u.s.upstreamsLocked(u.era).runnerLocked(name); runner == u {
		return own
	}
	return name
}

func (u *upstreamConn) ownTask(name string) string {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.ownTaskLocked(name)
}

// renaming returns what makes the taskId of the object that in covers another one; nil
// if there is none, or none other.
func renaming(doc json.RawMessage, in jsonrpc.Span, rename func(string) string) []jsonrpc.Edit {
	var at [1]jsonrpc.Span
	if in.IsZero() || jsonrpc.Find(doc, in, at[:], "taskId") != nil {
		return nil
	}
	id, ok := jsonrpc.Unquote(at[0].Of(doc))
	if !ok {
		return nil
	}
	name := rename(id)
	if name == id {
		return nil
	}
	return []jsonrpc.Edit{{Span: at[0], With: jsonrpc.Quote(name)}}
}

// renamed returns doc, or what it has in one member, with another taskId.
func renamed(doc json.RawMessage, in jsonrpc.Span, rename func(string) string) json.RawMessage {
	if edits := renaming(doc, in, rename); edits != nil {
		return jsonrpc.Replace(doc, edits...)
	}
	return doc
}

// whole covers a document.
func whole(doc json.RawMessage) jsonrpc.Span { return jsonrpc.Span{End: len(doc)} }

// renamedRelated is renamed for the member of _meta that ties a message to a task.
func renamedRelated(doc json.RawMessage, rename func(string) string) json.RawMessage {
	return renamed(doc, relatedTask(doc), rename)
}

// relatedTask returns where that member stands in params or a result. It is a glance
// at most messages.
func relatedTask(doc json.RawMessage) jsonrpc.Span {
	var meta [1]jsonrpc.Span
	if !mayRelate(doc) || jsonrpc.Find(doc, jsonrpc.Span{}, meta[:], "_meta") != nil {
		return jsonrpc.Span{}
	}
	return relatedIn(doc, meta[0])
}

// relatedIn is relatedTask for a document whose _meta is known to stand at a place.
func relatedIn(doc json.RawMessage, meta jsonrpc.Span) jsonrpc.Span {
	var at [1]jsonrpc.Span
	if meta.IsZero() || !mayRelate(meta.Of(doc)) || jsonrpc.Find(doc, meta, at[:], mcp.KeyRelatedTask) != nil {
		return jsonrpc.Span{}
	}
	return at[0]
}

// mayRelate reports whether the key may stand there, if need be with escapes.
func mayRelate(text json.RawMessage) bool {
	return bytes.Contains(text, keyRelated) || bytes.Contains(text, escapedASCII) || bytes.Contains(text, escapedSlash)
}

var keyRelated = []byte(mcp.KeyRelatedTask)

// exposed returns a message of the upstream with the client's name of the task that it
// is tied to. One that the client runs has the client's own.
func (u *upstreamConn) exposed(m *jsonrpc.Message) *jsonrpc.Message {
	if relatedTask(m.Params).IsZero() {
		return m
	}
	out := *m
	out.Params = renamedRelated(m.Params, func(id string) string {
		u.s.mu.Lock()
		defer u.s.mu.Unlock()
		if x := u.s.clientTasks.byID[id]; x != nil && x.conn == u {
			return id
		}
		return u.taskNameLocked(id)
	})
	return &out
}

// givenBack returns the answer to a request about a task with the name that the request
// has for it.
func givenBack(result json.RawMessage, name string) json.RawMessage {
	rename := func(string) string { return name }
	return renamedRelated(renamed(result, whole(result), rename), rename)
}
