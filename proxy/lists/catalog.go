package lists

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A Key names an entry.
type Key struct {
	Upstream string
	Era      mcp.Era
	Caps     catalog.Digest // of the capabilities that the upstream was told; zero: the router's own
}

// A Served is an upstream whose entries a catalog keeps.
type Served struct {
	Name        string
	Digest      string // of its configuration, see [Store.Digest]; "": its entries are never written to a file
	Allow, Deny []string
}

func (u *Served) allows(tool string) bool { return catalog.Allows(u.Allow, u.Deny, tool) }

func (u *Served) equal(other *Served) bool {
	return other != nil && u.Digest == other.Digest && slices.Equal(u.Allow, other.Allow) && slices.Equal(u.Deny, other.Deny)
}

// Bounds of a catalog.
const (
	maxEntry   = 4 << 20  // bytes of an entry
	maxBytes   = 64 << 20 // of all entries
	maxEntries = 16       // of one upstream and era
)

// A Catalog has the entries of a router's upstreams. The zero Catalog is empty and lives in memory.
type Catalog struct {
	Log     *slog.Logger          // nil discards
	Store   *Store                // nil: memory only
	Changed func(upstream string) // called in a goroutine of its own after an entry changed; may be nil

	mu        sync.Mutex // guards the fields below; nothing else is locked under it
	upstreams map[string]*Served
	entries   map[Key]*Entry
	asking    map[Key]*Asking
	changes   map[string]int       // by upstream: counts calls of Outdate
	version   atomic.Int64         // counts changes of entries
	told      map[string]time.Time // when Changed was last called, or will be
	saving    bool                 // a save is due
	saves     sync.Mutex           // held while the file is written; mu may be taken with it held
}

// Serve makes these the upstreams of the catalog. It reads the entries of new ones from the file,
// and forgets the others, as well as those of upstreams whose configuration has changed.
func (c *Catalog) Serve(all []Served) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.upstreams
	c.upstreams = make(map[string]*Served, len(all))
	fresh := make(map[string][]*Served) // by digest, which those with the same configuration share
	for _, u := range all {
		c.upstreams[u.Name] = &u
		if old := before[u.Name]; !u.equal(old) {
			c.forgetLocked(u.Name)
			if u.Digest != "" {
				fresh[u.Digest] = append(fresh[u.Digest], &u)
			}
		}
	}
	for name := range before {
		if c.upstreams[name] == nil {
			c.forgetLocked(name)
			delete(c.changes, name)
		}
	}
	if c.Store == nil || len(fresh) == 0 {
		return
	}
	for _, r := range c.Store.load(c.log()) {
		for _, u := range fresh[r.Digest] {
			if e := r.entry(u); e != nil {
				c.putLocked(Key{u.Name, r.Era, r.Caps}, e)
			}
		}
	}
}

func (c *Catalog) log() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// Forget forgets what upstreams without a digest said, which may be others now.
func (c *Catalog) Forget(upstreams []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range upstreams {
		if u := c.upstreams[name]; u == nil || u.Digest == "" {
			c.forgetLocked(name)
		}
	}
}

// forgetLocked forgets the entries of an upstream, and its trials: what those will say is of before.
func (c *Catalog) forgetLocked(upstream string) {
	c.version.Add(1)
	maps.DeleteFunc(c.entries, func(k Key, _ *Entry) bool { return k.Upstream == upstream })
	maps.DeleteFunc(c.asking, func(k Key, _ *Asking) bool { return k.Upstream == upstream })
}

// Version returns a number that grows with each change of an entry.
func (c *Catalog) Version() int64 { return c.version.Load() }

// Get returns the entry of a key. Without one it returns that of the same upstream and era for
// other capabilities, if the upstream is known to say the same whatever it was told, and the key is
// not of extensions, of which it was not told. It returns nil for none.
func (c *Catalog) Get(k Key) *Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil {
		return e
	}
	if e, n, same := c.othersLocked(k); n > 1 && same && !k.isExtended() {
		return e
	}
	return nil
}

// Any returns the entry of a key, or the latest of the same upstream and era; nil for none.
func (c *Catalog) Any(k Key) *Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil {
		return e
	}
	e, _, _ := c.othersLocked(k)
	return e
}

// othersLocked returns the latest entry of an upstream and era, how many there are, and whether all
// say the same.
func (c *Catalog) othersLocked(k Key) (latest *Entry, n int, same bool) {
	same = true
	for at, e := range c.entries {
		if at.Upstream != k.Upstream || at.Era != k.Era {
			continue
		}
		same = same && (latest == nil || e.equal(latest))
		if n++; latest == nil || e.Asked.After(latest.Asked) {
			latest = e
		}
	}
	return latest, n, same
}

// Mirrors returns the parameters of an upstream's tool that headers repeat, and whether the latest
// list of any era has the tool.
func (c *Catalog) Mirrors(upstream, tool string) (mirrors []mcp.Mirror, listed bool) {
	for _, era := range []mcp.Era{mcp.Modern, mcp.Legacy} {
		e := c.Any(Key{Upstream: upstream, Era: era})
		if e == nil || e.Lists[catalog.Tools] == nil {
			continue
		}
		if t := e.Lists[catalog.Tools].Table; t.Has(tool) {
			return t.Mirrors(tool), true
		}
	}
	return nil, false
}

// Keep forgets the entries of an upstream and era for other capabilities than those of a key.
func (c *Catalog) Keep(k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := range c.entries {
		if at.Upstream == k.Upstream && at.Era == k.Era && at != k {
			delete(c.entries, at)
			c.version.Add(1)
		}
	}
}

