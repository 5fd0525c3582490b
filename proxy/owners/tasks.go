package owners

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// An Upstream is a session's connection to an upstream.
type Upstream interface {
	comparable
	IsHungUp() bool // it gets no more requests; what was on the way is not recorded
}

// Bounds of the remembered tasks of one side.
const (
	maxTasks     = 10000
	maxTaskBytes = 1 << 20
)

// A Task is a request that continues after its answer.
type Task[U Upstream] struct {
	ID   string // the client's
	Own  string // the upstream's, if that runs it
	Tool string // the tool that it calls, by the upstream's name; "" if unknown
	Conn U      // that runs it, or that asked the client for it

	Unfinished  bool      // as far as is known, and only if it began in this session
	Uncollected time.Time // when it ended, if its client has not asked for the result since; else zero

	// The progress token of the request stays valid until the task ends (2025-11-25
	// basic/utilities/tasks). Key is the token on the side that runs the task, Token the one that
	// the other side chose; nil for none.
	Key   TokenKey[U]
	Token json.RawMessage
}

// A TokenKey is a progress token of the session, for an upstream or, if Conn is zero, for the client.
type TokenKey[U Upstream] struct {
	Conn U
	N    int64
}

// Tasks are the remembered tasks of one side. The zero Tasks are none.
type Tasks[U Upstream] struct {
	mu      sync.Mutex // guards the fields below, and the tasks; nothing else is locked under it
	byID    map[string]*Task[U]
	byToken map[TokenKey[U]]*Task[U]
	order   []string // oldest first, which is forgotten first
	bytes   int
}

// size returns the bytes that count in Tasks.bytes.
func (x *Task[U]) size() int { return len(x.ID) + len(x.Own) + len(x.Tool) + len(x.Token) }

// IsTooLong reports whether the name of a task is too long to be used in a request.
func IsTooLong(name string) bool { return mcp.IsTooLong(jsonrpc.Quote(name)) }

// Add remembers x, or a new upstream of x.
func (t *Tasks[U]) Add(x Task[U]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.byID[x.ID]
	switch {
	case x.Conn.IsHungUp(), IsTooLong(x.ID): // the answer was on the way; or the client chose the name
		return
	case known != nil && known.Conn == x.Conn && x.Token == nil && !x.Unfinished && x.Tool == "": // it is not a new one with the same id
		return
	case known != nil:
		t.removeLocked(known)
	default:
		t.order = append(t.order, x.ID)
	}
	if t.byID == nil {
		t.byID, t.byToken = make(map[string]*Task[U]), make(map[TokenKey[U]]*Task[U])
	}
	t.byID[x.ID] = &x
	t.bytes += x.size()
	if x.Token != nil {
		t.byToken[x.Key] = &x
	}
	for len(t.order) > maxTasks || t.bytes > maxTaskBytes {
		t.removeLocked(t.byID[t.order[0]])
		t.order = t.order[1:]
	}
}

func (t *Tasks[U]) removeLocked(x *Task[U]) {
	delete(t.byID, x.ID)
	delete(t.byToken, x.Key)
	t.bytes -= x.size()
}

// Get returns the task with an id, the zero task if there is none.
func (t *Tasks[U]) Get(id string) Task[U] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *cmp.Or(t.byID[id], &Task[U]{})
}

// GetByToken returns the task with a progress token, the zero task if there is none.
func (t *Tasks[U]) GetByToken(key TokenKey[U]) Task[U] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *cmp.Or(t.byToken[key], &Task[U]{})
}

// End forgets the progress token of a task that ended, but not the task. collected says that the client has its result.
func (t *Tasks[U]) End(u U, id string, collected bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.byID[id]; x != nil && x.Conn == u {
		if collected {
			x.Uncollected = time.Time{}
		} else if x.Unfinished {
			x.Uncollected = time.Now()
		}
		delete(t.byToken, x.Key)
		t.bytes -= len(x.Token)
		x.Token, x.Unfinished = nil, false
	}
}

// Forget forgets the tasks of an upstream that was hung up.
func (t *Tasks[U]) Forget(u U) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byID {
		if x.Conn == u {
			t.removeLocked(x)
		}
	}
	t.order = slices.DeleteFunc(t.order, func(id string) bool { return t.byID[id] == nil })
}

// collectTime is how long a client may take to ask for the result of a task that has ended: it may poll.
const collectTime = 5 * time.Second

// HaveUnfinished reports whether an upstream may still work on a task, or has just ended one whose result is not
// collected.
func (t *Tasks[U]) HaveUnfinished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.byID {
		if x.Unfinished || !x.Uncollected.IsZero() && time.Since(x.Uncollected) < collectTime {
			return true
		}
	}
	return false
}

// IsUnfinishedAt reports whether a task of an upstream, or one that it asked for, is unfinished.
func (t *Tasks[U]) IsUnfinishedAt(u U) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.order, func(id string) bool {
		x := t.byID[id]
		return x != nil && x.Unfinished && x.Conn == u
	})
}
