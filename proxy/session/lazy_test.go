package session

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

const listenLists = `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}`

// inLazyEras runs a test in both eras with upstreams that start when they are needed, and in the
// modern one also with hosts that translate for them.
func inLazyEras(t *testing.T, names []string, test func(w *world)) {
	for _, way := range []string{"legacy", "modern", "translated"} {
		t.Run(way, func(t *testing.T) {
			p, era := &Router{}, mcp.Modern
			for _, n := range names {
				p.Upstreams = append(p.Upstreams, Upstream{Name: n, Lazy: true})
			}
			if way == "legacy" {
				era = mcp.Legacy
			}
			inWorldOf(t, era, p, nil, func(w *world) {
				w.translated = way == "translated"
				test(w)
			})
		})
	}
}

// public makes an echo say that everybody may cache its lists.
func public(name string) func(*party, *jsonrpc.Message) {
	return caching(name, "2026-07-28", `,"resultType":"complete","ttlMs":60000,"cacheScope":"public"}`)
}

// translated makes an echo speak like a host that translates for a server of the legacy era.
func translated(name string) func(*party, *jsonrpc.Message) {
	return caching(name, "2025-11-25", `,"resultType":"complete","ttlMs":0,"cacheScope":"private"}`)
}

// caching makes an echo of the modern era say that it speaks a version, and more of its lists.
func caching(name, version, rest string) func(*party, *jsonrpc.Message) {
	hand := echo(name)
	return func(p *party, m *jsonrpc.Message) {
		switch {
		case p.era == mcp.Modern && m.Method == mcp.MethodDiscover:
			p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"supportedVersions":["` + version + `"],"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"completions":{}}` + rest + `}`)
			return
		case p.era != mcp.Modern || !strings.HasSuffix(m.Method, "/list"):
			hand(p, m)
			return
		}
		switch m.Method {
		case "tools/list":
			p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]` + rest + `}`)
		case "prompts/list":
			p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"prompts":[]` + rest + `}`)
		case "resources/list":
			p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"resources":[]` + rest + `}`)
		default:
			p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"resourceTemplates":[]` + rest + `}`)
		}
	}
}

// streamsTo returns how many streams to an upstream were opened, and how many are open.
func (w *world) streamsTo(name string) (opened, open int) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.conns[stream(name, w.era)] {
		opened++
		p.mu.Lock()
		if p.err == nil {
			open++
		}
		p.mu.Unlock()
	}
	return opened, open
}

func (w *world) wantStreams(name string, opened, open int) {
	w.t.Helper()
	if o, n := w.streamsTo(name); o != opened || n != open {
		w.t.Errorf("%s: %d streams were opened, %d are open; want %d, %d", name, o, n, opened, open)
	}
}

// publish makes upstreams be such that the catalog may keep what they say.
func (w *world) publish(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hands = map[string]func(*party, *jsonrpc.Message){}
	for _, n := range names {
		w.hands[n] = w.server(n)
	}
}

// server returns an upstream that the catalog may keep.
func (w *world) server(name string) func(*party, *jsonrpc.Message) {
	if w.translated {
		return translated(name)
	}
	return public(name)
}

// A client that only looks starts no server of its own: one trial for all clients says what there
// is.
func TestLookingStartsNothing(t *testing.T) {
	inLazyEras(t, []string{"a", "b"}, func(w *world) {
		w.publish("a", "b")
		for range 2 {
			d, got := w.took(w.hello())
			wantTook(t, "the start", d, 0)
			if !strings.Contains(got, `"completions":{}`) {
				t.Error(got)
			}
			if w.era == mcp.Legacy {
				w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			}
			if _, got = w.took(listsTools); !strings.Contains(got, "a__echo") || !strings.Contains(got, "b__echo") {
				t.Error(got)
			}
			w.wantStreams("a", 1, 0)
			w.wantStreams("b", 1, 0)
			w = w.next()
			defer w.leave()
		}
	})
}

// A notification of an extension starts the server for which it is, also after its server has died.
func TestNotificationStartsItsServer(t *testing.T) {
	for era, meta := range map[mcp.Era]string{mcp.Legacy: `"v":1`, mcp.Modern: `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`} {
		p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true, Methods: []string{"acme/*"}}, {Name: "b", Lazy: true}}}
		inWorldOf(t, era, p, nil, func(w *world) {
			w.publish("a", "b")
			w.initialize()
			w.wantStreams("a", 1, 0) // of the trial that all clients share
			for n := range 2 {
				w.client.say(`{"jsonrpc":"2.0","method":"acme/told","params":{` + meta + `}}`)
				time.Sleep(time.Minute)
				if n := w.asked("a", "acme/told"); n != 1 {
					t.Errorf("told %d times", n)
				}
				w.wantStreams("a", n+2, 1)
				w.die("a", "killed", true)
				time.Sleep(time.Minute)
			}
			w.wantStreams("b", 1, 0)
		})
	}
}

