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

// taskName returns the client's name of a task of an upstream.
func (s *session) taskName(u *upstreamConn, id string) string {
	name := catalog.TaskName(u.up.Name, id)
	for _, given := range []string{id, name} {
		if x := s.tasks.Get(given); x.Conn == u && x.Own == id {
			return given
		}
	}
	if s.upstreams.of(u.era).only() != nil {
		return id
	}
	return name
}

// ownTask returns an upstream's own id of one of its tasks.
func (s *session) ownTask(u *upstreamConn, name string) string {
	if runner, own := s.upstreams.of(u.era).runner(name); runner == u {
		return own
	}
	return name
}

// ownRelated returns the edits of a message for an upstream that rename the task to which it is tied.
func (s *session) ownRelated(u *upstreamConn, n *mcp.Notes) []jsonrpc.Edit {
	return catalog.Renaming(n, mcp.RelatedTaskID, func(name string) string { return s.ownTask(u, name) })
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

// toolOf returns the tool of a task of an upstream, "" if it is unknown. The task may have begun in another
// session of the principal.
func (s *session) toolOf(u *upstreamConn, id string) string {
	if tool := s.tasks.Get(s.taskName(u, id)).Tool; tool != "" {
		return tool
	}
	return s.router.owned.Tool(s.owner, u.digest(owners.OfTask, id))
}

// exposed returns a copy of a message of an upstream with edits to its params, and with the
// client's name of the task to which it is tied. A task of the client keeps its name.
func (s *session) exposed(u *upstreamConn, m *jsonrpc.Message, n *mcp.Notes, edits ...jsonrpc.Edit) *jsonrpc.Message {
	edits = append(edits, catalog.Renaming(n, mcp.RelatedTaskID, func(id string) string {
		if s.clientTasks.Get(id).Conn == u {
			return id
		}
		return s.taskName(u, id)
	})...)
	out := *m
	out.Params = jsonrpc.Replace(m.Params, edits...)
	return &out
}
