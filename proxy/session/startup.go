package session

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// maxStart is how long upstreams may hold the client's initialize, whatever they
// are waiting for, if nothing else is said: hosts give up after 10 s.
const maxStart = 8 * time.Second

func (p *Router) maxStart() time.Duration { return cmp.Or(p.MaxStart, maxStart) }

// startTimeout is how long an upstream may hold the client's initialize.
func (p *Router) startTimeout(u *Upstream) time.Duration {
	return min(cmp.Or(u.StartTimeout, 30*time.Second), p.maxStart())
}

// startAll starts, at once, all upstreams that the client may see, and those that become known
// meanwhile. r is an initialize or a server/discover. startAll waits for each upstream within its
// startTimeout, and returns what those said that were in time. It waits for an upstream that was late
// before only if no other says anything; then one is enough. The failure says why a sole upstream
// cannot be started.
func (s *session) startAll(ctx context.Context, r *request) (map[*upstreamConn]json.RawMessage, *lists.Failure) {
	ctx, cancel := context.WithTimeout(ctx, s.router.maxStart())
	defer cancel()
	st := &startup{
		s: s, method: r.Method, who: r.listClient(), meta: r.notes.Raw(mcp.InMeta),
		begun: make(map[*upstreamConn]bool), answers: make(chan started),
		results: make(map[*upstreamConn]json.RawMessage), failed: make(map[*upstreamConn]*lists.Failure),
	}
	var begun *upstreamSet
	for {
		set := s.upstreams.of(r.era).visibleTo(r.grant)
		unknown := !set.settled && !s.router.memory.WasLate("", lists.Starts)
		if set != begun { // not with each answer: that would look at all upstreams once for each of them
			st.begin(ctx, set, false)
			begun = set
		}
		if st.open == 0 && !unknown && len(st.results) == 0 {
			unknown = !set.settled
			st.begin(ctx, set, true)
		}
		if st.over() && !unknown {
			if s.upstreams.of(r.era).visibleTo(r.grant) == set {
				return st.results, st.failed[set.only()]
			}
			continue
		}
		select {
		case a := <-st.answers:
			st.take(a)
		case <-set.replaced:
		case <-ctx.Done():
			if lists.TimedOut(ctx) && !set.settled {
				s.router.memory.NoteLate("", lists.Starts)
			}
			return st.results, st.failed[set.only()]
		}
	}
}

// A startup is the upstreams that startAll starts.
type startup struct {
	s       *session
	method  string                 // of the request that they answer; see lists.Starts
	who     lists.Client           // for whom
	meta    json.RawMessage        // of the request
	begun   map[*upstreamConn]bool // has all that were started; true for those that are waited for
	answers chan started           // to startAll, while it waits; never closed
	open    int                    // waited for, and have not answered yet
	tardy   int                    // likewise, of those that were late before
	results map[*upstreamConn]json.RawMessage
	failed  map[*upstreamConn]*lists.Failure
}

// A started is how a start has ended.
type started struct {
	conn   *upstreamConn
	tardy  bool
	result json.RawMessage
	failed *lists.Failure
}

// over reports whether all were waited for.
func (st *startup) over() bool { return st.open == 0 && (st.tardy == 0 || len(st.results) > 0) }

func (st *startup) take(a started) {
	if a.tardy {
		st.tardy--
	} else {
		st.open--
	}
	if a.result != nil {
		st.results[a.conn] = a.result
	}
	if a.failed != nil {
		st.failed[a.conn] = a.failed
	}
}

// begin starts the upstreams that were not started yet. Those that were late before are waited for
// only if tardy is true.
func (st *startup) begin(ctx context.Context, set *upstreamSet, tardy bool) {
	for _, u := range set.conns {
		waits, seen := st.begun[u]
		if waits || seen && !tardy {
			continue
		}
		late := u.lists.IsLate(st.method)
		if late && !tardy {
			st.begun[u] = false
			st.beginAside(u)
		} else {
			st.begun[u] = true
			if late {
				st.tardy++
			} else {
				st.open++
			}
			st.s.wg.Go(func() { st.ask(ctx, u, late) })
		}
	}
}

// beginAside starts an upstream that nobody waits for.
func (st *startup) beginAside(u *upstreamConn) {
	if u.lists.IsIdle() {
		u.lists.Try(lists.Client{})
		return
	}
	u.WakeUp()
	if u.era == mcp.Modern {
		u.lists.Aside(st.method, func(ctx context.Context) { _, _ = u.describe(ctx, st.who, st.meta) })
	}
}

// ask starts one upstream, within its own startTimeout.
func (st *startup) ask(ctx context.Context, u *upstreamConn, tardy bool) {
	within, cancel := context.WithTimeout(ctx, st.s.router.startTimeout(u.up))
	defer cancel()
	said, failed := st.insist(within, u)
	if said == nil && failed == nil && lists.TimedOut(within) && u.ctx.Err() == nil {
		u.lists.NoteLate(st.method)
		u.log.Info("upstream is still starting; the client continues without it")
	}
	select {
	case st.answers <- started{u, tardy, said, failed}:
	case <-ctx.Done():
	}
}

// insist starts one upstream. It starts a sole one again if that may help: nobody else can
// answer.
func (st *startup) insist(ctx context.Context, u *upstreamConn) (json.RawMessage, *lists.Failure) {
	var before failedStarts
	for {
		said, f := u.describe(ctx, st.who, st.meta)
		if f == nil || ctx.Err() != nil || st.s.upstreams.of(u.era).only() != u || !u.state().reached {
			return said, nil
		}
		pause, again := before.next(f.Wire)
		if deadline, _ := ctx.Deadline(); !again || time.Until(deadline) <= pause {
			return nil, f
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, f
		}
	}
}

// failedStarts are the starts of a sole upstream that failed within one wait.
type failedStarts struct {
	count int
	event string // of the last one
}

const (
	maxFailed = 2

	// lookAgain is how often a start is tried while the host waits before the next one.
	lookAgain = 250 * time.Millisecond
)

// next reports whether another start may help after one that failed, and after what pause.
// If the event is that of the last failure there was no start: the host waits before the
// next one.
func (f *failedStarts) next(wire json.RawMessage) (pause time.Duration, again bool) {
	data := jsonrpc.ReadErrorData(wire)
	if data.Event != "" && data.Event == f.event {
		return lookAgain, true
	}
	f.event = data.Event
	f.count++
	return 0, data.Retryable && f.count < maxFailed
}