// A server of the modern era says how long its lists may be used. Then its clients ask it again.
func TestListsOfTheModernEraExpire(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		time.Sleep(30 * time.Second)
		if _, got := w.took(listsTools); !strings.Contains(got, `"ttlMs":30000`) {
			t.Error(got)
		}
		w.wantStreams("a", 1, 0)
		time.Sleep(30 * time.Second)
		if _, got := w.took(listsTools); !strings.Contains(got, `"ttlMs":60000`) {
			t.Error(got)
		}
		w.wantStreams("a", 2, 1)
	})
}

// Clients of the modern era use what servers of the legacy era list for as long as those of the
// legacy era do, and are told that they must not keep it. Then the upstreams are asked again, behind
// the answers.
func TestTranslatedListsDoNotExpire(t *testing.T) {
	p := &Router{CatalogAge: 24 * time.Hour, Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.translated = true
		w.publish("a", "b")
		w.initialize()
		for _, asked := range []string{w.hello(), listsTools} {
			time.Sleep(11 * time.Hour)
			_, got := w.took(asked) // without ttlMs 0 and cacheScope private, see party.text
			if strings.Contains(got, "ttlMs") || strings.Contains(got, "cacheScope") || strings.Contains(asked, "tools") && !strings.Contains(got, "b__echo") {
				t.Error(got)
			}
			w.wantStreams("a", 1, 0)
		}
		time.Sleep(3 * time.Hour)
		if d, got := w.took(listsTools); d > 0 || !strings.Contains(got, "b__echo") {
			t.Errorf("after %v: %s", d, got)
		}
		w.wantStreams("a", 2, 0)
		w.wantStreams("b", 2, 0)
	})
}

// Whoever lists after a shared server has reported a change gets the new list, although trials pause
// between changes.
func TestListAfterAChange(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true, Shared: true}}}
	inWorld(t, p, nil, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		w.took(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"b__echo"}}`)
		own := w.upstream("b")
		for _, tool := range []string{"one", "two", "three"} {
			w.relist("b", tool)
			own.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			synctest.Wait()
			next := w.next()
			next.initialize()
			if _, got := next.took(listsTools); !strings.Contains(got, "b__"+tool) {
				t.Errorf("without %s: %s", tool, got)
			}
			next.leave()
		}
		time.Sleep(time.Minute)
		w.client.take()
	})
}

// A shared server whose change of a list nobody heard, because no client listened, is asked again for the catalog
// once a client has seen the change.
func TestChangeThatNobodyHeard(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true, Shared: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.translated = true
		w.publish("a", "b")
		w.initialize()
		w.list()
		w.took(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"b__echo"}}`)
		w.relist("b", "new")
		w.took(listsTools)
		next := w.next()
		defer next.leave()
		next.initialize()
		if _, got := next.took(listsTools); !strings.Contains(got, "b__new") {
			t.Error(got)
		}
	})
}

