package session

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A view is what is known of the upstreams' lists as clients with the same capabilities
// see them. In the modern era one session may serve many clients, each request says
// capabilities, and what an upstream lists may depend on them. So a name that one client
// knows must not become unknown when another client lists. The legacy era has one view.
type view struct {
	caps catalog.Digest // of the capabilities; zero in the legacy era

	// Guarded by views.mu.
	known map[*upstreamLists]*known // modern era only
}

// An asker is for whom upstreams are asked for lists.
type asker struct {
	view  *view
	grant *policy.Grant
	meta  json.RawMessage // of such requests; nil in the legacy era
	own   bool            // the session's own servers must say, not the catalog
}

// A known is what one upstream lists in one view.
type known struct {
	tables   [catalog.Kinds]*catalog.Table // as last listed
	listed   [catalog.Kinds]int            // upstreamLists.version in tables; 0 for one of an earlier session
	listedAt [catalog.Kinds]time.Time      // when it was; modern era only
	listing  [catalog.Kinds]*listRun       // under way, for a table; nil for none
}

// views are those of one session.
type views struct {
	mu     sync.Mutex // guards the fields below and the upstreamLists; only memory.mu is locked under it
	legacy view
	modern map[catalog.Digest]*view
	recent recent // of modern
}

// of returns the view of clients of the modern era with these capabilities, which are
// compared byte for byte.
func (vs *views) of(capabilities json.RawMessage) *view {
	caps := catalog.Digest(sha256.Sum256(capabilities))
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if forgotten, ok := vs.recent.add(caps); ok {
		delete(vs.modern, forgotten)
	}
	w := vs.modern[caps]
	if w == nil {
		w = &view{caps: caps}
		put(&vs.modern, caps, w)
	}
	return w
}

// forget forgets what an upstream lists that was hung up.
func (vs *views) forget(ls *upstreamLists) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	ls.forgotten = true
	for _, w := range vs.modern {
		delete(w.known, ls)
	}
}

// An upstreamLists is what a session knows of what one upstream lists.
type upstreamLists struct {
	// Static after construction.
	upstream string // its name
	era      mcp.Era
	memory   *memory

	mu        *sync.Mutex        // views.mu, which guards the fields below
	own       *known             // legacy era only
	version   [catalog.Kinds]int // from 1; counts changes
	tooLate   time.Time          // when it last did not list its tools in time, see learnTools
	forgotten bool
}

// upstream returns what is known of the lists of another upstream.
func (vs *views) upstream(name string, era mcp.Era, m *memory) *upstreamLists {
	ls := &upstreamLists{upstream: name, era: era, memory: m, mu: &vs.mu}
	if era == mcp.Legacy {
		ls.own = ls.remembered(catalog.Digest{})
	}
	for k := range catalog.Kinds {
		ls.version[k] = 1
	}
	return ls
}

// remembered is what any session saw last.
func (ls *upstreamLists) remembered(caps catalog.Digest) *known {
	kn := new(known)
	for k := range catalog.Kinds {
		kn.tables[k] = ls.memory.table(ls.key(caps, k))
	}
	return kn
}

func (ls *upstreamLists) key(caps catalog.Digest, k catalog.Kind) tableKey {
	return tableKey{ls.upstream, k, caps}
}

// inLocked returns what is known of the upstream in a view. At first that is what any
// session saw last.
func (ls *upstreamLists) inLocked(w *view) *known {
	if ls.era == mcp.Legacy {
		return ls.own
	}
	kn := w.known[ls]
	if kn == nil {
		kn = ls.remembered(w.caps)
		if !ls.forgotten {
			put(&w.known, ls, kn)
		}
	}
	return kn
}

// table returns what is known of a list, nil for nothing, and whether this session has listed it.
func (ls *upstreamLists) table(w *view, k catalog.Kind) (t *catalog.Table, listed bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	kn := ls.inLocked(w)
	return kn.tables[k], kn.listed[k] > 0
}

// keep makes t the table of a view, as of a version: it is out of date already if the
// upstream told of a change while it listed.
func (ls *upstreamLists) keep(w *view, k catalog.Kind, t *catalog.Table, version int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	kn := ls.inLocked(w)
	kn.tables[k], kn.listed[k] = t, version
	if ls.era == mcp.Modern {
		kn.listedAt[k] = time.Now()
	}
}

// recall makes the table last seen by any session that of a view, and returns it; nil if
// nobody has seen any.
func (ls *upstreamLists) recall(w *view, k catalog.Kind) *catalog.Table {
	t := ls.memory.table(ls.key(w.caps, k))
	if t != nil {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		ls.inLocked(w).tables[k] = t
	}
	return t
}

// changed makes what is known of lists out of date.
func (ls *upstreamLists) changed(ks ...catalog.Kind) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, k := range ks {
		ls.version[k]++
		if k == catalog.Resources { // there is one notification for both
			ls.version[catalog.Templates]++
		}
	}
}

// versionOf counts the changes of a list.
func (ls *upstreamLists) versionOf(k catalog.Kind) int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.version[k]
}

// stale reports whether what the upstream lists may differ from what a view knows.
// In the modern era nobody tells of changes unless a client subscribes.
func (ls *upstreamLists) stale(w *view, k catalog.Kind) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.staleLocked(ls.inLocked(w), k)
}

func (ls *upstreamLists) staleLocked(kn *known, k catalog.Kind) bool {
	return kn.listed[k] != ls.version[k] || ls.era == mcp.Modern && time.Since(kn.listedAt[k]) >= relist
}

// relist is how often names that nobody knows may make an upstream of the modern
// era list anew.
const relist = time.Second

// A listRun is a refresh of one table that is under way. Whoever needs the same
// table meanwhile waits for it: many calls at once do not list as many times.
type listRun struct {
	of   *known
	done chan struct{}
	ok   bool // of done: the table is fresh
	gone bool // of done: who listed was not to wait any longer
}

// run returns the run that lists what is stale in a view; nil if it is fresh. The first one
// to ask has to list.
func (ls *upstreamLists) run(w *view, k catalog.Kind) (run *listRun, first bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	kn := ls.inLocked(w)
	if !ls.staleLocked(kn, k) {
		return nil, false
	}
	if first = kn.listing[k] == nil; first {
		kn.listing[k] = &listRun{of: kn, done: make(chan struct{})}
	}
	return kn.listing[k], first
}

// ran ends run, which has its result.
func (ls *upstreamLists) ran(k catalog.Kind, run *listRun) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	run.of.listing[k] = nil
	close(run.done)
}

// mayLearnTools reports whether the upstream should list its tools so that a call
// can be checked.
func (ls *upstreamLists) mayLearnTools(w *view) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.staleLocked(ls.inLocked(w), catalog.Tools) && (ls.tooLate.IsZero() || time.Since(ls.tooLate) >= relearn)
}

// relearn is how long calls go unchecked, and do not wait, once an upstream did not
// list its tools in time for one of them.
const relearn = time.Minute

func (ls *upstreamLists) noteTooLate() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.tooLate = time.Now()
}
