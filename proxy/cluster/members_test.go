package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// newTestCluster returns one that opens nothing: its members come from the test.
func newTestCluster(t *testing.T, o Options) *Cluster {
	t.Helper()
	if o.KeyFile == "" {
		o.KeyFile = filepath.Join(t.TempDir(), "keys")
		writeKeys(t, o.KeyFile, hexOf(1))
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// join adds a member that cannot be dialled.
func (c *Cluster) join(instance string, port int, state State) *peer {
	c.others.joined(instance, net.IPv4(127, 0, 0, 1), port, parseMeta(meta{Format: 1, Links: port + 1, State: state}.encode()))
	link, _ := c.others.find(instance)
	return link
}

func TestOwner(t *testing.T) {
	c := newTestCluster(t, Options{})
	other := newInstance()
	id := c.keys.current.Load().newID(other)
	expect := func(id string, want Where, why string) {
		t.Helper()
		via, at := c.Owner(id)
		if at != want || (via != nil) != (at == There) {
			t.Errorf("%s: %v (via %v), want %v", why, at, via, want)
		}
	}
	expect(c.NewID(), Here, "our own")
	expect("", Nowhere, "no id")
	expect(c.Instance()+".RANDOM.AAAAAAAAAAAAA", Nowhere, "an invented one")
	expect(id, Gone, "not joined")

	c.join(other, 1, Ready)
	expect(id, Away, "we are not a member ourselves")
}

func TestOwnerFollowsTheLink(t *testing.T) {
	c := newTestCluster(t, Options{})
	var kept []func()
	c.others.newPeer = func(instance, _ string) *peer {
		return newPeer(instance, c.log, func(fn func()) bool { kept = append(kept, fn); return true }, nil)
	}
	other := newInstance()
	id := c.keys.current.Load().newID(other)
	link := c.join(other, 1, Ready)
	expect := func(want Where, why string) {
		t.Helper()
		if _, at := c.Owner(id); at != want {
			t.Errorf("%s: %v, want %v", why, at, want)
		}
	}
	if len(kept) != 0 {
		t.Error("dialled before it was needed")
	}
	expect(There, "joined")
	expect(There, "being dialled")
	link.fall("", errors.New("refused"))
	expect(Away, "it cannot be dialled")
	link.raise()
	expect(There, "linked")
	if !c.Members()[1].Linked {
		t.Error("not linked")
	}
	link.fall("", errors.New("link lost"))
	expect(Away, "the link is lost, the member was not declared dead")
	if m := c.Members()[1]; m.Linked || !m.Down {
		t.Errorf("it is %+v", m)
	}
	link.raise()
	link.raise() // announced anew
	expect(There, "linked again")
	if link.up.Err() != nil {
		t.Error("streams of the new link end with the old one")
	}
	up := link.up
	c.others.gone(other)
	expect(Gone, "died")
	if !errors.Is(context.Cause(up), errGone) || link.use() {
		t.Error("the link did not end", context.Cause(up))
	}
	link.raise()
	link.fall("", errors.New("late"))
	if link.use() || link.now() != linkOver {
		t.Error("a link came back without its member")
	}
	if len(kept) != 1 {
		t.Errorf("dialled %d times", len(kept))
	}
}

// Requests that wait for a link fail with the event that its end has in the log.
func TestWaitingRequestsNameTheEnd(t *testing.T) {
	c := newTestCluster(t, Options{})
	c.others.newPeer = func(instance, _ string) *peer {
		p := newPeer(instance, c.log, func(func()) bool { return true }, nil)
		p.fell = func(event string, err error) { c.others.lost(instance, event, err) }
		return p
	}
	for name, end := range map[string]func(id string, link *peer){
		"it cannot be made": func(_ string, link *peer) { link.fall("", errors.New("refused")) },
		"its member died":   func(id string, _ *peer) { c.others.gone(id) },
	} {
		link := c.join("A", 1, Ready)
		link.use()
		c.others.takeChanges()
		end("A", link)
		changes := c.others.takeChanges()
		event := jsonrpc.EndOf(context.Cause(link.up), jsonrpc.Cause{}).Event
		if len(changes) != 1 || event == "" || changes[0].Event != event {
			t.Errorf("%s: requests name %q, and the log %+v", name, event, changes)
		}
		c.others.gone("A")
	}
}

func TestReadyMembers(t *testing.T) {
	c := newTestCluster(t, Options{})
	c.others.newPeer = func(instance, _ string) *peer {
		return newPeer(instance, c.log, func(func()) bool { return true }, nil)
	}
	if _, ok := c.Ready(); ok {
		t.Error("there is nobody")
	}
	a, b := c.join("A", 1, Ready), c.join("B", 3, Ready)
	c.join("D", 5, Draining)
	c.others.joined("X", net.IPv4(127, 0, 0, 1), 7, parseMeta([]byte(`{"f":0}`)))
	seen := make(map[any]bool)
	for range 200 {
		via, ok := c.Ready()
		if !ok || via != a && via != b {
			t.Fatalf("got %v, %v", via, ok)
		}
		seen[via] = true
	}
	if len(seen) != 2 {
		t.Error("always the same")
	}
	a.fall("", errors.New("link lost"))
	for range 50 {
		if via, ok := c.Ready(); !ok || via != b {
			t.Fatalf("got %v, %v", via, ok)
		}
	}
	c.others.updated("B", meta{State: Draining})
	if _, ok := c.Ready(); ok {
		t.Error("nobody is ready and reached")
	}
}

func TestChanges(t *testing.T) {
	c := newTestCluster(t, Options{Version: "1.2", Digest: "d", Join: []string{"a", "b:1", "[::1]:2", "::1"}})
	c.join("A", 1, Ready)
	c.join("A", 1, Draining) // heard twice
	c.join("B", 3, Ready)
	c.others.leaving("A")
	c.others.leaving("nobody")
	c.others.gone("A")
	c.others.gone("A")
	c.others.gone("B")
	c.join("A", 1, Ready)
	want := []Change{
		{What: Joined, Instance: "A", Address: "127.0.0.1:1"}, {What: Joined, Instance: "B", Address: "127.0.0.1:3"},
		{What: Left, Instance: "A", Address: "127.0.0.1:1"}, {What: Died, Instance: "B", Address: "127.0.0.1:3"},
		{What: Joined, Instance: "A", Address: "127.0.0.1:1"},
	}
	events := make(map[string]bool)
	for i, got := range c.others.takeChanges() {
		if !jsonrpc.IsEvent(got.Event) || events[got.Event] || got.At.IsZero() || got.Since.After(got.At) {
			t.Errorf("%+v", got)
		}
		events[got.Event] = true
		got.Event, got.At, got.Since = "", time.Time{}, time.Time{}
		if i >= len(want) || got != want[i] {
			t.Errorf("change %d is %+v", i, got)
		}
	}
	if len(events) != len(want) {
		t.Errorf("%d changes, want %d", len(events), len(want))
	}
	if len(c.others.takeChanges()) != 0 {
		t.Error("told twice")
	}
	c.Drain()
	c.Drain()
	members := []Member{
		{Instance: c.Instance(), Self: true, State: Draining, Version: "1.2", Digest: "d"},
		{Instance: "A", Address: "127.0.0.1:1", State: Ready},
	}
	if got := c.Members(); !slices.Equal(got, members) {
		t.Errorf("got %+v, want %+v", got, members)
	}
}

// A member that dies is one event and one line in the log, with its lost link. A link that was lost otherwise has its
// own line, once it is clear that the member lives.
func TestLostLinks(t *testing.T) {
	var text strings.Builder
	var told []Change
	c := newTestCluster(t, Options{
		Log: slog.New(slog.NewTextHandler(&text, nil)), Happened: func(change Change) { told = append(told, change) },
	})
	c.others.newPeer = func(instance, _ string) *peer {
		p := newPeer(instance, c.log, func(func()) bool { return true }, nil)
		p.fell = func(event string, err error) { c.others.lost(instance, event, err) }
		return p
	}
	for i, who := range []string{"DIES", "LIVES", "BACK", "LEAVES"} {
		link := c.join(who, 1+2*i, Ready)
		link.use()
		link.raise()
		link.fall("event"+who[:3], errors.New("cut"))
		link.fall("", errors.New("refused")) // dialled again
	}
	back, _ := c.others.find("BACK")
	back.raise()
	c.others.leaving("LEAVES")
	c.others.gone("DIES")
	c.others.gone("LEAVES")
	for _, change := range c.others.takeChanges() {
		c.report(change)
	}
	c.reportLost(time.Now())
	if strings.Contains(text.String(), "event=eventLIV") {
		t.Error("logged before it is known whether the member died")
	}
	c.reportLost(time.Now().Add(2 * deadWithin))
	c.reportLost(time.Now().Add(3 * deadWithin))
	for event, want := range map[string]string{
		"eventDIE": "replica died", "eventLIV": "a replica cannot be reached", "eventBAC": "is up again", "eventLEA": "",
	} {
		var lines []string
		for line := range strings.Lines(text.String()) {
			if strings.Contains(line, "event="+event) {
				lines = append(lines, line)
			}
		}
		if ok := len(lines) == 1 && strings.Contains(lines[0], want); ok == (want == "") {
			t.Errorf("the lines of %s are %q", event, lines)
		}
	}
	var all []string
	for _, change := range told {
		if change.What == Lost || change.What == Died {
			all = append(all, change.Event)
		}
	}
	if !slices.Equal(all, []string{"eventDIE", "eventLIV", "eventBAC", "eventLEA", "eventDIE"}) {
		t.Errorf("events %q", all)
	}
}

// The connections of a member are cut if it died, and not if it left: it ends them itself.
func TestDiedOrLeft(t *testing.T) {
	c := newTestCluster(t, Options{})
	var died []string
	g := &gossip{instance: c.Instance(), others: c.others, died: func(who string) { died = append(died, who) }}
	for _, who := range []string{"A", "B", c.Instance()} {
		g.NotifyJoin(&memberlist.Node{Name: who, Addr: net.IPv4(127, 0, 0, 1), Port: 1})
	}
	g.NotifyMsg([]byte("bye A"))
	g.NotifyMsg([]byte("later versions say more"))
	if n := len(c.Members()); n != 3 {
		t.Errorf("%d members", n)
	}
	for _, who := range []string{"A", "B", c.Instance()} {
		g.NotifyLeave(&memberlist.Node{Name: who})
	}
	if !slices.Equal(died, []string{"B"}) || !c.others.alone() {
		t.Errorf("died: %q", died)
	}
}

func TestMeta(t *testing.T) {
	m := meta{Format: 1, Links: 7947, State: Ready, Version: "1.2.0", Digest: "9f2c"}
	if text := string(m.encode()); text != `{"f":1,"l":7947,"s":"ready","v":"1.2.0","d":"9f2c"}` || parseMeta([]byte(text)) != m {
		t.Errorf("got %s", text)
	}
	if got := parseMeta([]byte(`{"f":2,"l":7,"s":"resting","new":{}}`)); got != (meta{Format: 2, Links: 7, State: "resting"}) {
		t.Errorf("of a later version: %+v", got)
	}
	for _, text := range []string{"", "{", "[]", "{}", `{"f":1}`, `{"f":1,"l":65536}`, `{"f":1,"l":"7"}`, `{"f":0,"l":7}`} {
		if got := parseMeta([]byte(text)); got != (meta{}) {
			t.Errorf("%s: %+v", text, got)
		}
	}
	m.Version, m.Digest = strings.Repeat("\x00é<\"v", 500), strings.Repeat("\\d", 500)
	if text := m.encode(); len(text) > 512 || parseMeta(text).Digest != strings.Repeat("d", maxText) {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

func TestBadNamesToJoin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, file, hexOf(1))
	for _, name := range []string{"", ":7946"} {
		if _, err := New(Options{KeyFile: file, Join: []string{name}}); err == nil || !strings.Contains(err.Error(), "cluster.join ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Some lost packets are normal; with UDP blocked, every probe is lost.
func TestLostProbes(t *testing.T) {
	var l gossipLog
	now := time.Now()
	count := func(n int, every time.Duration) (warnings int) {
		for range n {
			now = now.Add(every)
			if l.lose(now) {
				warnings++
			}
		}
		return warnings
	}
	if n := count(100, 4*time.Second); n != 0 {
		t.Errorf("%d warnings of some lost packets", n)
	}
	if n := count(500, probeEvery); n != 1 {
		t.Errorf("%d warnings of blocked UDP, want 1", n)
	}
}
