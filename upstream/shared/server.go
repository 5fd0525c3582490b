package shared

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// maxAsked bounds the server requests that one client has open. Further ones are refused.
const maxAsked = 1024

// asked passes a request of the server to the client that it belongs to. If that is not certain the request is
// refused, since a guess could show one client's data to another.
func (s *sharedSession) asked(r *peer.Request) {
	if r.Method == mcp.MethodPing {
		r.RespondIfRoom(&jsonrpc.Message{Result: noResult})
		return
	}
	notes := mcp.Read(r.Message)
	task, err := relatedTask(notes)
	if err != nil {
		r.RespondIfRoom(jsonrpc.Failure(jsonrpc.InvalidParams(err.Error())))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, of, said := s.ownerLocked(r.Message.Related, r.Of, task)
	if !said {
		m, of = s.onlyCallerLocked(false)
		if m == nil && s.holdLocked(r) {
			return
		}
	}
	s.passLocked(r, notes, owner{m, of, task, said})
}

// An owner is the client that a request of the server belongs to, nil for none, and its own request; or what the
// server says of it.
type owner struct {
	m    *member
	of   jsonrpc.ID
	task string
	said bool // the request names a call or a task
}

// passLocked passes a request of the server to its owner, or refuses it.
func (s *sharedSession) passLocked(r *peer.Request, notes *mcp.Notes, to owner) {
	m, said := to.m, to.said
	switch {
	case m == nil && r.Method == mcp.MethodRootsList && s.up.Roots != nil && !said && !s.busyLocked():
		r.RespondIfRoom(&jsonrpc.Message{Result: rootsResult(s.up.Roots)})
	case m == nil:
		for _, c := range s.atServer() {
			if c.MayAsk(r) {
				c.refused = time.Now()
			}
		}
		r.RespondIfRoom(jsonrpc.Failure(peer.ErrUnattributed))
		if s.ambiguous != nil && !said {
			s.wg.Go(func() { s.ambiguous(s.up.Name) })
		}
	case m.asked() >= maxAsked:
		r.RespondIfRoom(jsonrpc.Failure(jsonrpc.Overloaded(s.up.Name)))
	default:
		if refusal := m.refuses(r.Method, r.Message.Params); refusal != nil {
			r.RespondIfRoom(jsonrpc.Failure(refusal))
			return
		}
		r.Assign(m, to.task, &m.room)
		s.askClientLocked(m, r, notes, to.of)
	}
}

// asked returns the number of server requests that the client has not answered.
func (m *member) asked() int {
	calls, _ := m.peer.Open()
	return calls
}

// askClientLocked passes a request of the server to the client, under an id of the client's stream and related to
// the client's own request of.
func (s *sharedSession) askClientLocked(m *member, r *peer.Request, notes *mcp.Notes, of jsonrpc.ID) {
	c := m.peer.NewCall(r.Method)
	c.Related = of
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) { m.answered(r, answer, lost) }
	params := r.Message.Params
	if at := notes.At(mcp.Token); !at.IsZero() {
		token := bytes.Clone(at.Of(params))
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
		c.Progress = func(p *jsonrpc.Message, at jsonrpc.Span) { m.progress(p, at, token) }
	}
	if id, ok := notes.Text(mcp.Key); ok && r.Method == mcp.MethodElicit {
		s.elicitedLocked(m, id)
	}
	extra := r.Message.Extra
	r.Message = nil // its bytes are not kept until the answer
	if r.Forward(c, &jsonrpc.Message{Params: params, Extra: extra, Related: of}) == jsonrpc.ErrFull {
		m.tooSlow(nil)
	}
}

