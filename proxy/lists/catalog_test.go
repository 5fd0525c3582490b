package lists

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entryOf returns an entry with these tools.
func entryOf(t *testing.T, tools ...string) *Entry {
	t.Helper()
	e, err := NewEntry(json.RawMessage(`{"capabilities":{"tools":{}},"instructions":"<é> &"}`))
	if err != nil {
		t.Fatal(err)
	}
	for k := range catalog.Kinds {
		e.Lists[k] = Absent()
	}
	page := `{ "tools" : [`
	for i, name := range tools {
		page += strings.Repeat(",", min(i, 1)) + `{"name": "` + name + `","description":"a < b"}`
	}
	var all catalog.Collection
	if _, err := all.Add(mcp.Legacy, "tools", json.RawMessage(page+`],"_meta":{"x":1}}`)); err != nil {
		t.Fatal(err)
	}
	e.Lists[catalog.Tools] = e.NewList(catalog.Tools, mcp.Legacy, &all, func(string) bool { return true })
	return e
}

// learn puts an entry into a catalog as a trial does.
func (c *Catalog) learn(k Key, e *Entry) { <-c.Ask(k, func() (*Entry, error) { return e, nil }).Done }

func keyOf(upstream string) Key { return Key{Upstream: upstream, Era: mcp.Legacy} }

func namesIn(e *Entry) (names string) {
	if e == nil {
		return "nothing"
	}
	for _, tool := range e.Lists[catalog.Tools].Table.Entries {
		names += tool.Name + " "
	}
	return strings.TrimSpace(names)
}

// Lists are there again after a restart, byte for byte, unless the configuration of their upstream
// has changed.
func TestStoreKeepsEntries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dir")
	open := func(configuration string) *Catalog {
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		c := &Catalog{Store: s}
		c.Serve([]Served{{Name: "a", Digest: s.Digest([]byte(configuration)), Deny: []string{"hidden"}}, {Name: "far"}})
		return c
	}
	first, e := open("1"), entryOf(t, "x", "y")
	first.learn(keyOf("a"), e)
	first.learn(keyOf("far"), e)
	first.Save()
	again := open("1")
	if got := again.Get(keyOf("a")); got == nil || !got.equal(e) || !got.Asked.Equal(e.Asked) || got.Capabilities["tools"] == nil {
		t.Errorf("after a restart there is %+v", got)
	}
	if got := again.Get(keyOf("far")); got != nil {
		t.Error("the file has lists of an upstream without a digest")
	}
	if got := open("2").Get(keyOf("a")); got != nil {
		t.Error("another configuration has the lists, too")
	}
	for _, name := range []string{entriesFile, keyFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// Upstreams with the same configuration both find their lists after a restart.
func TestStoreKeepsEntriesOfTwins(t *testing.T) {
	s, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	twins := []Served{{Name: "a", Digest: s.Digest([]byte("1"))}, {Name: "b", Digest: s.Digest([]byte("1")), Deny: []string{"x"}}}
	first := &Catalog{Store: s}
	first.Serve(twins)
	first.learn(keyOf("a"), entryOf(t, "x", "y"))
	first.learn(keyOf("b"), entryOf(t, "x", "y"))
	first.Save()
	again := &Catalog{Store: s}
	again.Serve(twins)
	if a, b := namesIn(again.Get(keyOf("a"))), namesIn(again.Get(keyOf("b"))); a != "x y" || b != "y" {
		t.Errorf("after a restart there is %q and %q", a, b)
	}
}

// A broken file, or one of another version, is ignored, and replaced at the next change.
func TestBrokenFile(t *testing.T) {
	for _, text := range []string{"", "{", `{"version":2,"entries":[{}]}`, `{"version":1,"entries":[{"capabilities":"xyz"}]}`,
		`{"version":1,"entries":[{"digest":"DIGEST","era":"legacy","capabilities":"` + strings.Repeat("0", 64) + `","introduction":"[","lists":{"tools/list":"{"}}]}`} {
		dir := t.TempDir()
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		digest := s.Digest(nil)
		if err := os.WriteFile(filepath.Join(dir, entriesFile), []byte(strings.ReplaceAll(text, "DIGEST", digest)), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &Catalog{Store: s}
		c.Serve([]Served{{Name: "a", Digest: digest}})
		if got := c.Get(keyOf("a")); got != nil {
			t.Errorf("%q has %+v", text, got)
		}
		c.learn(keyOf("a"), entryOf(t, "x"))
		c.Save()
		c.Serve(nil)
		c.Serve([]Served{{Name: "a", Digest: digest}})
		if got := namesIn(c.Get(keyOf("a"))); got != "x" {
			t.Errorf("after %q there is %s", text, got)
		}
	}
}

// Proxies that use one directory at once lose nothing of each other.
func TestProxiesShareADirectory(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d"}
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			s, err := OpenStore(dir)
			if err != nil {
				t.Error(err)
				return
			}
			c := &Catalog{Store: s}
			c.Serve([]Served{{Name: "mine", Digest: s.Digest([]byte(name))}})
			for range 20 {
				c.learn(keyOf("mine"), entryOf(t, name))
				c.Save()
			}
		})
	}
	wg.Wait()
	for _, name := range names {
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		c := &Catalog{Store: s}
		c.Serve([]Served{{Name: "again", Digest: s.Digest([]byte(name))}})
		if got := namesIn(c.Get(keyOf("again"))); got != name {
			t.Errorf("%s has %s", name, got)
		}
	}
}