// The host tells of a change of a translated server also if no client listens, and then the server is asked again for
// the catalog. The client hears nothing of that.
func TestChangeWithoutAListen(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true, Shared: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.translated = true
		w.publish("a", "b")
		w.initialize()
		w.list()
		w.took(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"b__echo"}}`)
		w.relist("b", "new")
		w.upstream("b").say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		synctest.Wait()
		next := w.next()
		defer next.leave()
		next.initialize()
		if _, got := next.took(listsTools); !strings.Contains(got, "b__new") {
			t.Error(got)
		}
		if got := w.client.take(); len(got) > 0 {
			t.Errorf("the client got %s", got)
		}
	})
}

// A server of the legacy era whose first list of a session differs from the catalog makes it ask
// again, once, although no client of the modern era listens. A server that all clients share makes
// it ask again for each change that it reports.
func TestTranslatedListsAreRenewed(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true, Shared: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.translated = true
		w.publish("a", "b")
		w.initialize()
		w.list()
		other := w.next()
		defer other.leave()
		other.initialize()
		other.list()
		other.took(listenLists)
		time.Sleep(time.Minute)
		w.relist("a", "new")
		w.took(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__echo"}}`)
		w.wantStreams("a", 2, 1)
		for range 2 {
			if _, got := w.took(listsTools); !strings.Contains(got, "a__new") {
				t.Error(got)
			}
			w.wantStreams("a", 3, 1)
			time.Sleep(2 * time.Minute)
		}
		if got := strings.Join(other.client.take(), "\n"); strings.Count(got, "tools/list_changed") != 1 {
			t.Errorf("the other client got %s", got)
		}
		if _, got := other.took(listsTools); !strings.Contains(got, "a__new") {
			t.Error(got)
		}
		w.took(listenLists)
		w.wantStreams("b", 1, 0)
		w.took(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"b__echo"}}`)
		w.relist("b", "newer")
		w.changeTools("a")
		w.changeTools("b")
		time.Sleep(time.Second)
		w.wantStreams("a", 3, 1) // which changed a list for this client alone
		w.wantStreams("b", 3, 1)
		if got := strings.Join(other.client.take(), "\n"); strings.Count(got, "tools/list_changed") != 1 {
			t.Errorf("the other client got %s", got)
		}
		if _, got := other.took(listsTools); !strings.Contains(got, "b__newer") {
			t.Error(got)
		}
		w.client.take()
	})
}

// A server of the legacy era that lists something else for one client alone makes the catalog ask
// again once, not for each list.
func TestTranslatedListsOfOneClient(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.translated = true
		w.publish("a", "b")
		w.initialize()
		w.took(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__echo"}}`)
		w.relist("a", "mine")
		w.publish("a", "b") // for servers that start now
		for range 3 {
			time.Sleep(2 * time.Minute)
			if _, got := w.took(listsTools); !strings.Contains(got, "a__mine") {
				t.Error(got)
			}
			w.wantStreams("a", 3, 1)
		}
	})
}

// That an upstream with the headers of its client lists something else to that is no change of its lists for the
// others, which go on with the catalog, and are not asked for again for each client.
func TestListsOfOneUser(t *testing.T) {
	p := &Router{Upstreams: []Upstream{
		{Name: "a", Lazy: true}, {Name: "b", Lazy: true, Shared: true, Forward: []Forward{{From: "X-User", To: "X-User"}}},
	}}
	inWorld(t, p, nil, func(w *world) {
		w.publish("a", "b")
		var users sync.Map // parties that are servers of a client, and not of a trial
		hand := w.hands["b"]
		w.hands["b"] = func(p *party, m *jsonrpc.Message) {
			if m.Method == mcp.MethodInitialize && strings.Contains(string(m.Params), `"name":"t"`) {
				users.Store(p, true)
			}
			if _, user := users.Load(p); user && m.Method == mcp.MethodToolsList {
				p.conn.Send(jsonrpc.NewResult(m.ID, []byte(`{"tools":[{"name":"mine"},{"name":"echo"}]}`)))
				return
			}
			hand(p, m)
		}
		for range 5 {
			client := w.next()
			client.initialize()
			client.list()
			client.took(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"b__echo"}}`)
			client.leave()
			time.Sleep(6 * time.Second)
		}
		w.wantStreams("b", 6, 0) // one of a trial
	})
}

// relist makes an upstream list one more tool.
func (w *world) relist(name, tool string) {
	hand, page := w.server(name), `{"tools":[{"name":"`+tool+`"},{"name":"echo"}],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`
	changed := func(p *party, m *jsonrpc.Message) {
		if m.Method == mcp.MethodToolsList {
			p.conn.Send(jsonrpc.NewResult(m.ID, []byte(page)))
			return
		}
		hand(p, m)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hands[name] = changed
	for _, p := range w.conns[stream(name, w.era)] {
		p.handle(changed)
	}
}

// changeTools makes each server of an upstream tell those that listen to it that its tools changed.
func (w *world) changeTools(name string) {
	synctest.Wait()
	w.mu.Lock()
	parties := slices.Clone(w.conns[stream(name, w.era)])
	w.mu.Unlock()
	for _, p := range parties {
		for _, text := range p.take() {
			if id, _ := jsonrpc.Member([]byte(text), "id"); strings.Contains(text, `"subscriptions/listen"`) {
				p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + string(id) + `}}}`)
			}
		}
	}
}

// A call starts its server alone, which lists before it gets the call.
func TestCallStartsItsServer(t *testing.T) {
	inLazyEras(t, []string{"a", "b"}, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		_, got := w.took(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b__echo","arguments":{"x":1}}}`)
		if !strings.Contains(got, `"args":{"x":1}`) {
			t.Error(got)
		}
		w.wantStreams("a", 1, 0)
		w.wantStreams("b", 2, 1)
		if w.era == mcp.Modern {
			return
		}
		var methods []string
		for _, m := range w.upstream("b").take() {
			method, _ := jsonrpc.Member([]byte(m), "method")
			methods = append(methods, string(method))
		}
		want := `"initialize" "notifications/initialized" "tools/list" "prompts/list" "resources/list" "resources/templates/list" "tools/call"`
		if got := strings.Join(methods, " "); got != want {
			t.Errorf("it got %s, want %s", got, want)
		}
		w.client.want() // nothing differs from the catalog
	})
}

