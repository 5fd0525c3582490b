package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
)

type (
	task     = owners.Task[*upstreamConn]
	tokenKey = owners.TokenKey[*upstreamConn]
)

// taskName returns the client's name of a task of the upstream.
func (u *upstreamConn) taskName(id string) string {
	name := catalog.TaskName(u.up.Name, id)
	for _, given := range []string{id, name} {
		if x := u.s.tasks.Get(given); x.Conn == u && x.Own == id {
			return given
		}
	}
	if u.s.upstreams.of(u.era).only() != nil {
		return id
	}
	return name
}

// ownTask returns the upstream's own id of one of its tasks.
func (u *upstreamConn) ownTask(name string) string {
	if runner, own := u.s.upstreams.of(u.era).runner(name); runner == u {
		return own
	}
	return name
}

// runner returns the upstream that runs a task, given the client's name, and the upstream's own id;
// nil if unknown. If the task is not remembered, it is the upstream with the longest name that
// begins the task's name.
func (set *upstreamSet) runner(name string) (found *upstreamConn, own string) {
	if x := set.s.tasks.Get(name); x.Conn != nil && x.Conn.era == set.era {
		return x.Conn, x.Own
	}
	if u := set.only(); u != nil {
		return u, name
	}
	for _, u := range set.conns {
		id, ok := catalog.OwnTask(u.up.Name, name)
		if ok && (found == nil || len(u.up.Name) > len(found.up.Name)) {
			found, own = u, id
		}
	}
	return found, own
}

// toolOf returns the tool of a task, "" if it is unknown.
func (u *upstreamConn) toolOf(id string) string { return u.s.tasks.Get(u.taskName(id)).Tool }

// exposed returns a copy of a message of the upstream with edits to its params, and with the
// client's name of the task to which it is tied. A task of the client keeps its name.
func (u *upstreamConn) exposed(m *jsonrpc.Message, n *mcp.Notes, edits ...jsonrpc.Edit) *jsonrpc.Message {
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, func(id string) string {
		if u.s.clientTasks.Get(id).Conn == u {
			return id
		}
		return u.taskName(id)
	})...)
	out := *m
	out.Params = jsonrpc.Replace(m.Params, edits...)
	return &out
}
