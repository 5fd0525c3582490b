package lists

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A known is what one upstream lists to clients with the same capabilities. In the modern era one
// session may serve many clients, each request says capabilities, and what an upstream lists may
// depend on them. So a name that one client knows must not become unknown when another client lists.
// In the legacy era there is one for all.
type known struct {
	tables   [catalog.Kinds]*catalog.Table // as last listed
	listed   [catalog.Kinds]int            // Upstream.version in tables; 0 for one of an earlier session
	listedAt [catalog.Kinds]time.Time      // when it was; modern era only
	listing  [catalog.Kinds]*listRun       // under way, for a table; nil for none
}

func (u *Upstream) tableKey(caps catalog.Digest, k catalog.Kind) tableKey {
	return tableKey{u.Name, k, caps}
}

// remembered returns the table last seen by any session, nil if there is none.
func (u *Upstream) remembered(caps catalog.Digest, k catalog.Kind) *catalog.Table {
	if u.Private {
		return nil
	}
	return u.of.Memory.table(u.tableKey(caps, k))
}

// inLocked returns what is known of the upstream with capabilities. At first that is what any session
// saw last.
func (u *Upstream) inLocked(caps catalog.Digest) *known {
	if kn := u.known[caps]; kn != nil {
		return kn
	}
	kn := new(known)
	for k := range catalog.Kinds {
		kn.tables[k] = u.remembered(caps, k)
	}
	if forgotten, full := u.recent.add(caps); full {
		delete(u.known, forgotten)
	}
	put(&u.known, caps, kn)
	return kn
}

// own returns what is known of a list, nil for nothing, and whether this session has listed it. It
// stores nothing: most sessions never use most of their upstreams.
func (u *Upstream) own(caps catalog.Digest, k catalog.Kind) (t *catalog.Table, listed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if kn := u.known[caps]; kn != nil {
		return kn.tables[k], kn.listed[k] > 0
	}
	return u.remembered(caps, k), false
}

// keep makes t the table for clients with capabilities, as of a version: it is out of date already if
// the upstream told of a change while it listed. It returns an equal table that others use, or t.
func (u *Upstream) keep(caps catalog.Digest, k catalog.Kind, t *catalog.Table, version int) *catalog.Table {
	if !u.Private {
		t = u.of.Memory.keep(u.tableKey(caps, k), t)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	kn := u.inLocked(caps)
	u.recent.add(caps)
	kn.tables[k], kn.listed[k] = t, version
	if u.Era == mcp.Modern {
		kn.listedAt[k] = time.Now()
	}
	return t
}

// recall makes the table last seen by any session that of this one, and returns it; nil if nobody has
// seen any.
func (u *Upstream) recall(caps catalog.Digest, k catalog.Kind) *catalog.Table {
	t := u.remembered(caps, k)
	if t != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.inLocked(caps).tables[k] = t
	}
	return t
}

// Outdate makes what is known of lists out of date.
func (u *Upstream) Outdate(ks ...catalog.Kind) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, k := range ks {
		u.version[k]++
		if k == catalog.Resources { // there is one notification for both
			u.version[catalog.Templates]++
		}
	}
}

// Version counts the changes of a list.
func (u *Upstream) Version(k catalog.Kind) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.version[k]
}

// IsStale reports whether what the upstream lists may differ from what is known of it. In the modern
// era nobody tells of changes unless a client subscribes.
func (u *Upstream) IsStale(caps catalog.Digest, k catalog.Kind) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.staleLocked(u.known[caps], k)
}

func (u *Upstream) staleLocked(kn *known, k catalog.Kind) bool {
	return kn == nil || kn.listed[k] != u.version[k] || u.Era == mcp.Modern && time.Since(kn.listedAt[k]) >= relist
}

// relist is how often names that nobody knows may make an upstream of the modern era list anew.
const relist = time.Second

// A listRun is a refresh of one table that is under way. Whoever needs the same table meanwhile waits
// for it: many calls at once do not list as many times.
type listRun struct {
	of   *known
	done chan struct{}
	ok   bool // of done: the table is fresh
	gone bool // of done: who listed was not to wait any longer
}

// run returns the run that lists what is stale; nil if it is fresh. The first one to ask has to list.
func (u *Upstream) run(caps catalog.Digest, k catalog.Kind) (run *listRun, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	kn := u.inLocked(caps)
	if !u.staleLocked(kn, k) {
		return nil, false
	}
	if first = kn.listing[k] == nil; first {
		kn.listing[k] = &listRun{of: kn, done: make(chan struct{})}
	}
	return kn.listing[k], first
}

// ran ends run, which has its result.
func (u *Upstream) ran(k catalog.Kind, run *listRun) {
	u.mu.Lock()
	defer u.mu.Unlock()
	run.of.listing[k] = nil
	close(run.done)
}

// MayLearnTools reports whether LearnTools could tell more about the tools for a client's call.
func (u *Upstream) MayLearnTools(caps catalog.Digest) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.staleLocked(u.known[caps], catalog.Tools) && (u.tooLate.IsZero() || time.Since(u.tooLate) >= relearn)
}

// relearn is how long calls go unchecked, and do not wait, once an upstream did not list its tools in
// time for one of them.
const relearn = time.Minute

func (u *Upstream) noteTooLate() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tooLate = time.Now()
}
