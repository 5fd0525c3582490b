package session

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// inFlight returns the router's calls, in few words each.
func (w *world) inFlight() (all []string) {
	synctest.Wait()
	calls, _ := w.proxy.Calls(1000)
	for _, c := range calls {
		words := []string{c.Method, c.Tool, "at", c.Upstream, "for", string(c.WaitsFor)}
		if c.Detail != "" {
			words = append(words, "("+c.Detail+")")
		}
		all = append(all, strings.Join(strings.Fields(strings.Join(words, " ")), " "))
	}
	return all
}

func (w *world) wantInFlight(want ...string) {
	w.t.Helper()
	if got := w.inFlight(); !slices.Equal(got, want) {
		w.t.Errorf("in flight:\n%q, want\n%q", got, want)
	}
}

// Each request is listed until it is answered, in both eras, with its client and target.
// Subscriptions are not, because no client waits for their answers.
func TestCallsInFlight(t *testing.T) {
	inEras(t, &Router{Hooks: observe.Hooks{RequestEnded: func(observe.Request, observe.End) {}}}, []string{"files", "docs"}, func(w *world) {
		w.initialize()
		w.list()
		w.upstream("files").mute()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"files__echo"}}`)
		synctest.Wait()
		time.Sleep(time.Minute)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"files__echo"}}`)
		if w.era == mcp.Modern {
			w.client.say(`{"jsonrpc":"2.0","id":3,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}`)
		}
		w.wantInFlight("tools/call echo at files for upstream", "tools/call echo at files for upstream")
		w.client.take()

		calls, leftOut := w.proxy.Calls(1)
		if leftOut != 1 || len(calls) != 1 || time.Since(calls[0].Began) != time.Minute {
			t.Fatalf("the oldest: %+v, and %d", calls, leftOut)
		}
		s := w.proxy.Sessions()[0]
		if c := calls[0]; c.Session != s.ID || c.Era != string(w.era) || c.Principal != s.Principal || (c.Client == "") != (w.era == mcp.Modern) {
			t.Errorf("%+v is not of %+v", c, s)
		}
		listens := 0
		if w.era == mcp.Modern {
			listens = 1
		}
		if s.InFlight != 2 || s.Listens != listens {
			t.Errorf("%d in flight, %d listens", s.InFlight, s.Listens)
		}
		if got := w.proxy.Traffic()["files"]; got.InFlight != 2 {
			t.Errorf("traffic: %+v", got)
		}
		for _, m := range w.upstream("files").take() {
			if call := decode(t, m); call.Method == "tools/call" {
				w.upstream("files").conn.Send(jsonrpc.NewResult(call.ID, json.RawMessage(`{"content":[]}`)))
			}
		}
		w.wantInFlight()
	})
}

