package session

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

const listsTools = `{"jsonrpc":"2.0","id":"list","method":"tools/list"}`

// silent makes upstreams answer nothing of a method, "" for nothing at all, from now on.
func (w *world) silent(upstream, method string) {
	w.t.Helper()
	hand := echo(upstream)
	if method == "" {
		hand = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hands == nil {
		w.hands = map[string]func(*party, *jsonrpc.Message){}
	}
	w.hands[upstream] = func(p *party, m *jsonrpc.Message) {
		if hand != nil && m.Method != method {
			hand(p, m)
		}
	}
	for _, p := range w.conns[stream(upstream, w.era)] {
		p.handle(w.hands[upstream])
	}
}

// took returns how long the client waits for an answer to a request, at most a minute.
func (w *world) took(text string) (d time.Duration, answer string) {
	w.t.Helper()
	began := time.Now()
	w.client.say(text)
	for synctest.Wait(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if got := w.client.take(); len(got) > 0 {
			return time.Since(began), strings.Join(got, "\n")
		}
	}
	w.t.Fatalf("no answer to %s", text)
	return 0, ""
}

// hello is how a client of the world's era begins.
func (w *world) hello() string {
	if w.era == mcp.Modern {
		return `{"jsonrpc":"2.0","id":0,"method":"server/discover"}`
	}
	return `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
}

// next is another client of the same proxy and upstreams.
func (w *world) next() *world {
	other := &world{t: w.t, era: w.era, translated: w.translated, proxy: w.proxy, conns: w.conns, hands: w.hands, dial: w.dial}
	other.connect()
	return other
}

// wantTook fails the test if a client did not wait about so long.
func wantTook(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want || got > want+10*time.Millisecond {
		t.Errorf("%s took %v, not %v", what, got, want)
	}
}

// Whoever comes first waits for an upstream that hangs, and nobody else, until it has
// answered.
func TestNobodyWaitsTwice(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "hung", "b"}, func(w *world) {
		w.silent("hung", "")
		d, got := w.took(w.hello())
		wantTook(t, "the first client's initialize", d, 8*time.Second)
		if !strings.Contains(got, `"completions":{}`) {
			t.Error("not everything is advertised:", got)
		}
		d, got = w.took(listsTools)
		wantTook(t, "its list", d, 0)
		if !strings.Contains(got, "a__echo") || !strings.Contains(got, "b__echo") || strings.Contains(got, "hung__") {
			t.Error("listed", got)
		}
		second := w.next()
		defer second.leave()
		d, _ = second.took(second.hello())
		wantTook(t, "the second client's initialize", d, 0)
		d, _ = second.took(listsTools)
		wantTook(t, "its list", d, 0)
		for _, name := range []string{"unknown", "a__unknown"} {
			d, got = second.took(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `"}}`)
			if wantTook(t, "the look for "+name, d, 0); !strings.Contains(got, "Unknown tool") {
				t.Error(got)
			}
		}
		d, got = second.took(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"test://nobody"}}`)
		wantTook(t, "the look for a resource", d, 0)
		if !strings.Contains(got, `"result":{`) { // an echo has all
			t.Error(got)
		}
		d, _ = second.took(`{"jsonrpc":"2.0","id":2,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"unknown"}}}`)
		wantTook(t, "the look for a prompt", d, 0)
	})
}

// An upstream that starts late is told of, and waited for again.
func TestLateUpstreamComes(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "slow"}, func(w *world) {
		w.silent("slow", "")
		w.took(w.hello())
		if w.era == mcp.Modern {
			w.took(listenTools)
		} else {
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		}
		w.took(listsTools)
		time.Sleep(30 * time.Second)
		w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow__echo"}}`)
		w.client.want() // a call waits
		slow := w.upstream("slow")
		slow.handle(echo("slow"))
		w.catchesUp("slow")
		time.Sleep(time.Second)
		if got := strings.Join(w.client.take(), "\n"); strings.Count(got, "tools/list_changed") != 1 || strings.Count(got, `"id":7,"result"`) != 1 {
			t.Errorf("got %s", got)
		}
		if _, got := w.took(listsTools); !strings.Contains(got, "slow__echo") {
			t.Error("listed", got)
		}
		if w.proxy.memory.WasLate("slow", lists.Starts) {
			t.Error("it counts as late")
		}
		next := w.next()
		defer next.leave()
		d, _ := next.took(next.hello()) // slow again, as a process of its own is
		wantTook(t, "the next client's initialize", d, 8*time.Second)
	})
}

// catchesUp makes an upstream answer what it has got so far.
func (w *world) catchesUp(upstream string) {
	u := w.newest(upstream)
	for _, text := range u.take() {
		if m := decode(w.t, text); m.IsRequest() && !strings.Contains(text, `"cancelled"`) {
			echo(upstream)(u, m)
		}
	}
}

// One that has started, and answers some lists only, is late for the others alone.
func TestLateList(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		if w.era == mcp.Modern {
			w.took(listenTools)
		}
		w.silent("b", "tools/list")
		d, _ := w.took(listsTools)
		wantTook(t, "the first list", d, 10*time.Second)
		d, _ = w.took(listsTools)
		wantTook(t, "the second list", d, 0)
		other := w.next()
		defer other.leave()
		other.initialize()
		d, _ = other.took(listsTools)
		wantTook(t, "the list of another client", d, 0)
		w.silent("b", "nothing")
		time.Sleep(10 * time.Second) // what it was asked meanwhile has timed out
		w.client.want()
		w.client.say(`{"jsonrpc":"2.0","id":5,"method":"prompts/list"}`) // it answers, and is asked again
		time.Sleep(time.Second)
		if got := strings.Join(w.client.take(), "\n"); strings.Count(got, "tools/list_changed") != 1 {
			t.Errorf("got %s", got)
		}
		if _, got := w.took(listsTools); !strings.Contains(got, "b__echo") {
			t.Error("listed", got)
		}
		if w.proxy.memory.WasLate("b", "tools/list") {
			t.Error("it counts as late")
		}
	})
}

