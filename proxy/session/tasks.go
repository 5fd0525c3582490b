package session

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// maxTasks bounds how many tasks of one client are remembered.
const maxTasks = 10000

// A task is a request that was accepted and goes on after its answer.
type task struct {
	id   string        // as the client has it
	own  string        // as the upstream has it, if that runs it
	tool string        // that it is of, by its name there; "" if that is not known
	conn *upstreamConn // the upstream that runs it, or that has asked the client for it

	unfinished bool // as far as is known, and only if it began here

	// The progress token of the request stays valid until the task ends
	// (2025-11-25 basic/utilities/tasks). key is the token on the side that
	// runs the task, token the one that the other side chose; nil for none.
	key   tokenKey
	token json.RawMessage
}

// A tokenKey is a progress token that was minted here, for an upstream or, if that is nil,
// for the client.
type tokenKey struct {
	conn *upstreamConn
	n    int64
}

// tasks remembers the tasks that one side runs.
type tasks struct {
	mu      sync.Mutex // guards the fields below, and the tasks; nothing else is locked under it
	byID    map[string]*task
	byToken map[tokenKey]*task
	order   []string // the oldest, which is forgotten first, first
}

// add remembers x, or that x belongs to another upstream now.
func (t *tasks) add(x task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.byID[x.id]
	switch {
	case x.conn.isHungUp(): // its answer was on the way when it went
		return
	case known != nil && known.conn == x.conn && x.token == nil:
		return
	case known != nil:
		delete(t.byToken, known.key)
	default:
		if len(t.order) >= maxTasks {
			oldest := t.byID[t.order[0]]
			delete(t.byToken, oldest.key)
			delete(t.byID, oldest.id)
			t.order = t.order[1:]
		}
		t.order = append(t.order, x.id)
	}
	put(&t.byID, x.id, &x)
	if x.token != nil {
		put(&t.byToken, x.key, &x)
	}
}

// get returns the task of an id; none is the zero task.
func (t *tasks) get(id string) task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *orDefault(t.byID[id], &task{})
}

// getByToken returns the task that has a progress token; none is the zero task.
func (t *tasks) getByToken(key tokenKey) task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *orDefault(t.byToken[key], &task{})
}

// end lets go of the progress token of a task that ended. The task itself can still be
// asked for.
func (t *tasks) end(u *upstreamConn, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.byID[id]; x != nil && x.conn == u {
		delete(t.byToken, x.key)
		x.token, x.unfinished = nil, false
	}
}

// forget forgets the tasks of an upstream that was hung up.
func (t *tasks) forget(u *upstreamConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byID, func(_ string, x *task) bool { return x.conn == u })
	maps.DeleteFunc(t.byToken, func(_ tokenKey, x *task) bool { return x.conn == u })
	t.order = slices.DeleteFunc(t.order, func(id string) bool { return t.byID[id] == nil })
}

// haveUnfinished reports whether an upstream still works on a task.
func (t *tasks) haveUnfinished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byID {
		if x.unfinished {
			return true
		}
	}
	return false
}

// taskName returns what the client calls a task of the upstream.
func (u *upstreamConn) taskName(id string) string {
	name := catalog.TaskName(u.up.Name, id)
	for _, given := range []string{id, name} {
		if x := u.s.tasks.get(given); x.conn == u && x.own == id {
			return given
		}
	}
	if u.s.upstreams.of(u.era).only() != nil {
		return id
	}
	return name
}

// runner returns the upstream that runs a task, by the client's name for it, and the
// upstream's own name for it; nil if that is not known. If the task is not remembered, the
// longest name of an upstream that its name begins with counts.
func (set *upstreamSet) runner(name string) (found *upstreamConn, own string) {
	if x := set.s.tasks.get(name); x.conn != nil && x.conn.era == set.era {
		return x.conn, x.own
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

// ownTask returns what the upstream itself calls a task of its own.
func (u *upstreamConn) ownTask(name string) string {
	if runner, own := u.s.upstreams.of(u.era).runner(name); runner == u {
		return own
	}
	return name
}