// A directory that cannot be used is an error that does not show its path.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(filepath.Join(file, "below")); err == nil || strings.Contains(err.Error(), file) {
		t.Error(err)
	}
}

// Capabilities without an entry of their own have that of others once two say the same.
func TestEntriesOfCapabilities(t *testing.T) {
	c := new(Catalog)
	c.Serve([]Served{{Name: "a"}, {Name: "b"}})
	roots, sampling := keyOf("a"), keyOf("a")
	roots.Caps[0], sampling.Caps[0] = 1, 2
	want := func(want map[Key]string) {
		t.Helper()
		for k, names := range want {
			if got := namesIn(c.Get(k)); got != names {
				t.Errorf("%v has %s, want %s", k, got, names)
			}
		}
	}
	c.learn(keyOf("a"), entryOf(t, "x"))
	want(map[Key]string{keyOf("a"): "x", roots: "nothing", keyOf("b"): "nothing"})
	if got := namesIn(c.Any(roots)); got != "x" {
		t.Error("any is", got)
	}
	c.learn(roots, entryOf(t, "x"))
	want(map[Key]string{sampling: "x"})
	c.learn(roots, entryOf(t, "x", "y"))
	want(map[Key]string{keyOf("a"): "x", roots: "x y", sampling: "nothing"})
	modern := Key{Upstream: "a", Era: mcp.Modern}
	if got := c.Get(modern); got != nil {
		t.Error("the other era has it, too")
	}
}

// Of two trials at once there is one. A failed one leaves what is known.
func TestOneTrialAtATime(t *testing.T) {
	c := new(Catalog)
	c.Serve([]Served{{Name: "a"}})
	var n int
	gate := make(chan struct{})
	ask := func() (*Entry, error) { n++; <-gate; return entryOf(t, "x"), nil }
	first, second := c.Ask(keyOf("a"), ask), c.Ask(keyOf("a"), ask)
	close(gate)
	<-second.Done
	if first != second || n != 1 || namesIn(first.Entry) != "x" {
		t.Errorf("%d trials", n)
	}
	bad := c.Ask(keyOf("a"), func() (*Entry, error) { return nil, errors.New("bad") })
	if <-bad.Done; bad.Err == nil || namesIn(c.Get(keyOf("a"))) != "x" {
		t.Error("a failed trial changed something")
	}
}

// Changes are reported at once, and then once in five seconds; equal bytes are no change.
func TestChangesAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		began := time.Now()
		c := &Catalog{Changed: func(string) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(began))
		}}
		c.Serve([]Served{{Name: "a"}})
		for _, tool := range []string{"1", "2", "3", "3"} {
			c.learn(keyOf("a"), entryOf(t, tool))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		c.learn(keyOf("a"), entryOf(t, "3"))
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(at) != 2 || at[0] != 0 || at[1] != changePause {
			t.Errorf("changes are reported after %v", at)
		}
	})
}

// A hostile server cannot fill the catalog.
func TestBounds(t *testing.T) {
	c := new(Catalog)
	c.Serve([]Served{{Name: "a"}, {Name: "b"}})
	c.learn(keyOf("a"), entryOf(t, strings.Repeat("x", maxEntry)))
	if got := c.Get(keyOf("a")); got == nil || got.Introduction == nil || got.Lists[catalog.Tools] != nil {
		t.Errorf("of too long lists there is %+v", got)
	}
	for i := range 3 * maxEntries {
		k := keyOf("a")
		k.Caps[0] = byte(i)
		c.learn(k, entryOf(t, "x"))
	}
	if n := len(c.All("a")); n != maxEntries {
		t.Errorf("%d entries", n)
	}
	c.learn(keyOf("b"), entryOf(t, "y"))
	if got := namesIn(c.Get(keyOf("b"))); got != "y" {
		t.Errorf("another upstream has %s", got)
	}
	c.learn(keyOf("unknown"), entryOf(t, "z"))
	if got := c.Get(keyOf("unknown")); got != nil {
		t.Error("an upstream that is not served has an entry")
	}
}