// If all are late, they are waited for each time; one that answers is enough.
func TestAllLate(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.silent("a", "")
		w.silent("b", "")
		for range 2 {
			next := w.next()
			d, _ := next.took(next.hello())
			wantTook(t, "initialize", d, 8*time.Second)
			d, got := next.took(listsTools)
			if wantTook(t, "the list", d, 10*time.Second); !strings.Contains(got, `"error"`) {
				t.Error("listed", got)
			}
			next.leave()
		}
		w.silent("b", "nothing")
		next := w.next()
		defer next.leave()
		d, _ := next.took(next.hello())
		wantTook(t, "initialize", d, 0)
		d, got := next.took(listsTools)
		if wantTook(t, "the list", d, 0); !strings.Contains(got, "b__echo") {
			t.Error("listed", got)
		}
	})
}

// While an upstream starts again, what anybody saw last of it stays in lists, and
// can be called.
func TestStartingStaysListed(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "slow"}, func(w *world) {
		w.offersTools("slow", "one", "two")
		w.initialize()
		w.list()
		w.silent("slow", "")
		w.proxy.Update([]Upstream{{Name: "a"}, {Name: "slow", Deny: []string{"two"}}}, nil)
		next := w.next()
		defer next.leave()
		next.took(next.hello())
		d, got := next.took(listsTools)
		if wantTook(t, "the list", d, 0); !strings.Contains(got, "slow__one") || strings.Contains(got, "slow__two") {
			t.Error("listed", got)
		}
		next.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow__one"}}`)
		next.client.want() // it waits
	})
}

// An upstream that is something else now, or whose link is back, is waited for.
func TestLateUpstreamReturns(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "hung"}, func(w *world) {
		w.silent("hung", "")
		w.took(w.hello())
		for name, change := range map[string]func(){
			"returned": func() { w.proxy.Returned("hung") },
			"replaced": func() {
				w.proxy.Update([]Upstream{{Name: "a"}}, nil)
				w.proxy.Update([]Upstream{{Name: "a"}, {Name: "hung"}}, nil)
			},
			"": func() { w.proxy.Returned("a") },
		} {
			change()
			next := w.next()
			d, _ := next.took(next.hello())
			if want := map[bool]time.Duration{true: 8 * time.Second}[name != ""]; d < want || d > want+time.Second {
				t.Errorf("%q: took %v", name, d)
			}
			next.leave()
		}
	})
}

// Upstreams that are not known since a link is not up hold up one client.
func TestUnknownAreWaitedForOnce(t *testing.T) {
	inEras(t, &Router{}, nil, func(w *world) {
		w.proxy.Update([]Upstream{{Name: "a"}}, farAway)
		for _, want := range []time.Duration{8 * time.Second, 0, 0} {
			next := w.next()
			d, _ := next.took(next.hello())
			wantTook(t, "initialize", d, want)
			d, _ = next.took(listsTools)
			wantTook(t, "the list", d, 0)
			next.leave()
			w.proxy.Update([]Upstream{{Name: "a"}, {Name: "b"}}, farAway) // one of several links is up
		}
	})
}

// The log says what is true: whoever has not started may still start.
func TestStillStarting(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			var log strings.Builder
			inWorldOf(t, era, &Router{Log: slog.New(slog.NewJSONHandler(&log, nil))}, []string{"a", "hung"}, func(w *world) {
				w.silent("hung", "")
				w.took(w.hello())
				w.took(listsTools)
				if text := log.String(); strings.Count(text, "still starting") != 2 || strings.Contains(text, "start timeout") {
					t.Error(text)
				}
			})
		})
	}
}

// A program that does not give up after 10 s says how long initialize may wait.
func TestMaxStart(t *testing.T) {
	inEras(t, &Router{Limits: Limits{MaxStart: 20 * time.Second}}, []string{"a", "hung"}, func(w *world) {
		w.silent("hung", "")
		d, _ := w.took(w.hello())
		wantTook(t, "initialize", d, 20*time.Second)
	})
}

// A client whose sole upstream does not start in time hears how that has described itself to another client.
func TestSlowStartOfKnownUpstream(t *testing.T) {
	inWorld(t, &Router{}, []string{"a"}, func(w *world) {
		wait := time.Duration(0)
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method != "initialize" {
				echo("a")(p, m)
				return
			}
			answer := jsonrpc.NewResult(m.ID, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"own","version":"1"},"instructions":"Read."}`))
			time.AfterFunc(wait, func() { p.conn.Send(answer) })
		}}
		const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`
		w.client.say(initialize)
		synctest.Wait()
		first := strings.Join(w.client.take(), "\n")
		wait = 20 * time.Second
		w.reconnectAs()
		w.client.say(initialize)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if got := strings.Join(w.client.take(), "\n"); got != first || !strings.Contains(got, `"Read."`) {
			t.Errorf("the second client got %s, the first one %s", got, first)
		}
		time.Sleep(time.Minute)
	})
}
