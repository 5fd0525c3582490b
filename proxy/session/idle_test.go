package session

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// resting returns a Router whose upstreams rest after a minute.
func resting(names ...string) *Router {
	p := &Router{}
	for _, n := range names {
		p.Upstreams = append(p.Upstreams, Upstream{Name: n, IdleStop: time.Minute})
	}
	return p
}

// streams returns the number of streams to an upstream so far.
func (w *world) streams(name string) int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns[stream(name, w.era)])
}

// wantRest checks whether the newest stream to an upstream was closed.
func (w *world) wantRest(when, name string, rests bool) {
	w.t.Helper()
	if w.upstream(name).gone() != rests {
		w.t.Errorf("%s: rests %v, want %v", when, !rests, rests)
	}
}

func TestRest(t *testing.T) {
	inWorld(t, resting("a", "b"), nil, func(w *world) {
		w.initialize()
		w.list()
		time.Sleep(59 * time.Second)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__echo"}}`)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}`)
		w.client.take()
		time.Sleep(59 * time.Second)
		w.wantRest("too early", "b", false)
		time.Sleep(time.Second)
		w.wantRest("after a minute", "a", true)
		w.wantRest("after a minute", "b", true)
		if all := w.proxy.Traffic(); all["a"].Resting != 1 || all["b"].Resting != 1 {
			t.Errorf("traffic: %+v", all)
		}
		time.Sleep(time.Hour)
		w.client.want()

		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"b__echo","arguments":{"n":1}}}`)
		w.client.want(`{"jsonrpc":"2.0","id":3,"result":{"content":[],"structuredContent":{"by":"b","args":{"n":1}}}}`)
		if a, b := w.streams("a"), w.streams("b"); a != 1 || b != 2 {
			t.Errorf("%d and %d streams, want 1 and 2", a, b)
		}
		got := slices.DeleteFunc(w.upstream("b").take(), func(m string) bool { return strings.Contains(m, "tools/list") }) // which may come at any time
		for i, want := range []string{`"initialize"`, `"notifications/initialized"`, `"logging/setLevel","params":{"level":"error"}`, `"tools/call"`} {
			if i >= len(got) || !strings.Contains(got[i], want) {
				t.Fatalf("message %d is not %s: %q", i, want, got)
			}
		}
		if all := w.proxy.Traffic(); all["a"].Resting != 1 || all["b"].Resting != 0 {
			t.Errorf("traffic: %+v", all)
		}
	})
}

// A server that has other lists when it comes back is a change.
func TestRestedServerChanges(t *testing.T) {
	inWorld(t, resting("a", "b"), nil, func(w *world) {
		w.initialize()
		w.list()
		w.client.take()
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == mcp.MethodToolsList {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[]}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.mu.Unlock()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"a__ask"}}`)
		synctest.Wait()
		time.Sleep(time.Second)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	})
}

