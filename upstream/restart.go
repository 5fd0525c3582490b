package upstream

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

const (
	// freeFailures start failures in a row cost no waiting: the first restart is
	// at once. A server that did start and then died gets more credit, since a
	// call of its client may be what it died of.
	freeFailures = 1
	freeDeaths   = 3

	// A command that failed to start so often in a row, and not because of what a client
	// sent, waits for all clients: it would fail for the next one, too.
	commandFailures = 3

	// A server with that many failures in a row is in a crash loop. Nothing
	// changes for it, but it is said.
	crashLoop = 5

	// stableAfter is how long a server must live to be forgiven.
	stableAfter = 10 * time.Second

	// remembered is how long failures are kept without a stream: a client that has
	// left does not come back to its key.
	remembered = 5 * time.Minute
)

var errWaits = errors.New("waiting before the next start")

// A serverID names the servers that follow one another: those that a key has of an
// upstream in one era.
type serverID struct {
	upstream, key string
	era           mcp.Era
}

// session returns enough of the key to tell clients apart in a log, and too little to
// be one.
func (id serverID) session() string { return id.key[:min(len(id.key), 8)] }

// restarts are the restart states of all servers. The zero value is ready.
type restarts struct {
	hooks *observe.Hooks // nil for none

	mu    sync.Mutex // guards the fields below, and those of each restart
	all   map[serverID]*restart
	turns int            // failures and first answers so far
	up    map[string]int // the turn of the last first answer, by upstream

	commands map[string]*commandState // by upstream; none of one that has answered since it failed
}

// A restart is the restart state of one server, which outlives the streams that come
// and go: the failures in a row, and when the next start is allowed. Its fields are
// guarded by restarts.mu.
type restart struct {
	in *restarts
	id serverID

	streams int            // attached
	newest  statusReporter // on the newest server that was started; nil for none
	expire  *time.Timer    // set while streams is zero

	failures int                  // starts that did not come to an answer
	deaths   int                  // servers that died young
	end      *jsonrpc.ClosedError // the last of either
	turn     int                  // of that
	wait     backoff.ExponentialBackOff
	next     time.Time // no start before
}

// A commandState is the restart state of a command, whoever it is started for: the starts in
// a row that failed before it had read anything of a client's. One client's message that a
// server dies of does not count. Its fields are guarded by restarts.mu.
type commandState struct {
	failures int
	end      *jsonrpc.ClosedError // the last of them
	wait     backoff.ExponentialBackOff
	next     time.Time // no start before
	tries    *restart  // has started the command since it failed, and has not come to an end
}

// An outcome is what the end of a server means for its restart state.
type outcome int

const (
	intended    outcome = iota // the stream was closed, or the host stops
	startFailed                // it ended before it answered anything
	died                       // it ended later
	tried                      // it does not speak this era, which nobody had promised
)

// enter counts a stream in and returns its restart state. With an error, the end that
// the last server came to, the stream has to wait before it starts another.
func (rs *restarts) enter(id serverID) (*restart, *jsonrpc.ClosedError) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.all[id]
	if r == nil {
		r = &restart{in: rs, id: id, wait: newBackOff()}
		if rs.all == nil {
			rs.all = make(map[serverID]*restart)
		}
		rs.all[id] = r
	}
	if r.expire != nil {
		r.expire.Stop()
		r.expire = nil
	}
	r.streams++
	if time.Now().Before(r.next) {
		return r, waitAfter(r.end)
	}
	return r, r.commandLocked()
}

func newBackOff() backoff.ExponentialBackOff {
	return backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
	}
}

// waitAfter returns what is said to a stream that has to wait after an end.
func waitAfter(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	wait := jsonrpc.EndOf(end, jsonrpc.Cause{})
	wait.Delivered, wait.Err = false, errWaits
	return wait
}

// commandLocked returns why no client may start its upstream's command now; nil if one may.
// While the command fails, one start at a time finds out whether it still does.
func (r *restart) commandLocked() *jsonrpc.ClosedError {
	c := r.in.commands[r.id.upstream]
	switch {
	case c == nil || c.failures < commandFailures:
		return nil
	case time.Now().Before(c.next):
		wait := waitAfter(c.end)
		wait.Lasting = true // no client needs to wait for the next start
		return wait
	}
	c.tries, c.next = r, time.Now().Add(c.wait.NextBackOff())
	return nil
}

// commandFailed counts a start that failed before the command had read anything of a client's.
func (r *restart) commandFailed(end *jsonrpc.ClosedError) {
	rs := r.in
	rs.mu.Lock()
	defer rs.mu.Unlock()
	c := rs.commands[r.id.upstream]
	if c == nil {
		c = &commandState{wait: newBackOff()}
		if rs.commands == nil {
			rs.commands = make(map[string]*commandState)
		}
		rs.commands[r.id.upstream] = c
	}
	c.end, c.tries = end, nil
	if c.failures++; c.failures == commandFailures {
		c.next = time.Now().Add(c.wait.NextBackOff())
	}
}