// An entry for which there is no room costs no other one.
func TestFullCatalog(t *testing.T) {
	c := new(Catalog)
	c.Serve([]Served{{Name: "a"}, {Name: "b"}})
	large := entryOf(t, strings.Repeat("x", maxEntry-1<<10))
	for i := range maxEntries { // all but 16 KiB of maxBytes
		k := keyOf("a")
		k.Caps[0] = byte(i)
		c.learn(k, large)
	}
	k := keyOf("b")
	for i := range maxEntries {
		k.Caps[0] = byte(i)
		c.learn(k, entryOf(t, "x"))
	}
	k.Caps[0] = maxEntries
	c.learn(k, large)
	if a, b := len(c.All("a")), len(c.All("b")); a != maxEntries || b != maxEntries {
		t.Errorf("%d and %d entries", a, b)
	}
}

// What a server of the modern era calls private, or does not call public, stays out.
func TestPrivateListsStayOut(t *testing.T) {
	for scope, kept := range map[string]bool{`,"cacheScope":"public"`: true, `,"cacheScope":"private"`: false, ``: false} {
		var all catalog.Collection
		if _, err := all.Add(mcp.Modern, "tools", json.RawMessage(`{"tools":[],"ttlMs":60000`+scope+`}`)); err != nil {
			t.Fatal(err)
		}
		l := new(Entry).NewList(catalog.Tools, mcp.Modern, &all, func(string) bool { return true })
		if (l != nil) != kept {
			t.Errorf("%q: kept is %v", scope, l != nil)
		}
	}
}

// What a host has translated from a server of the legacy era is kept, also between runs, although it
// says that clients must not.
func TestTranslatedListsAreKept(t *testing.T) {
	dir := t.TempDir()
	open := func() *Catalog {
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		c := &Catalog{Store: s}
		c.Serve([]Served{{Name: "a", Digest: s.Digest(nil)}})
		return c
	}
	k, c := Key{Upstream: "a", Era: mcp.Modern}, open()
	var all catalog.Collection
	if _, err := all.Add(mcp.Modern, "tools", json.RawMessage(`{"tools":[{"name":"x"}],"ttlMs":0,"cacheScope":"private"}`)); err != nil {
		t.Fatal(err)
	}
	e, _ := NewEntry(json.RawMessage(`{"supportedVersions":["2025-11-25"],"capabilities":{"tools":{}}}`))
	e.Lists[catalog.Tools] = e.NewList(catalog.Tools, mcp.Modern, &all, func(string) bool { return true })
	c.learn(k, e)
	again := *e
	c.learn(k, &again) // which says the same
	c.Save()
	for _, c := range []*Catalog{c, open()} {
		got := c.Get(k)
		if namesIn(got) != "x" || !got.Translated || got.Lists[catalog.Tools].Caching.Public() {
			t.Errorf("%s: %+v", namesIn(got), got)
		}
	}
	for versions, want := range map[string]bool{`["2025-11-25"]`: true, `["2026-07-28"]`: false, `["2026-07-28","2025-11-25"]`: false} {
		if e, _ := NewEntry(json.RawMessage(`{"supportedVersions":` + versions + `}`)); e.Translated != want {
			t.Errorf("%s: %v", versions, e.Translated)
		}
	}
}

// What a trial said that began before a change is outdated, and what the next one says is not.
func TestChangeDuringATrial(t *testing.T) {
	c := new(Catalog)
	c.Serve([]Served{{Name: "a"}})
	begun, changed := make(chan struct{}), make(chan struct{})
	asking := c.Ask(keyOf("a"), func() (*Entry, error) {
		close(begun)
		<-changed
		return entryOf(t, "x"), nil
	})
	<-begun
	c.Outdate("a")
	close(changed)
	<-asking.Done
	if e := c.Get(keyOf("a")); e == nil || !e.Outdated {
		t.Errorf("%+v", e)
	}
	c.learn(keyOf("a"), entryOf(t, "x"))
	if e := c.Get(keyOf("a")); e.Outdated {
		t.Error("it is outdated still")
	}
	c.Outdate("a")
	if e := c.Get(keyOf("a")); !e.Outdated {
		t.Error("it is not outdated")
	}
}