// What keeps an upstream awake, and what ends that.
func TestAwake(t *testing.T) {
	type step = func(w *world)
	client := func(text string) step { return func(w *world) { w.client.say(text) } }
	server := func(text string) step { return func(w *world) { w.upstream("a").say(text) } }
	extended := func(id int, method, members string) step {
		return func(w *world) {
			w.client.conn.Send(w.says(id, `{"extensions":{"`+mcp.ExtensionTasks+`":{}}}`, method, members))
		}
	}
	task := func(status string) string { return `{"taskId":"t","status":"` + status + `"}` }
	tests := map[string]struct {
		era       mcp.Era
		work, end step
	}{
		"call": {mcp.Legacy,
			client(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mute"}}`),
			client(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)},
		"server request": {mcp.Legacy,
			server(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`),
			client(`{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}`)},
		"subscription": {mcp.Legacy,
			client(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`),
			client(`{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe","params":{"uri":"test://a/a"}}`)},
		"task": {mcp.Legacy,
			client(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"long","task":{}}}`),
			server(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":` + task("failed") + `}`)},
		"task of the client": {mcp.Legacy,
			func(w *world) {
				server(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"task":{}}}`)(w)
				synctest.Wait()
				client(`{"jsonrpc":"2.0","id":1,"result":{"task":` + task("working") + `}}`)(w)
			},
			func(w *world) {
				server(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":"t"}}`)(w)
				synctest.Wait()
				client(`{"jsonrpc":"2.0","id":2,"result":{}}`)(w)
			}},
		"polled task of the client": {mcp.Legacy,
			func(w *world) {
				server(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"task":{}}}`)(w)
				synctest.Wait()
				client(`{"jsonrpc":"2.0","id":1,"result":{"task":` + task("working") + `}}`)(w)
			},
			func(w *world) {
				server(`{"jsonrpc":"2.0","id":"r","method":"tasks/get","params":{"taskId":"t"}}`)(w)
				synctest.Wait()
				client(`{"jsonrpc":"2.0","id":2,"result":` + task("completed") + `}`)(w)
			}},
		"listen": {mcp.Modern,
			client(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["test://a/a"]}}}`),
			client(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)},
		"task of the extension": {mcp.Modern,
			extended(1, "tools/call", `"name":"long"`), extended(2, "tasks/cancel", `"taskId":"t"`)},
		"suspended call": {mcp.Modern,
			client(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`),
			client(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","requestState":"s\u0031","inputResponses":{}}}`)},
	}
	hand := func(p *party, m *jsonrpc.Message) {
		name, _ := jsonrpc.Member(m.Params, "name")
		result := ""
		switch {
		case string(name) == `"mute"`:
			return
		case string(name) == `"long"` && p.era == mcp.Modern:
			result = `{"resultType":"task","taskId":"t","status":"working"}`
		case string(name) == `"long"`:
			result = `{"task":` + task("working") + `}`
		case string(name) == `"ask"`:
			result = `{"resultType":"input_required","inputRequests":{},"requestState":"s1"}`
		case m.Method == mcp.MethodTasksCancel:
			result = `{"resultType":"complete","taskId":"t","status":"cancelled"}`
		default:
			echo("a")(p, m)
			return
		}
		p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(result)))
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inWorldOf(t, test.era, resting("a"), nil, func(w *world) {
				w.hands = map[string]func(*party, *jsonrpc.Message){"a": hand}
				w.initialize()
				time.Sleep(30 * time.Second)
				test.work(w)
				synctest.Wait()
				time.Sleep(9*time.Minute + 59*time.Second)
				w.wantRest("while it works", "a", false)
				test.end(w)
				synctest.Wait()
				time.Sleep(59 * time.Second)
				w.wantRest("soon after the work", "a", false)
				time.Sleep(9 * time.Second) // an eighth of a minute, and a second
				w.wantRest("after the work", "a", true)
				if n := w.streams("a"); n != 1 {
					t.Errorf("%d streams", n)
				}
			})
		})
	}
}

// A client that does not return to a suspended call keeps its server for suspendedFor.
func TestSuspendedCallIsGivenUp(t *testing.T) {
	inWorldOf(t, mcp.Modern, resting("a"), nil, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == mcp.MethodToolsCall {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"resultType":"input_required","inputRequests":{},"requestState":"s"}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
		time.Sleep(suspendedFor)
		w.wantRest("while the client may return", "a", false)
		time.Sleep(2 * time.Minute)
		w.wantRest("later", "a", true)
	})
}

// Notifications of a server do not keep it awake, nor do those that start nothing.
func TestNotAwake(t *testing.T) {
	inWorld(t, resting("a", "b"), nil, func(w *world) {
		w.initialize()
		for range 7 {
			time.Sleep(9 * time.Second)
			w.upstream("a").say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}`)
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		}
		w.wantRest("after a minute", "a", true)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		w.client.take()
		time.Sleep(time.Hour)
		if a, b := w.streams("a"), w.streams("b"); a != 1 || b != 1 {
			t.Errorf("%d and %d streams, want 1 and 1", a, b)
		}
	})
}

// A notification of the client that a sole upstream may know wakes it.
func TestNotificationWakes(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			inWorldOf(t, era, resting("a"), nil, func(w *world) {
				w.initialize()
				time.Sleep(time.Hour)
				w.client.say(`{"jsonrpc":"2.0","method":"notifications/vendor","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
				if era == mcp.Legacy {
					w.client.say(`{"jsonrpc":"2.0","method":"notifications/other"}`)
				}
				synctest.Wait()
				if n := w.streams("a"); n != 2 {
					t.Errorf("%d streams, want 2", n)
				}
				if got := strings.Join(w.upstream("a").take(), "\n"); era == mcp.Legacy && !strings.Contains(got, "notifications/other") {
					t.Errorf("got %s", got)
				}
			})
		})
	}
}