// What a server lists when it starts wins over the catalog: the client is told once, and so are the
// clients whose lists come from the catalog.
func TestServerListsSomethingElse(t *testing.T) {
	inLazyEras(t, []string{"a", "b"}, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		if w.era == mcp.Modern {
			w.took(listenLists)
		}
		other := w.next()
		defer other.leave()
		other.initialize()
		other.list()
		if w.era == mcp.Modern {
			other.took(listenLists)
		}
		time.Sleep(time.Minute)
		hand, scope := w.server("b"), "public"
		if w.translated {
			scope = "private"
		}
		w.mu.Lock()
		w.hands["b"] = func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/list" {
				p.conn.Send(jsonrpc.NewResult(m.ID, []byte(`{"tools":[{"name":"new"},{"name":"echo"}],"resultType":"complete","ttlMs":0,"cacheScope":"`+scope+`"}`)))
				return
			}
			hand(p, m)
		}
		w.mu.Unlock()
		w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b__echo"}}`)
		time.Sleep(time.Second)
		got := strings.Join(w.client.take(), "\n")
		if strings.Count(got, "tools/list_changed") != 1 || strings.Count(got, `"id":7,"result"`) != 1 || strings.Contains(got, "prompts/list_changed") {
			t.Errorf("got %s", got)
		}
		if got := strings.Join(other.client.take(), "\n"); strings.Count(got, "tools/list_changed") != 1 || strings.Contains(got, "resources") {
			t.Errorf("the other client got %s", got)
		}
		for _, w := range []*world{w, other} {
			if _, got := w.took(listsTools); !strings.Contains(got, "b__new") {
				t.Errorf("listed %s", got)
			}
		}
	})
}

// An unknown upstream that hangs costs its first client the time to start, and later ones nothing.
// When it has answered, all are told.
func TestUnknownUpstreamHangs(t *testing.T) {
	inLazyEras(t, []string{"a", "hung"}, func(w *world) {
		w.publish("a")
		w.silent("hung", "")
		d, _ := w.took(w.hello())
		wantTook(t, "the first client's start", d, 8*time.Second)
		if w.era == mcp.Legacy {
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		} else {
			w.took(listenLists)
		}
		d, got := w.took(listsTools)
		if wantTook(t, "its list", d, 0); !strings.Contains(got, "a__echo") {
			t.Error(got)
		}
		second := w.next()
		defer second.leave()
		d, _ = second.took(second.hello())
		wantTook(t, "the second client's start", d, 0)
		w.wantStreams("hung", 1, 1)
		time.Sleep(time.Minute)
		w.wantStreams("hung", 1, 0)
		w.publish("a", "hung")
		d, got = second.took(listsTools)
		if wantTook(t, "its list", d, 0); !strings.Contains(got, "a__echo") {
			t.Error(got)
		}
		time.Sleep(time.Second)
		if got := strings.Join(w.client.take(), "\n"); strings.Count(got, "tools/list_changed") != 1 {
			t.Errorf("the first client got %s", got)
		}
		if _, got := w.took(listsTools); !strings.Contains(got, "hung__echo") {
			t.Error(got)
		}
	})
}

// Subscriptions to changes of lists start nothing, and are replayed when the server starts.
func TestListeningForListsStartsNothing(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		_, got := w.took(listenLists)
		if !strings.Contains(got, "acknowledged") {
			t.Error(got)
		}
		time.Sleep(time.Hour)
		w.wantStreams("a", 1, 0)
		w.took(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__echo"}}`)
		got = strings.Join(w.upstream("a").take(), "\n")
		if !strings.Contains(got, "subscriptions/listen") {
			t.Errorf("its server got %s", got)
		}
		w.wantStreams("b", 1, 0)
	})
}

