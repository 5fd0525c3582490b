package session

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A listing is what one upstream offers of one kind.
type listing struct {
	offered bool // the upstream has such a list
	prefix  string
	entries []entry
	rest    []member
	caching cachings
	digest  digest
}

// list returns the handler that merges one kind of list.
func list(k kind) func(*session, *call) {
	return func(s *session, c *call) {
		raw, meta, err := readList(c.msg.Params)
		if err != nil {
			s.fail(c, invalidParams(err.Error()))
			return
		}
		at, ok := parseCursor(raw)
		snap := s.snapshot(c.view, k)
		switch {
		case ok && at.from > 0 && snap.holds(at):
			s.settleNow(c, jsonrpc.NewResult(c.id, snap.page(k, at.from, s.p.PageSize)))
		case !ok || at.from > 0 && c.era == mcp.Legacy: // it was of this session or of none
			s.fail(c, unknownCursor)
		default:
			s.work(c, func(ctx context.Context) { s.listAnew(ctx, c, k, pageOf{at, asker{c.view, meta}}) })
		}
	}
}

// readList reads the params of a list request; a cursor of null is none.
func readList(params json.RawMessage) (cursor, meta json.RawMessage, err error) {
	var at [2]jsonrpc.Span
	if err = jsonrpc.Find(params, jsonrpc.Span{}, at[:], "cursor", "_meta"); err == nil {
		_, err = findToken(params)
	}
	if cursor = at[0].Of(params); string(cursor) == "null" {
		cursor = nil
	}
	return cursor, at[1].Of(params), err
}

// A pageOf is which page of a list is asked for, and by whom.
type pageOf struct {
	at  cursor
	who asker
}

// listAnew merges the upstreams' lists anew. One that is dead or late is left
// out; if all that could offer anything failed it is an error, never an empty
// success. A cursor of the modern era may be older than what is known of lists
// here: it is good as long as the list is the same ("Servers SHOULD provide stable
// cursors", and MUST NOT rely on prior requests).
func (s *session) listAnew(ctx context.Context, c *call, k kind, want pageOf) {
	listings, caching, failure := s.listAll(ctx, c.era, k, want.who)
	if c.era == mcp.Legacy {
		s.mu.Lock()
		s.shown[k] = true // a failure, too: whoever comes later is a change
		s.mu.Unlock()
	}
	if ctx.Err() != nil { // nobody wants to know
		return
	}
	if failure != nil {
		s.settle(c, &jsonrpc.Message{ID: c.id, Error: failure.wire})
		return
	}
	snap := s.merge(k, listings)
	if c.era == mcp.Modern {
		if c.upstreams.only() == nil {
			snap.rest = s.signed(snap.rest)
		}
		snap.rest = append(snap.rest, caching.members()...)
	}
	s.keepSnapshot(c.view, k, snap)
	if want.at.from > 0 && !snap.holds(want.at) {
		s.fail(c, unknownCursor)
		return
	}
	s.settle(c, jsonrpc.NewResult(c.id, snap.page(k, want.at.from, s.p.PageSize)))
}

// listAll returns what each upstream that offers the kind lists, in config
// order, and how all of it may be kept; if not one could list, the first failure.
// Upstreams that are not known yet have failed, but if no other answers they are
// waited for, too.
func (s *session) listAll(ctx context.Context, era mcp.Era, k kind, who asker) ([]listing, caching, *failure) {
	patience, cancel := context.WithTimeout(ctx, s.p.listTimeout())
	defer cancel()
	for {
		set, asOf := s.wants(era, k)
		found, failed := gather(ctx, set, kindInfo[k].method, all,
			func(ctx context.Context, u *upstreamConn) (*listing, *failure) { return u.list(ctx, k, who) })
		if ctx.Err() != nil {
			return nil, caching{}, nil // cancelled: nobody wants to know
		}
		m := s.mergeParts(set, k, who, asOf, found, failed)
		if m.answered || set.settled {
			return m.result()
		}
		select {
		case <-set.replaced:
		case <-patience.Done():
			return m.result()
		}
	}
}

// A merging is what upstreams list together.
type merging struct {
	listings []listing
	caching  cachings
	failure  *failure // the first
	offered  bool     // somebody has such a list
	answered bool     // somebody could say
}

func (m *merging) result() ([]listing, caching, *failure) {
	if m.failure != nil && !m.offered {
		return nil, caching{}, m.failure
	}
	return m.listings, m.caching.merged, nil
}

// mergeParts puts together what upstreams said. One that starts stands in with what
// anybody saw of it last.
func (s *session) mergeParts(set *upstreamSet, k kind, who asker, asOf int, found []*listing, failed []*failure) *merging {
	m := new(merging)
	for i, u := range set.conns {
		li := found[i]
		f := failed[i]
		m.answered = m.answered || f == nil || f.unsupported
		if f != nil {
			li = u.standIn(k, who, f)
			m.failed(f)
		}
		if li == nil {
			if !f.unsupported {
				u.leftOut(kindInfo[k].method, f)
			}
			u.showed(k, emptyDigest, asOf)
			continue
		}
		u.showed(k, li.digest, asOf)
		li.prefix = set.prefix(k, i)
		m.offered = m.offered || li.offered
		m.listings = append(m.listings, *li)
		if f == nil && li.offered {
			m.caching.add(li.caching.merged)
		}
	}
	if err := set.unreached(); err != nil {
		m.failed(ownFailure(err))
	}
	return m
}

// failed notes that a part is missing. An upstream that has no such list misses none.
func (m *merging) failed(f *failure) {
	if !f.unsupported {
		m.caching.partial()
	}
	if m.failure == nil || m.failure.unsupported && !f.unsupported {
		m.failure = f
	}
}