// A thousand rests, each with calls at the same moment: no call is lost, refused or run twice.
func TestRestAndBack(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			var mu sync.Mutex
			runs := make(map[string]int)
			inWorldOf(t, era, resting("a"), nil, func(w *world) {
				w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
					if m.Method == mcp.MethodToolsCall {
						args, _ := jsonrpc.Member(m.Params, "arguments")
						mu.Lock()
						runs[string(args)]++
						mu.Unlock()
					}
					echo("a")(p, m)
				}}
				w.initialize()
				const rounds, each = 1000, 3
				for i := range rounds {
					time.Sleep(time.Minute) // the look and the calls come at the same time
					for j := range each {
						w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"n":%[1]d}}}`, 1+i*each+j))
					}
					got := w.client.take()
					if len(got) != each {
						t.Fatalf("round %d: got %q", i, got)
					}
					for _, text := range got {
						if !strings.Contains(text, `"by":"a"`) {
							t.Fatalf("round %d: got %s", i, text)
						}
					}
				}
				for n, times := range runs {
					if times != 1 {
						t.Errorf("%s ran %d times", n, times)
					}
				}
				if len(runs) != rounds*each {
					t.Errorf("%d calls ran", len(runs))
				}
				if n := w.streams("a"); n < rounds/20 {
					t.Errorf("only %d streams", n)
				} else {
					t.Logf("%d streams", n)
				}
			})
		})
	}
}

// A slowTracer takes two minutes to begin the trace of a call for a client.
type slowTracer struct{}

func (slowTracer) Follow(observe.Request, observe.Arrival) observe.Trace { return slowTrace{} }

func (slowTracer) FollowCall(observe.Call, observe.TraceContext) observe.CallTrace {
	return nil
}

type slowTrace struct{}

func (slowTrace) ID() string                       { return "" }
func (slowTrace) End(observe.Request, observe.End) {}
func (slowTrace) Call(observe.Call, string) observe.CallTrace {
	time.Sleep(2 * time.Minute)
	return nil
}

// A call keeps its upstream awake from the moment at which the session has chosen the stream.
func TestEntered(t *testing.T) {
	p := resting("a", "b")
	p.Hooks.Follower = slowTracer{}
	inWorld(t, p, nil, func(w *world) {
		w.initialize()
		w.client.take()
		for i := range 3 {
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"a__ask"}}`)
			time.Sleep(time.Hour)
			if got := w.client.take(); len(got) != 1 || strings.Contains(got[0], `"error"`) {
				t.Fatalf("got %q in round %d", got, i)
			}
			w.wantRest("after the call", "a", true)
		}
	})
}

// Look-ups of unknown names do not wake an upstream. What it lists may differ when it is back.
func TestLookUpWhileResting(t *testing.T) {
	inWorld(t, resting("a", "b"), nil, func(w *world) {
		w.initialize()
		unknown := func(name, answer string) {
			t.Helper()
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `"}}`)
			if got := strings.Join(w.client.take(), "\n"); !strings.Contains(got, answer) {
				t.Errorf("%s: got %s", name, got)
			}
		}
		unknown("other", "Unknown tool")
		time.Sleep(time.Hour)
		w.mu.Lock()
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == mcp.MethodToolsList {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[{"name":"other"}]}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.mu.Unlock()
		unknown("other", "Unknown tool")
		if a, b := w.streams("a"), w.streams("b"); a != 1 || b != 1 {
			t.Errorf("%d and %d streams, want 1 and 1", a, b)
		}
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"a__ask"}}`)
		w.client.take()
		unknown("other", `"by":"a"`)
		if a, b := w.streams("a"), w.streams("b"); a != 2 || b != 1 {
			t.Errorf("%d and %d streams, want 2 and 1", a, b)
		}
	})
}

// A server that was stopped may count its tasks from 1 again.
func TestReusedTaskIDs(t *testing.T) {
	inWorld(t, resting("a", "b"), nil, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			switch m.Method {
			case "tools/call":
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"task":{"taskId":"task-1","status":"working"}}`)))
			case "tasks/result":
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"content":[]}`)))
			default:
				echo("a")(p, m)
			}
		}}
		w.initialize()
		w.list()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo","task":{}}}`)
		w.client.take()
		time.Sleep(10 * time.Minute)
		w.wantRest("while a task runs", "a", false)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"a__task-1"}}`)
		w.client.take()
		time.Sleep(10 * time.Minute)
		w.wantRest("after it", "a", true)
		// the next server counts from 1 again
		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a__echo","task":{}}}`)
		w.client.take()
		time.Sleep(10 * time.Minute)
		w.wantRest("while the second task runs", "a", false)
	})
}