// answered passes the client's answer to the server.
func (m *member) answered(r *peer.Request, answer *jsonrpc.Message, lost *peer.Lost) {
	if lost != nil || m.s.server.WaitIn(m.ctx, &m.room) != nil {
		r.Refuse(peer.ErrClientGone)
		return
	}
	if jsonrpc.IsClosed(answer.Error) { // from the proxy: its client is gone
		r.Mark()
	}
	r.Respond(&jsonrpc.Message{Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
}

// progress passes the client's progress on a server request to the server.
func (m *member) progress(p *jsonrpc.Message, at jsonrpc.Span, token json.RawMessage) {
	if m.s.server.WaitIn(m.ctx, &m.room) == nil {
		params := jsonrpc.Replace(p.Params, jsonrpc.Edit{Span: at, With: token})
		m.s.server.SendIn(&m.room, &jsonrpc.Message{Method: p.Method, Params: params, Extra: p.Extra})
	}
}

// ownerLocked returns the client that a message of the server names as its owner, by its related request or task,
// and a request of that client. said reports whether the message names any; m is nil then if the call or the task
// has ended, or if the two belong to different clients. of is the call that related names.
func (s *sharedSession) ownerLocked(related jsonrpc.ID, of *peer.Call, task string) (m *member, id jsonrpc.ID, said bool) {
	if related.IsZero() && task == "" {
		return nil, id, false
	}
	if !related.IsZero() {
		switch {
		case of == nil:
			return nil, id, true
		case callOf(of).member == nil, callOf(of).For == nil && task != "": // a call of our own
			return nil, id, false
		}
		c := callOf(of)
		if c.member.gone || !c.request.Open() {
			return nil, id, true
		}
		m, id = c.member, c.request.ID
	}
	if task != "" {
		t := s.tasks.byID[task]
		if t == nil || m != nil && t.by != m {
			return nil, jsonrpc.ID{}, true
		}
		m = t.by
	}
	if id.IsZero() {
		id = m.newest(task)
	}
	return m, id, true
}

// onlyCallerLocked returns the only client with a call at the server, and its newest request. It returns nil if a
// message could also concern another client: because of a call, a call abandoned recently, or a task, although
// messages about tasks should name them. If clients is true, calls of members without a client do not count.
func (s *sharedSession) onlyCallerLocked(clients bool) (only *member, id jsonrpc.ID) {
	for _, c := range s.atServer() {
		switch {
		case c.quiet, clients && c.isOwn():
		case c.member.gone, only != nil && only != c.member:
			return nil, id
		default: // including calls that are being cancelled
			only = c.member
		}
	}
	if only == nil || s.othersGaveUpLocked(only, peer.Lingering) {
		return nil, id
	}
	for m := range s.members {
		if m != only && s.tasks.running(m) {
			return nil, id
		}
	}
	id = only.newest("")
	if id.IsZero() {
		return nil, id
	}
	return only, id
}

// busyLocked reports whether any client has a call at the server.
func (s *sharedSession) busyLocked() bool {
	return slices.ContainsFunc(s.atServer(), func(c *memberCall) bool { return !c.quiet && !c.member.gone })
}

// newest returns the id of m's newest request at the server, preferably one that is about the task, or else one that
// the server works on; zero for none. A client waits with tasks/result for what is asked about a task.
func (m *member) newest(task string) (id jsonrpc.ID) {
	best := 0
	for _, c := range m.s.atServer() {
		fits := 1
		switch {
		case c.member != m || !c.request.Open():
			continue
		case c.Works && task != "" && c.Task == task:
			fits = 3
		case c.Works:
			fits = 2
		}
		if fits >= best {
			id, best = c.request.ID, fits
		}
	}
	return id
}

func rootsResult(roots []string) json.RawMessage {
	list := make([][]byte, len(roots))
	for i, uri := range roots {
		list[i] = slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte{'}'})
	}
	return slices.Concat([]byte(`{"roots":`), jsonrpc.Array(list), []byte{'}'})
}

// notified handles a notification of the server. of is the call that it names.
func (s *sharedSession) notified(m *jsonrpc.Message, of *peer.Call) {
	if s.modern != nil {
		s.notifiedModern(m, of)
		return
	}
	switch m.Method {
	case mcp.MethodProgress: // of a call that has ended
		s.taskProgress(m)
	case mcp.MethodCancelled: // of a request that has ended
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		s.listChanged(m)
	case mcp.MethodResourceUpdated:
		s.updated(m)
	case mcp.MethodTaskStatus:
		s.taskStatus(m, of)
	case mcp.MethodElicited:
		s.elicitationDone(m)
	default:
		s.otherNotified(m, of)
	}
}

// notifyLocked passes a notification to the client, unless its initialize is not answered yet.
func (m *member) notifyLocked(n *jsonrpc.Message, related jsonrpc.ID) {
	if m.ready {
		m.put(&jsonrpc.Message{Method: n.Method, Params: n.Params, Extra: n.Extra, Related: related})
	}
}

// listChanged notifies all clients that a list has changed. The params may concern one client, and are left out if
// there are several principals.
func (s *sharedSession) listChanged(m *jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for member := range s.members {
		if s.users.others(member.holder.Who) {
			member.notifyLocked(&jsonrpc.Message{Method: m.Method}, jsonrpc.ID{})
		} else {
			member.notifyLocked(m, jsonrpc.ID{})
		}
	}
}

// updated notifies the clients that subscribed to this URI, or to one that it is part of. If there are several
// principals, these learn only that something there has changed: the URI may be of interest to one of them.
func (s *sharedSession) updated(m *jsonrpc.Message) {
	uri, ok := mcp.KeyOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		for holder, whole := range s.subs.Holders(uri) {
			n := m
			if whole != uri && s.users.others(holder.holder.Who) {
				n = jsonrpc.NewNotification(m.Method, mcp.URIParams(whole))
			}
			holder.notifyLocked(n, jsonrpc.ID{})
		}
	}
}