// standIn returns what stands in a merged list for an upstream that is missing, nil for
// nothing, and sees to it that the client hears of it later.
func (u *upstreamConn) standIn(k kind, who asker, f *failure) *listing {
	if !f.late {
		return nil
	}
	u.missedList(k, who, f)
	t := u.lastTable(who.view, k)
	if t == nil {
		return nil
	}
	li := &listing{digest: t.digest}
	for _, e := range t.entries {
		if k != tools || u.up.allows(e.name) {
			li.entries = append(li.entries, e)
		}
	}
	li.offered = len(li.entries) > 0
	return li
}

// wants notes that the client asks for a merged list, and returns whose. What is
// announced from here on, the client has to ask for again: see showed. In the
// modern era a client hears of changes only if it listens.
func (s *session) wants(era mcp.Era, k kind) (set *upstreamSet, asOf int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if era == mcp.Legacy {
		s.wanted[k] = true
	}
	return s.upstreamsLocked(era), s.announced
}

// showed notes what of this upstream the client sees in a merged list, which it
// asked for when session.announced was asOf.
func (u *upstreamConn) showed(k kind, digest digest, asOf int) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.shown[k] = digest
	if u.announced[k] <= asOf {
		u.announced[k] = 0
	}
}

// list asks one upstream for one kind of list and keeps the table. An upstream
// that does not offer the kind lists nothing; if it is the only one, it speaks
// for itself.
func (u *upstreamConn) list(ctx context.Context, k kind, who asker) (*listing, *failure) {
	if err := u.start(ctx); err != nil {
		return nil, ownFailure(err)
	}
	u.s.mu.Lock()
	version, only := u.version[k], u.s.upstreamsLocked(u.era).only() == u
	u.s.mu.Unlock()
	// In the modern era every list can be asked for: what has been discovered by
	// chance must not change the answer.
	li := &listing{offered: only || u.era == mcp.Modern || u.offers(kindInfo[k].capability)}
	var all collection
	var f *failure
	if li.offered {
		all, f = u.pages(ctx, kindInfo[k].method, kindInfo[k].member, who.meta)
	}
	if f != nil && !f.unsupported {
		return nil, f
	}
	t := u.s.p.keepTable(u.tableKey(who.view.caps, k), u.index(k, all.elements))
	li.entries, li.rest, li.caching, li.digest = t.entries, all.rest, all.caching, t.digest
	u.keep(who.view, k, t, version)
	return li, f
}

// keep makes t the table of a view. It is out of date already if a change was told
// while the upstream listed.
func (u *upstreamConn) keep(w *view, k kind, t *table, version int) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	c := u.catalogLocked(w)
	c.tables[k], c.listed[k] = t, version
	if u.era == mcp.Modern {
		c.listedAt[k] = time.Now()
	}
}

// refresh lists what is not known yet, or known to have changed, on the given
// upstream connections, so that a name or URI can be looked up. Nobody is waited for who was late
// before: a call of what is known waits, a look at what is not does not.
func (set *upstreamSet) refresh(ctx context.Context, who asker, want func(*upstreamConn) bool, ks ...kind) {
	set.fanOut(ctx, want, func(within context.Context, _ int, u *upstreamConn) {
		for _, k := range ks {
			method := kindInfo[k].method
			if u.late(method) {
				continue
			}
			if !u.freshen(within, k, who) {
				if late(within) && ctx.Err() == nil {
					u.noteLate(method)
				}
				return
			}
		}
	})
}

// A listRun is a refresh of one table that is under way. Whoever needs the same
// table meanwhile waits for it: many calls at once do not list as many times.
type listRun struct {
	of   *catalog
	done chan struct{}
	ok   bool // of done: the table is fresh
	gone bool // of done: who listed was not to wait any longer
}

// freshen lists a kind if what is known of it is stale, and reports whether it is
// fresh now: the upstream may be down, or too slow.
func (u *upstreamConn) freshen(ctx context.Context, k kind, who asker) bool {
	for {
		u.s.mu.Lock()
		if !u.staleLocked(who.view, k) {
			u.s.mu.Unlock()
			return true
		}
		known := u.catalogLocked(who.view)
		run := known.listing[k]
		if run == nil {
			run = &listRun{of: known, done: make(chan struct{})}
			known.listing[k] = run
			u.s.mu.Unlock()
			return u.listFor(ctx, k, who, run)
		}
		u.s.mu.Unlock()
		select {
		case <-run.done:
		case <-ctx.Done():
			return false
		}
		if !run.gone {
			return run.ok
		}
	}
}

// listFor lists a kind for all who wait for run.
func (u *upstreamConn) listFor(ctx context.Context, k kind, who asker, run *listRun) bool {
	li, _ := u.list(ctx, k, who)
	run.ok, run.gone = li != nil, li == nil && ctx.Err() != nil
	u.s.mu.Lock()
	run.of.listing[k] = nil
	u.s.mu.Unlock()
	close(run.done)
	return run.ok
}

// stale reports whether what the upstream offers may differ from what a view knows.
// In the modern era nobody tells of changes unless a client listens.
func (u *upstreamConn) stale(w *view, k kind) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.staleLocked(w, k)
}

func (u *upstreamConn) staleLocked(w *view, k kind) bool {
	c := u.catalogLocked(w)
	return c.listed[k] != u.version[k] || u.era == mcp.Modern && time.Since(c.listedAt[k]) >= relist
}

// relist is how often names that nobody knows may make an upstream of the modern
// era list anew.
const relist = time.Second