// The things that a call waits for: the link, the start, room, and the client.
func TestWhatCallsWaitFor(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		gate := make(chan struct{})
		w.configure(func(p *Router) { p.Dial = gated(w, gate) })
		w.hands = map[string]func(*party, *jsonrpc.Message){"files": nil}
		started := make(chan *jsonrpc.Message, 1)
		w.hands["files"] = func(p *party, m *jsonrpc.Message) {
			if m.Method == "initialize" {
				started <- m
				return
			}
			if m.Method != "tools/call" {
				echo("files")(p, m)
			}
		}
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
		w.wantInFlight("initialize at files for start")
		synctest.Wait()
		time.Sleep(maxStart) // the client goes on without it
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
		w.wantInFlight("tools/call echo at files for link")
		close(gate)
		w.wantInFlight("tools/call echo at files for start")
		echo("files")(w.upstream("files"), <-started)
		w.wantInFlight("tools/call echo at files for upstream")
		w.client.take()

		var call *jsonrpc.Message
		for _, m := range w.upstream("files").take() {
			if m := decode(t, m); m.Method == "tools/call" {
				call = m
			}
		}
		w.upstream("files").conn.Send(&jsonrpc.Message{ID: jsonrpc.IntID(7), Method: "elicitation/create", Related: call.ID})
		w.wantInFlight("tools/call echo at files for client (elicitation/create)")
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		w.wantInFlight("tools/call echo at files for upstream")
		w.upstream("files").conn.Send(&jsonrpc.Message{ID: jsonrpc.IntID(8), Method: "roots/list"})
		w.wantInFlight("tools/call echo at files for client (roots/list, which may be for another call)")
		w.upstream("files").conn.Send(jsonrpc.NewResult(call.ID, json.RawMessage(`{}`)))
		w.wantInFlight()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"` + strings.Repeat("x", mcp.MaxRouted) + `"}}`)
		w.wantInFlight("tools/call " + strings.Repeat("x", maxTool) + " at files for upstream")
	})
}

// A request that waits until the host starts a sole upstream again waits for its start.
func TestWhatStartsWaitFor(t *testing.T) {
	inEras(t, &Router{}, []string{"a"}, func(w *world) {
		w.leave()
		w.connect()
		starts := w.ending(func(stream int) *jsonrpc.ClosedError {
			if stream > 3 {
				return nil
			}
			return &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Event: "e1"}
		})
		w.client.say(w.hello())
		for range 2 { // the first start is tried again at once
			w.wantInFlight(decode(t, w.hello()).Method + " at a for start")
			time.Sleep(lookAgain)
		}
		w.wantInFlight()
		if got := w.client.take(); starts() != 4 || len(got) != 1 || !strings.Contains(got[0], `"result"`) {
			t.Errorf("after %d starts: %q", starts(), got)
		}
	})
}

// A merged list waits for the upstreams that have not answered.
func TestWhatListsWaitFor(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "b", "c"}, func(w *world) {
		w.initialize()
		w.list()
		w.upstream("a").mute()
		for _, name := range []string{"a", "b"} {
			w.upstream(name).conn.Send(&jsonrpc.Message{Method: mcp.MethodPromptsChanged})
		}
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`)
		w.wantInFlight("prompts/list at a for upstream")
		w.upstream("b").mute()
		w.upstream("c").mute()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"resources/list"}`)
		synctest.Wait()
		if got := w.inFlight(); len(got) != 2 || got[1] != "resources/list at for upstream (a, b, c)" {
			t.Errorf("%q", got)
		}
		time.Sleep(time.Minute)
		w.wantInFlight()
	})
}

// Messages that an upstream does not read wait to be sent, and are counted in bytes.
func TestCallsThatWaitForRoom(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		over := make(chan struct{})
		defer close(over)
		w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/call" {
				<-over
			}
			echo("files")(p, m)
		}}
		w.initialize()
		w.list()
		big := `"` + strings.Repeat("x", 1<<10) + `"`
		const calls = 500 // more than the pipe and the writer hold
		for id := range calls {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"x":%s}}}`, id+1, big))
		}
		got := w.inFlight()
		if len(got) != calls || got[0] != "tools/call echo at files for upstream" || got[calls-1] != "tools/call echo at files for room (not sent: its server does not read)" {
			t.Errorf("%d: %q", len(got), slices.Compact(got))
		}
		if n := w.proxy.Traffic()["files"].QueuedBytes; n < 1<<10 {
			t.Errorf("%d bytes wait", n)
		}
	})
}

// The name of a client is kept, also in events after its session. An overlong name is shortened.
func TestNamesOfClientsKeepLittle(t *testing.T) {
	info := fmt.Appendf(nil, `{"name":%q}`, strings.Repeat("n", 1<<20))
	before, after := new(runtime.MemStats), new(runtime.MemStats)
	runtime.GC()
	runtime.ReadMemStats(before)
	var names []string
	for range 64 {
		names = append(names, nameIn(info))
	}
	runtime.GC()
	runtime.ReadMemStats(after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 8<<20 || len(names[0]) != maxName {
		t.Errorf("64 names keep %d MiB", kept>>20)
	}
}

// Without hooks, calls are not timed and nothing is recorded.
func TestNobodyWatches(t *testing.T) {
	for watched, hooks := range map[bool]observe.Hooks{false: {}, true: {RequestEnded: func(observe.Request, observe.End) {}, CallEnded: func(observe.Call, observe.End) {}}} {
		inEras(t, &Router{Hooks: hooks}, []string{"files"}, func(w *world) {
			w.initialize()
			w.list()
			w.upstream("files").mute()
			time.Sleep(time.Minute)
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"io.modelcontextprotocol/clientInfo":{"name":"t"}}}}`)
			synctest.Wait()
			for _, s := range w.proxy.running() {
				for _, pr := range s.client.Requests(nil) {
					r := pr.Value.(*request)
					if r.began != 0 != watched || r.sent.began != 0 != watched {
						t.Errorf("a call that is watched (%v) came at %v, and was sent at %v", watched, r.began, r.sent.began)
					}
					var tells float64
					if !watched {
						tells = testing.AllocsPerRun(100, func() {
							s.observeRequest(r)
							s.observeAnswer(r, jsonrpc.NewResult(jsonrpc.IntID(1), nil))
						})
					}
					if tells > 1 { // for the answer itself
						t.Errorf("to tell nobody costs %v allocations", tells)
					}
				}
			}
			w.client.take()
		})
	}
}