// Outdate notes that an upstream has changed a list. Its entries are answers only for those that
// cannot wait for another trial.
func (c *Catalog) Outdate(upstream string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes == nil {
		c.changes = make(map[string]int)
	}
	c.changes[upstream]++
	for k, e := range c.entries {
		if k.Upstream == upstream && !e.Outdated {
			outdated := *e
			outdated.Outdated = true
			c.putLocked(k, &outdated)
		}
	}
}

// All returns the entries of an upstream.
func (c *Catalog) All(upstream string) map[Key]*Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[Key]*Entry)
	for k, e := range c.entries {
		if k.Upstream == upstream {
			all[k] = e
		}
	}
	return all
}

// put puts in what a trial of an upstream said that began at a number of changes.
func (c *Catalog) put(k Key, e *Entry, of *Served, changes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.Outdated = c.changes[k.Upstream] != changes
	if e.size() > maxEntry { // then each session's own server lists
		c.log().Debug("lists not kept in the catalog: they are too long", "upstream", k.Upstream, "bytes", e.size())
		short := *e
		short.Lists = [catalog.Kinds]*List{}
		e = &short
	}
	old := c.entries[k]
	switch {
	case of == nil || !of.equal(c.upstreams[k.Upstream]): // removed or changed meanwhile
		return
	case !c.roomLocked(k, e.size()):
		c.log().Debug("not kept in the catalog: it is full", "upstream", k.Upstream)
		return
	case old != nil && old.equal(e): // so that sessions share the tables
		renewed := *old
		renewed.Asked, renewed.Outdated = e.Asked, e.Outdated
		e = &renewed
		c.putLocked(k, e)
	default:
		c.putLocked(k, e)
		c.changedLocked(k.Upstream)
	}
	c.saveSoonLocked()
}

func (c *Catalog) putLocked(k Key, e *Entry) {
	if c.entries == nil {
		c.entries = make(map[Key]*Entry)
	}
	c.entries[k] = e
	c.version.Add(1)
}

// roomLocked makes room for the entry of a key, for which it forgets the oldest of the same upstream
// and era if there are too many. It reports whether there is room.
func (c *Catalog) roomLocked(k Key, size int) bool {
	bytes, entries := size, 0
	var oldest Key
	for at, e := range c.entries {
		if at == k { // which it replaces
			continue
		}
		bytes += e.size()
		if at.Upstream != k.Upstream || at.Era != k.Era {
			continue
		}
		if entries++; entries == 1 || e.Asked.Before(c.entries[oldest].Asked) {
			oldest = at
		}
	}
	if entries >= maxEntries {
		bytes -= c.entries[oldest].size()
	}
	if bytes > maxBytes {
		return false
	}
	if entries >= maxEntries {
		delete(c.entries, oldest)
	}
	return true
}

// changePause is the least time between two calls of Changed for one upstream.
const changePause = 5 * time.Second

// changedLocked calls Changed, now or when the pause after the last call is over.
func (c *Catalog) changedLocked(upstream string) {
	wait := time.Until(c.told[upstream].Add(changePause))
	if c.Changed == nil || wait > changePause { // a call is due already
		return
	}
	wait = max(wait, 0)
	if c.told == nil {
		c.told = make(map[string]time.Time)
	}
	c.told[upstream] = time.Now().Add(wait)
	time.AfterFunc(wait, func() { c.Changed(upstream) })
}

// An Asking is a trial of an upstream that is under way.
type Asking struct {
	Done  chan struct{} // closed at the end
	Entry *Entry        // of Done; nil if it failed
	Err   error         // of Done
}

// Ask returns the trial of a key that is under way. If there is none it begins one, which calls ask
// in a goroutine, and puts its entry into the catalog.
func (c *Catalog) Ask(k Key, ask func() (*Entry, error)) *Asking {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.asking[k]; a != nil {
		return a
	}
	a := &Asking{Done: make(chan struct{})}
	if c.asking == nil {
		c.asking = make(map[Key]*Asking)
	}
	c.asking[k] = a
	of, changes := c.upstreams[k.Upstream], c.changes[k.Upstream]
	go func() {
		a.Entry, a.Err = ask()
		if a.Err == nil {
			c.put(k, a.Entry, of, changes)
		}
		c.mu.Lock()
		if c.asking[k] == a { // else the upstream has changed
			delete(c.asking, k)
		}
		c.mu.Unlock()
		close(a.Done)
	}()
	return a
}

// saveDelay is how long changes wait for others before the file is written.
const saveDelay = 5 * time.Second

func (c *Catalog) saveSoonLocked() {
	if c.Store == nil || c.saving {
		return
	}
	c.saving = true
	time.AfterFunc(saveDelay, c.Save)
}

// Save writes what is not written yet to the file.
func (c *Catalog) Save() {
	c.saves.Lock()
	defer c.saves.Unlock()
	c.mu.Lock()
	if c.Store == nil || !c.saving {
		c.mu.Unlock()
		return
	}
	c.saving = false
	var records []record
	for k, e := range c.entries {
		if u := c.upstreams[k.Upstream]; u != nil && u.Digest != "" {
			records = append(records, recordOf(k, u, e))
		}
	}
	c.mu.Unlock()
	if err := c.Store.save(records); err != nil {
		c.log().Debug("the catalog could not be written", "err", err)
	}
}
