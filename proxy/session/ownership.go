package session

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// noteTaskOwner records that an upstream gave a task to the client, and its tool: a policy decides by the tool
// in each session, and after its rules were replaced.
func (s *session) noteTaskOwner(u *upstreamConn, id, tool string) {
	s.router.owned.AddTask(s.owner, u.digest(owners.OfTask, id), tool, u.oneForAll())
}

// digest returns the key of a thing that the upstream has given.
func (u *upstreamConn) digest(t owners.Kind, text string) catalog.Digest {
	return t.Digest(u.up.Link, u.up.Name, u.era, text)
}

// oneForAll reports whether all principals have one server that cannot distinguish them: a process of the modern era,
// or a remote server that does not know who its users are. A legacy process may be one for each client.
func (u *upstreamConn) oneForAll() bool {
	return u.era == mcp.Modern && !slices.ContainsFunc(u.up.Forward, func(f Forward) bool { return f.Identity })
}

// noteStateOwner records that an upstream gave the client the state in a result that asks for input.
func (s *session) noteStateOwner(u *upstreamConn, result json.RawMessage) {
	if !s.router.Several.Load() {
		return
	}
	raw, _ := jsonrpc.Member(result, "requestState")
	if state, ok := jsonrpc.Unquote(raw); ok {
		s.router.owned.Add(s.owner, u.digest(owners.OfState, state))
	}
}

// mayUse reports whether the client may use a thing of an upstream.
func (s *session) mayUse(u *upstreamConn, t owners.Kind, text string) bool {
	return !s.router.Several.Load() || s.router.owned.Has(s.owner, u.digest(t, text))
}

// checkOwner returns the error for a request that uses a thing of another principal, or of another
// process that is gone, as if the thing did not exist; nil for all other requests.
func (r *request) checkOwner(u *upstreamConn) *jsonrpc.Error {
	s, n := r.upstreams.s, r.notes
	switch {
	case u.cannotKnow(r) && isGiven(n.Raw(mcp.RequestState)):
		return foreignState
	case u.cannotKnow(r):
		return unknownTask
	case !s.router.Several.Load():
		return nil
	}
	if state := n.Raw(mcp.RequestState); isGiven(state) || n.Err(mcp.RequestState) != nil {
		text, ok := n.Text(mcp.RequestState)
		if !ok || n.Err(mcp.RequestState) != nil || !s.mayUse(u, owners.OfState, text) {
			return foreignState
		}
	}
	if n.Has(mcp.RelatedTask) || n.Err(mcp.RelatedTask) != nil {
		id, ok := n.Text(mcp.RelatedTaskID)
		if !ok || n.Err(mcp.InMeta, mcp.RelatedTask, mcp.RelatedTaskID) != nil || !s.mayUse(u, owners.OfTask, s.ownTask(u, id)) {
			return unknownTask
		}
	}
	if n.Method.Name == "" && strings.HasPrefix(r.Method, "tasks/") { // an unknown method about a task
		return jsonrpc.MethodNotFound(r.Method)
	}
	return nil
}

// cannotKnow reports whether the upstream cannot know what a request is about, although it may have
// something with the same name.
func (u *upstreamConn) cannotKnow(r *request) bool { return r.msg.Orphan && u.up.Process }

var (
	unknownTask  = jsonrpc.InvalidParams("unknown task")
	foreignState = &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: requestState is not valid here",
		Data: map[string]string{"reason": "request_state_expired"}, // as for a state that nobody was given
	}
)

// ownTasks returns the client's own tasks of a list of an upstream.
func (s *session) ownTasks(u *upstreamConn, listed []json.RawMessage) []json.RawMessage {
	if !s.router.Several.Load() {
		return listed
	}
	return slices.DeleteFunc(listed, func(task json.RawMessage) bool {
		id, _ := catalog.TaskState(task)
		return !s.mayUse(u, owners.OfTask, id)
	})
}

// isGiven reports whether a member is present and not null.
func isGiven(value json.RawMessage) bool { return value != nil && string(value) != "null" }

// mayTask reports whether a client may see a task of an upstream.
func (s *session) mayTask(u *upstreamConn, g *policy.Grant, id string) bool {
	if g == nil {
		return true
	}
	if tool := s.toolOf(u, id); tool != "" {
		return g.May(policy.Tool, policy.Name(u.up.Name, tool))
	}
	return g.Sees(u.up.Name)
}

// mayNotify reports whether a client may be notified of a resource.
func mayNotify(g *policy.Grant, m *jsonrpc.Message) bool {
	if g == nil {
		return true
	}
	n := mcp.Read(m)
	uri, ok := n.Text(mcp.Key)
	return ok && n.Err(mcp.Key) == nil && g.May(policy.Resource, uri)
}
