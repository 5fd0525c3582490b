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
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

const (
	// freeFailures is the number of failed starts in a row without a back-off: the first
	// restart is at once. freeDeaths is the same for servers that started and then died,
	// perhaps because of a client's call.
	freeFailures = 1
	freeDeaths   = 3

	// After commandFailures failed starts in a row, for which no client's message can be
	// the cause, a command is in back-off for all clients.
	commandFailures = 3

	// crashLoop is the number of failures in a row from which a server is reported to be
	// in a crash loop.
	crashLoop = 5

	// stableAfter is how long a server must live to reset its failures.
	stableAfter = 10 * time.Second

	// remembered is how long failures are kept without a stream: a client that has
	// left does not come back to its key.
	remembered = 5 * time.Minute
)

var errWaits = errors.New("waiting before the next start")

// A serverID identifies a sequence of servers: those of a key, an upstream and an era.
type serverID struct {
	upstream, key string
	era           mcp.Era
}

// session returns a prefix of the key, which tells clients apart in a log but is no key.
func (id serverID) session() string { return id.key[:min(len(id.key), 8)] }

// restarts are the restart states of all servers. The zero value is ready.
type restarts struct {
	hooks *observe.Hooks

	mu        sync.Mutex // guards the fields below, and those of what is in them
	all       map[serverID]*restart
	upstreams map[string]upstreamState
	turns     int // number of failures and first answers
}

// A restart is the restart state of one serverID, which outlives its streams: the failures
// in a row, and when the next start is allowed. Its fields are guarded by restarts.mu.
type restart struct {
	in *restarts
	id serverID

	streams int              // attached
	newest  func(st *Status) // describes the newest server, and sets the state if it lives; nil for none
	expire  *time.Timer      // set while streams is zero

	failures int                  // starts without an answer
	deaths   int                  // servers that died young
	end      *jsonrpc.ClosedError // the last of either
	turn     int                  // of end
	wait     backoff.ExponentialBackOff
	next     time.Time // of the earliest start
}

// An upstreamState is the restart state of an upstream, for all clients. A server that dies of a
// client's message is no failure here. Its fields are guarded by restarts.mu.
type upstreamState struct {
	answered int // turn of the last first answer; zero for none

	failures int                        // starts of the command since, in a row, that failed before it had read anything of a client's
	end      *jsonrpc.ClosedError       // the last of them
	wait     backoff.ExponentialBackOff // set with the first failure
	next     time.Time                  // of the earliest start
	tries    *restart                   // has started the command after the back-off, and has not ended
}

// An outcome is the meaning of a server's end for its restart state.
type outcome int

const (
	intended    outcome = iota // the stream was closed, or the host stops
	startFailed                // the server ended before it answered anything
	died                       // it ended later
	tried                      // it was only tried, and does not speak this era
)

// enter counts a stream in and returns its restart state. The error, made from the end of
// the last server, means that no server may be started yet.
func (rs *restarts) enter(id serverID) (*restart, *jsonrpc.ClosedError) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.all[id]
	if r == nil {
		r = &restart{in: rs, id: id, wait: newBackOff()}
		if rs.all == nil {
			rs.all, rs.upstreams = make(map[serverID]*restart), make(map[string]upstreamState)
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

// newBackOff returns a back-off whose waits grow to 10 to 30 s.
func newBackOff() backoff.ExponentialBackOff {
	return backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 20 * time.Second,
	}
}

// waitAfter returns the error of a stream that may start no server yet after an end.
func waitAfter(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	wait := jsonrpc.EndOf(end, jsonrpc.Cause{})
	wait.Delivered, wait.Err = false, errWaits
	return wait
}

// commandLocked returns an error if the command is in back-off for all clients. After the
// back-off, one start at a time finds out whether the command still fails.
func (r *restart) commandLocked() *jsonrpc.ClosedError {
	u := r.in.upstreams[r.id.upstream]
	switch {
	case u.failures < commandFailures:
		return nil
	case time.Now().Before(u.next):
		wait := waitAfter(u.end)
		fault, ok := errors.AsType[*process.StartError](u.end)
		wait.Lasting = !ok || fault.Fault != process.CannotRun // clients need not wait for the next start of a bad command
		return wait
	}
	u.tries, u.next = r, time.Now().Add(u.wait.NextBackOff())
	r.in.upstreams[r.id.upstream] = u
	return nil
}

// commandFailed counts a start that failed before the command had read anything of a client's.
func (r *restart) commandFailed(end *jsonrpc.ClosedError) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	u := r.in.upstreams[r.id.upstream]
	if u.failures == 0 {
		u.wait = newBackOff()
	}
	u.end, u.tries = end, nil
	if u.failures++; u.failures == commandFailures {
		u.next = time.Now().Add(u.wait.NextBackOff())
	}
	r.in.upstreams[r.id.upstream] = u
}