// leave counts a stream out. What has nothing to remember is forgotten at once, all
// else after a while.
func (r *restart) leave() {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if c := r.in.commands[r.id.upstream]; c != nil && c.tries == r { // it found out nothing
		c.tries, c.next = nil, time.Time{}
	}
	if r.streams--; r.streams > 0 {
		return
	}
	if r.inARow() == 0 {
		delete(r.in.all, r.id)
		return
	}
	last := r.statusLocked()
	r.newest = &last // keep no stream alive
	r.expire = time.AfterFunc(remembered, r.forget)
}

func (r *restart) forget() {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if r.streams == 0 && r.in.all[r.id] == r {
		delete(r.in.all, r.id)
	}
}

// started notes the newest server.
func (r *restart) started(newest statusReporter) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.newest = newest
}

// ended counts the end of a server that lived for life. It returns the number of
// failures in a row.
func (r *restart) ended(how outcome, end *jsonrpc.ClosedError, life time.Duration) int {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if how == tried {
		return r.inARow()
	}
	r.end = end
	r.in.turns++
	r.turn = r.in.turns
	switch {
	case how == intended:
		r.resetLocked() // its client has left: nobody will come back to the key
	case end.Cause.Kind == jsonrpc.KindLogin: // which may be done at any time, and nothing runs before
		r.failures, r.next = r.failures+1, time.Time{}
		return r.inARow()
	case how == died && life >= stableAfter:
		r.resetLocked()
	case how == died:
		r.deaths++
	default:
		r.failures++
	}
	if r.failures > freeFailures || r.deaths > freeDeaths {
		r.next = time.Now().Add(r.wait.NextBackOff())
	}
	return r.inARow()
}

// answered notes that a server has answered: what failed before is over for the upstream,
// though not for the keys that it happened to.
func (r *restart) answered() {
	rs := r.in
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.up == nil {
		rs.up = make(map[string]int)
	}
	rs.turns++
	rs.up[r.id.upstream] = rs.turns
	delete(rs.commands, r.id.upstream)
}

// setEvent gives the last end of a server the event that it shares with others.
func (r *restart) setEvent(end *jsonrpc.ClosedError, event string) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	end.Event = event
}

// observed is a server as hooks are told of it.
func (r *restart) observed() observe.Upstream {
	return observe.Upstream{Name: r.id.upstream, Session: r.id.session(), Era: string(r.id.era)}
}

// tellStart tells the hooks of a server that is about to be started.
func (r *restart) tellStart() {
	if h := r.in.hooks; h != nil && h.UpstreamStarted != nil {
		seen := r.observed()
		r.in.mu.Lock()
		seen.Failures = r.inARow()
		r.in.mu.Unlock()
		h.UpstreamStarted(seen)
	}
}

// tellEnd tells the hooks of the end of one.
func (r *restart) tellEnd(how outcome, end *jsonrpc.ClosedError, life time.Duration) {
	h := r.in.hooks
	if h == nil || h.UpstreamEnded == nil {
		return
	}
	told := observe.End{Took: life, Outcome: observe.OK}
	if how == startFailed || how == died {
		told.Outcome, told.Cause, told.Event = observe.Failed, end.Cause.Kind.String(), end.Event
	}
	h.UpstreamEnded(r.observed(), told)
}

// reset forgets the failures of upstreams that were replaced: what failed was another.
func (rs *restarts) reset(upstreams []string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for id, r := range rs.all {
		if slices.Contains(upstreams, id.upstream) {
			r.resetLocked()
		}
	}
	for _, name := range upstreams {
		delete(rs.up, name)
		delete(rs.commands, name)
	}
}

func (r *restart) resetLocked() {
	r.failures, r.deaths, r.next = 0, 0, time.Time{}
	r.wait.Reset()
}

func (r *restart) inARow() int { return r.failures + r.deaths }

// status returns what is known of each server that is in use or remembered.
func (rs *restarts) status() []Status {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	all := make([]Status, 0, len(rs.all))
	for _, r := range rs.all {
		all = append(all, r.statusLocked())
	}
	return all
}

func (r *restart) statusLocked() Status {
	st := Status{
		Upstream: r.id.upstream, Key: r.id.key, Era: r.id.era,
		State: StateReady, Failures: r.inARow(), Next: r.next,
	}
	if st.Failures > 0 {
		st.Cause, st.Says, st.Event, st.Err = r.end.Cause.String(), r.end.Words(), r.end.Event, r.end.Err
		if r.turn > r.in.up[r.id.upstream] {
			st.Failed = r.turn
		}
	}
	switch {
	case r.inARow() >= crashLoop && r.end.Cause.Kind != jsonrpc.KindLogin:
		st.State = StateCrashLoop
	case time.Now().Before(r.next):
		st.State = StateWaiting
	}
	if r.newest != nil {
		r.newest.addStatus(&st)
	}
	if !st.Lives() {
		st.PID, st.Started, st.InFlight = 0, time.Time{}, 0
	}
	return st
}