// A listen for changes of lists keeps nothing awake, and is opened again with the server. One for a
// resource keeps its server awake.
func TestListeningForListsLetsRest(t *testing.T) {
	p := &Router{}
	for _, n := range []string{"a", "b"} {
		p.Upstreams = append(p.Upstreams, Upstream{Name: n, Lazy: true, IdleStop: time.Minute})
	}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		w.took(listenLists)
		for round := range 3 {
			w.took(`{"jsonrpc":"2.0","id":` + strconv.Itoa(round) + `,"method":"tools/call","params":{"name":"a__echo"}}`)
			if got := strings.Join(w.upstream("a").take(), "\n"); strings.Count(got, "subscriptions/listen") != 1 {
				t.Errorf("round %d: its server got %s", round, got)
			}
			time.Sleep(50 * time.Second)
			w.wantStreams("a", round+2, 1)
			time.Sleep(time.Minute)
			w.wantStreams("a", round+2, 0)
		}
		if got := w.client.take(); len(got) > 0 {
			t.Errorf("the client got %s", got)
		}
		w.took(`{"jsonrpc":"2.0","id":"r","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["test://a/t/1"]}}}`)
		time.Sleep(time.Hour)
		if _, open := w.streamsTo("a"); open != 1 {
			t.Errorf("%d streams are open", open)
		}
	})
}

// A subscription to a resource starts its server, and is acknowledged when that has accepted it, also
// if a call has begun the start.
func TestSubscriptionAwaitsItsServer(t *testing.T) {
	for _, called := range []bool{false, true} {
		p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
		inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
			w.publish("a", "b")
			hand := w.server("a")
			w.hands["a"] = func(p *party, m *jsonrpc.Message) {
				switch m.Method {
				case mcp.MethodResourcesList:
					p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"resources":[{"uri":"test://a/a","name":"a"}],"resultType":"complete","ttlMs":60000,"cacheScope":"public"}}`)
					return
				case mcp.MethodListen, mcp.MethodToolsCall:
					time.Sleep(3 * time.Second) // it starts slowly
				}
				hand(p, m)
			}
			w.initialize()
			w.list()
			if called {
				w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__echo"}}`)
				time.Sleep(time.Second)
			}
			w.client.say(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["test://a/a"]}}}`)
			time.Sleep(6 * time.Second)
			want := frame("notifications/subscriptions/acknowledged", `"notifications":{"resourceSubscriptions":["test://a/a"]},`)
			if got := w.client.take(); got[len(got)-1] != want {
				t.Errorf("got %q", got)
			}
			w.wantStreams("b", 1, 0) // of the trial
		})
	}
}

// An upstream that is known and hangs now delays nobody who only looks.
func TestKnownUpstreamHangs(t *testing.T) {
	inLazyEras(t, []string{"a", "hung"}, func(w *world) {
		w.publish("a", "hung")
		w.took(w.hello())
		w.silent("hung", "")
		if w.era == mcp.Legacy {
			other := w.next()
			defer other.leave()
			d, _ := other.took(strings.Replace(w.hello(), `"capabilities":{}`, `"capabilities":{"roots":{}}`, 1))
			wantTook(t, "the start with other capabilities", d, 2*time.Second)
		}
		next := w.next()
		defer next.leave()
		d, _ := next.took(next.hello())
		wantTook(t, "the start", d, 0)
		d, got := next.took(listsTools)
		if wantTook(t, "the list", d, 0); !strings.Contains(got, "hung__echo") {
			t.Error(got)
		}
	})
}

// A name that the catalog does not have starts the upstream with its prefix, which may have it now.
func TestUnknownNameStartsItsServerAlone(t *testing.T) {
	inLazyEras(t, []string{"a", "b"}, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		if _, got := w.took(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__new"}}`); !strings.Contains(got, `Unknown tool: a__new`) {
			t.Error(got)
		}
		if _, got := w.took(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"new"}}`); !strings.Contains(got, `Unknown tool: new`) {
			t.Error(got)
		}
		w.wantStreams("a", 2, 1)
		w.wantStreams("b", 1, 0)
	})
}

// The level of the log and the roots start nothing, and a server gets the level when it starts.
func TestStateStartsNothing(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorld(t, p, nil, func(w *world) {
		w.initialize()
		w.list()
		if _, got := w.took(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`); !strings.Contains(got, `"result":{}`) {
			t.Error(got)
		}
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		w.wantStreams("a", 1, 0)
		w.took(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__echo"}}`)
		got := strings.Join(w.upstream("a").take(), "\n")
		if level, call := strings.Index(got, `"level":"debug"`), strings.Index(got, "tools/call"); level < 0 || call < level {
			t.Errorf("its server got %s", got)
		}
	})
}