// leave counts a stream out. After the last one a state without failures is forgotten at
// once, any other after the time remembered.
func (r *restart) leave() {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if u := r.in.upstreams[r.id.upstream]; u.tries == r { // the start had no result
		u.tries, u.next = nil, time.Time{}
		r.in.upstreams[r.id.upstream] = u
	}
	if r.streams--; r.streams > 0 {
		return
	}
	if r.inARow() == 0 {
		delete(r.in.all, r.id)
		return
	}
	last := r.statusLocked()
	r.newest = func(st *Status) { st.Unusable, st.Stderr = last.Unusable, last.Stderr } // without the stream
	r.expire = time.AfterFunc(remembered, r.forget)
}

func (r *restart) forget() {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if r.streams == 0 && r.in.all[r.id] == r {
		delete(r.in.all, r.id)
	}
}

// started records the newest server.
func (r *restart) started(newest func(st *Status)) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.newest = newest
}

// ended counts the end of a server that lived for life. It returns the failures in a row.
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
		r.resetLocked() // its client has left, and no client will use the key again
	case end.Cause.Kind == jsonrpc.KindLogin: // no back-off: the login may come at any time
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

// answered records that a server has answered: earlier failures no longer count for the
// upstream, only for their keys.
func (r *restart) answered() {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.in.turns++
	r.in.upstreams[r.id.upstream] = upstreamState{answered: r.in.turns}
}

// setEvent gives the last end of a server the event that it shares with others.
func (r *restart) setEvent(end *jsonrpc.ClosedError, event string) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	end.Event = event
}

// observed describes the server for hooks.
func (r *restart) observed() observe.Upstream {
	return observe.Upstream{Name: r.id.upstream, Session: r.id.session(), Era: string(r.id.era)}
}

// tellStart calls the hook for a server that is about to be started.
func (r *restart) tellStart() {
	if tell := r.in.hooks.UpstreamStarted; tell != nil {
		seen := r.observed()
		r.in.mu.Lock()
		seen.Failures = r.inARow()
		r.in.mu.Unlock()
		tell(seen)
	}
}

// tellEnd calls the hook for the end of a server.
func (r *restart) tellEnd(how outcome, end *jsonrpc.ClosedError, life time.Duration) {
	tell := r.in.hooks.UpstreamEnded
	if tell == nil {
		return
	}
	told := observe.End{Took: life, Outcome: observe.OK}
	if how == startFailed || how == died {
		told.Outcome, told.Cause, told.Event = observe.Failed, end.Cause.Kind.String(), end.Event
	}
	tell(r.observed(), told)
}

// reset forgets the failures of upstreams that were replaced.
func (rs *restarts) reset(upstreams []string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for id, r := range rs.all {
		if slices.Contains(upstreams, id.upstream) {
			r.resetLocked()
		}
	}
	for _, name := range upstreams {
		delete(rs.upstreams, name)
	}
}

func (r *restart) resetLocked() {
	r.failures, r.deaths, r.next = 0, 0, time.Time{}
	r.wait.Reset()
}

func (r *restart) inARow() int { return r.failures + r.deaths }

// status returns the Status of each serverID that is in use or remembered.
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
		if r.turn > r.in.upstreams[r.id.upstream].answered {
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
		r.newest(&st)
	}
	if !st.Lives() {
		st.PID, st.Started, st.InFlight = 0, time.Time{}, 0
	}
	return st
}