// elicitationDone notifies the client that was given the elicitation.
func (s *sharedSession) elicitationDone(m *jsonrpc.Message) {
	id, ok := mcp.KeyOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if member := s.elicited.byID[id]; ok && member != nil {
		member.notifyLocked(m, member.newest(""))
	}
}

// otherNotified handles log messages and vendor notifications. If one names a call or a task, it goes to its
// client. Otherwise it may contain anything that the server was ever told, and goes only to the clients of a
// principal that alone has told it anything.
func (s *sharedSession) otherNotified(m *jsonrpc.Message, of *peer.Call) {
	notes := mcp.Read(m)
	task, err := relatedTask(notes)
	if err != nil {
		return
	}
	logs := m.Method == mcp.MethodLog
	level := cmp.Or(levelIn(notes), infoLevel)
	s.mu.Lock()
	defer s.mu.Unlock()
	related := m.Related
	if id, named := notes.Named(); named {
		if m, of = s.namedLocked(m, id, of); m == nil {
			return
		}
		related = id
	}
	owner, id, said := s.ownerLocked(related, of, task)
	switch {
	case owner != nil:
		owner.notifyIfWantedLocked(m, id, logs, level)
	case said: // of a call or a task that has ended
	case s.users.several:
		s.dropLocked(m)
	default:
		for member := range s.members {
			if !s.users.others(member.holder.Who) {
				member.notifyIfWantedLocked(m, id, logs, level)
			}
		}
	}
}

// namedLocked returns a notification that names the call id with the client's own id and token, and the call; nil
// if that is over, or is none of a client. of is the call on whose stream the notification came. A task has the
// token of its call.
func (s *sharedSession) namedLocked(m *jsonrpc.Message, id jsonrpc.ID, of *peer.Call) (*jsonrpc.Message, *peer.Call) {
	c, _ := s.callNamed(m, of)
	if c == nil {
		s.taskToldLocked(m, id)
		return nil, nil
	}
	params, ok := c.params(m)
	if !ok {
		return nil, nil
	}
	return &jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra}, c.Call
}

// notifyIfWantedLocked passes on a message of the server, except for log messages below the client's level. As long as
// no client has set a level, the server decides which it sends.
func (m *member) notifyIfWantedLocked(n *jsonrpc.Message, id jsonrpc.ID, logs bool, level int) {
	if !logs || !m.s.level.wanted || level >= m.wantsLocked() {
		m.notifyLocked(n, id)
	}
}

// taskProgress passes progress of a task to its client under the client's own token, until the task ends.
func (s *sharedSession) taskProgress(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	id, _ := notes.ID(mcp.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.taskOfLocked(id); t != nil {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: notes.At(mcp.Key), With: t.token})
		t.by.put(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	}
}

// taskToldLocked passes a vendor notification with the token of a task to its client, until the task ends.
func (s *sharedSession) taskToldLocked(m *jsonrpc.Message, token jsonrpc.ID) {
	t := s.taskOfLocked(token)
	if t == nil {
		return
	}
	if params, ok := mcp.Read(m).As(jsonrpc.ID{}, t.token); ok {
		t.by.notifyLocked(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra}, jsonrpc.ID{})
	}
}

// taskOfLocked returns the running task that has a progress token of ours; nil for none.
func (s *sharedSession) taskOfLocked(token jsonrpc.ID) *task[*member] {
	n, ok := token.Answered()
	if !ok {
		return nil
	}
	return s.tasks.byToken[n]
}

// taskStatus passes the status of a task to its owner.
func (s *sharedSession) taskStatus(m *jsonrpc.Message, of *peer.Call) {
	_, id, ended := readTask(m.Params)
	if id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	owner, call, _ := s.ownerLocked(m.Related, of, id)
	if owner == nil {
		return
	}
	if ended {
		s.tasks.end(s.tasks.byID[id])
	}
	owner.notifyLocked(m, call)
}