// Trials end with the router.
func TestShutdownEndsTrials(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "hung", Lazy: true}}}
	inWorld(t, p, nil, func(w *world) {
		w.silent("hung", "")
		w.client.say(w.hello())
		w.wantStreams("hung", 1, 1)
		trial := func() *lists.Asking {
			return w.proxy.try(lists.Key{Upstream: "hung", Era: mcp.Legacy}, &p.Upstreams[1], lists.NoCapabilities)
		}
		running := trial()
		w.proxy.Shutdown(context.Background())
		w.wantStreams("hung", 1, 0)
		for _, a := range []*lists.Asking{running, trial()} {
			<-a.Done
			if end, ok := errors.AsType[*jsonrpc.ClosedError](a.Err); !ok || end.Cause != jsonrpc.CauseHostStopped || end.Event == "" {
				t.Errorf("%+v", a.Err)
			}
		}
		w.client.take()
	})
}

// Lists of servers that refuse trials say so, as the session of a client would.
func TestTrialThatIsRefused(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorld(t, p, nil, func(w *world) {
		refuse := func(p *party, m *jsonrpc.Message) { p.conn.Send(jsonrpc.NewError(m.ID, jsonrpc.InvalidParams("no"))) }
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": refuse, "b": refuse}
		w.initialize()
		time.Sleep(time.Second)
		w.client.take()
		w.client.say(listsTools)
		time.Sleep(time.Second)
		end := jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Lasting: true}
		w.client.want(ccOf(`"list"`, jsonrpc.CodeInternalError, "a", end, "not_sent"))
	})
}

// In the background each unknown upstream is asked for two kinds of clients, one upstream at a time,
// and so is a new one. Clients wait for none of them.
func TestUnknownIsAskedInTheBackground(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "hung", Lazy: true}, {Name: "b", Lazy: true}, {Name: "eager"}}}
	inWorld(t, p, nil, func(w *world) {
		w.silent("hung", "")
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() { p.LearnUnknown(ctx); close(over) }()
		w.wantStreams("a", 2, 0)
		w.wantStreams("hung", 1, 1)
		w.wantStreams("b", 0, 0)
		time.Sleep(time.Minute)
		w.wantStreams("hung", 1, 0)
		w.wantStreams("b", 2, 0)
		w.wantStreams("eager", 0, 0)
		p.Update(append(p.Upstreams, Upstream{Name: "new", Lazy: true}), nil)
		w.wantStreams("new", 2, 0)
		p.Update(append(p.Upstreams, Upstream{Name: "new", Lazy: true, Digest: "other"}), nil)
		w.wantStreams("new", 4, 0)
		w.wantStreams("a", 2, 0)
		w.wantStreams("hung", 1, 0)
		cancel()
		<-over
	})
}

// An upstream that has failed is left to clients: they get the error of each start.
func TestFailedIsNotAskedInTheBackground(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorld(t, p, nil, func(w *world) {
		w.dial["a"] = jsonrpc.Closed(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed})
		dialled := 0
		dial := p.Dial
		p.Dial = func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
			if upstream == "a" {
				dialled++
			}
			return dial(ctx, upstream, key, era)
		}
		w.initialize()
		before := dialled
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() { p.LearnUnknown(ctx); close(over) }()
		synctest.Wait()
		p.Update(p.Upstreams, nil)
		synctest.Wait()
		if before == 0 || dialled != before {
			t.Errorf("dialled %d times for the client, then %d times", before, dialled-before)
		}
		cancel()
		<-over
	})
}

// Nothing is asked in the background of a router that drains, or that has a sole upstream.
func TestBackgroundOfADrainAndOfASoleUpstream(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		p := &Router{}
		for _, n := range names {
			p.Upstreams = append(p.Upstreams, Upstream{Name: n, Lazy: true})
		}
		inWorld(t, p, nil, func(w *world) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if len(names) > 1 {
				p.Shutdown(context.Background())
				p.LearnUnknown(ctx)
			} else {
				go p.LearnUnknown(ctx)
			}
			w.wantStreams("a", 0, 0)
		})
	}
}
