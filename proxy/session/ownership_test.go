package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// ofSeveral returns a Router whose clients may be different principals.
func ofSeveral() *Router {
	p := new(Router)
	p.Several.Store(true)
	return p
}

// A thief knows everything that an upstream gave to another principal.
type thief struct {
	*world
	thief  *party
	listen jsonrpc.ID // the newest subscription at a server
}

// inTheft runs test in worlds with one and with two upstreams, where the client and the thief are
// two principals.
func inTheft(t *testing.T, test func(w *thief)) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		t.Run(fmt.Sprint(len(names), " upstreams"), func(t *testing.T) {
			inWorld(t, ofSeveral(), names, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				ours, theirs := jsonrpc.Pipe()
				x := &thief{world: w, thief: newPeer(w.t, ours, nil)}
				over := make(chan struct{})
				go func() {
					w.proxy.Serve(ctx, &identity.Identity{Principal: identity.Principal{Kind: identity.JWT, Name: "thief"}}, "", theirs)
					close(over)
				}()
				w.hands = map[string]func(*party, *jsonrpc.Message){}
				for _, name := range names {
					w.hands[name] = x.generous(name)
				}
				defer func() {
					cancel()
					<-over
					ours.Close()
				}()
				test(x)
			})
		})
	}
}

// generous answers like a server that gives everything to everybody.
func (x *thief) generous(name string) func(*party, *jsonrpc.Message) {
	echoes := echo(name)
	return func(p *party, m *jsonrpc.Message) {
		var result string
		text := string(m.Params)
		modern := strings.Contains(text, "protocolVersion\":\"2026-07-28")
		switch {
		case m.Method == "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}}},"serverInfo":{"name":"x","version":"1"}}`
		case m.Method == "server/discover":
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"ttlMs":0,"cacheScope":"private"}`
		case m.Method == "subscriptions/listen":
			x.mu.Lock()
			x.listen = m.ID
			x.mu.Unlock()
			echoes(p, m)
			return
		case !m.IsRequest(), m.Method == "tools/list":
			echoes(p, m)
			return
		case strings.Contains(text, `"requestState"`), strings.HasPrefix(m.Method, "tasks/") && m.Method != "tasks/list":
			result = `{"resultType":"complete","taskId":"T","status":"working","content":[]}`
		case m.Method == "tasks/list":
			result = `{"tasks":[{"taskId":"T","status":"working"}]}`
		case strings.Contains(text, `"ask"`):
			result = `{"resultType":"input_required","inputRequests":{},"requestState":"S"}`
		case modern:
			result = `{"resultType":"task","taskId":"T","status":"working","ttlMs":null}`
		default:
			result = `{"task":{"taskId":"T","status":"working"}}`
		}
		p.conn.Send(jsonrpc.NewResult(m.ID, []byte(result)))
	}
}

// tool returns the client's name of a tool or task of upstream a.
func (x *thief) named(id string) string {
	if len(x.proxy.Upstreams) > 1 {
		return "a__" + id
	}
	return id
}

const modernTasks = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// steal makes the thief send a message of the owner, and the owner send it afterwards. The thief
// must get the answer for a thing that does not exist.
func (x *thief) steal(request string) {
	x.t.Helper()
	x.thief.take()
	x.client.take()
	x.thief.say(`{"jsonrpc":"2.0","id":1,` + request)
	stolen := x.thief.take()
	guess := strings.NewReplacer(`"T"`, `"X"`, `"a__T"`, `"a__X"`, `"S"`, `"Y"`).Replace(request)
	x.thief.say(`{"jsonrpc":"2.0","id":1,` + guess)
	if guessed := x.thief.take(); strings.Join(stolen, "\n") != strings.Join(guessed, "\n") || !strings.Contains(stolen[0], `"error"`) {
		x.t.Errorf("%s\nthe thief got:\n%s\na guess got:\n%s", request, stolen, guessed)
	}
	x.client.say(`{"jsonrpc":"2.0","id":1,` + request)
	if own := x.client.take(); len(own) != 1 || !strings.Contains(own[0], `"result"`) {
		x.t.Errorf("%s\nits owner got: %s", request, own)
	}
}

// A server with one process or one login for all cannot distinguish clients. So nobody can use the
// task, or the state of a request, that another principal was given, in either era.
func TestBelongingsOfModernClients(t *testing.T) {
	inTheft(t, func(x *thief) {
		x.client.say(`{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"` + x.named("echo") + `",` + modernTasks + `}}}`)
		x.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + x.named("echo") + `","arguments":{"ask":1},` + modernTasks + `}}}`)
		if got := strings.Join(x.client.take(), "\n"); !strings.Contains(got, x.named("T")) || !strings.Contains(got, `"S"`) {
			x.t.Fatal(got)
		}
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			x.steal(`"method":"` + method + `","params":{"taskId":"` + x.named("T") + `",` + modernTasks + `}}}`)
		}
		x.steal(`"method":"tools/call","params":{"name":"` + x.named("echo") + `","requestState":"S","inputResponses":{},` + modernTasks + `}}}`)
		x.steal(`"method":"tools/call","params":{"name":"` + x.named("echo") + `",` + modernTasks + `,"io.modelcontextprotocol/related-task":{"taskId":"` + x.named("T") + `"}}}}`)

		listen := `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"taskIds":["` + x.named("T") + `"]},` + modernTasks + `}}}`
		x.thief.say(listen)
		x.client.say(listen)
		synctest.Wait()
		x.world.newest("a" + modernStream).conn.Send(jsonrpc.NewNotification("x", nil))
		if got := strings.Join(x.thief.take(), "\n"); strings.Contains(got, `T"`) {
			x.t.Error("the thief's listen got", got)
		}
		if got := strings.Join(x.client.take(), "\n"); !strings.Contains(got, `"taskIds":["`+x.named("T")+`"]`) {
			x.t.Error("the owner's listen got", got)
		}
	})
}

// The same in the legacy era, where a server lists its tasks and reports them unasked.
func TestBelongingsOfLegacyClients(t *testing.T) {
	inTheft(t, func(x *thief) {
		for _, p := range []*party{x.client, x.thief} {
			p.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
			p.take()
			p.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		}
		x.client.say(`{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"` + x.named("echo") + `","task":{}}}`)
		if got := strings.Join(x.client.take(), "\n"); !strings.Contains(got, x.named("T")) {
			x.t.Fatal(got)
		}
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			x.steal(`"method":"` + method + `","params":{"taskId":"` + x.named("T") + `"}}`)
		}
		list := `{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`
		x.thief.say(list)
		x.thief.want(`{"jsonrpc":"2.0","id":1,"result":{"tasks":[]}}`)
		x.client.say(list)
		x.client.want(`{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"` + x.named("T") + `","status":"working"}]}}`)

		x.mu.Lock()
		streams := x.conns["a"]
		x.mu.Unlock()
		for _, p := range streams { // one for each of the two
			p.conn.Send(jsonrpc.NewNotification("notifications/tasks/status", []byte(`{"taskId":"T","status":"working"}`)))
		}
		x.thief.want()
		x.client.want(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"` + x.named("T") + `","status":"working"}}`)
	})
}

// A server that has restarted may count its tasks anew. Then an id is the task of the principal that was given it
// last: the one before gets neither its state nor its notifications.
func TestTaskIDIsGivenAgain(t *testing.T) {
	inTheft(t, func(x *thief) {
		call := `{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"` + x.named("echo") + `",` + modernTasks + `}}}`
		x.thief.say(call) // has the first task T
		if got := strings.Join(x.thief.take(), ""); !strings.Contains(got, x.named("T")) {
			x.t.Fatal(got)
		}
		x.thief.say(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"taskIds":["` + x.named("T") + `"]},` + modernTasks + `}}}`)
		if got := strings.Join(x.thief.take(), ""); !strings.Contains(got, `"taskIds":["`+x.named("T")+`"]`) {
			x.t.Fatal(got)
		}
		listens := x.upstream("a" + modernStream)
		x.client.say(call)
		x.client.take()
		listens.tell(x.listen, "notifications/tasks", `"taskId":"T","status":"working"`)
		if got := x.thief.take(); len(got) > 0 {
			x.t.Error("who had the id before was told", got)
		}
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			x.steal(`"method":"` + method + `","params":{"taskId":"` + x.named("T") + `",` + modernTasks + `}}}`)
		}
	})
}

// What another process had that is gone is unknown to servers of this one, even if they have something
// with the same name. A server that outlives processes is asked.
func TestOrphans(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		for _, process := range []bool{true, false} {
			t.Run(fmt.Sprint(len(names), " upstreams, processes: ", process), func(t *testing.T) {
				p := new(Router)
				for _, name := range names {
					p.Upstreams = append(p.Upstreams, Upstream{Name: name, Process: process})
				}
				inWorld(t, p, nil, func(w *world) {
					x := &thief{world: w}
					w.hands = map[string]func(*party, *jsonrpc.Message){}
					for _, name := range names {
						w.hands[name] = x.generous(name)
					}
					call := `"method":"tools/call","params":{"name":"` + x.named("echo") + `",`
					w.client.say(`{"jsonrpc":"2.0","id":0,` + call + modernTasks + `}}}`)
					w.client.say(`{"jsonrpc":"2.0","id":1,` + call + `"arguments":{"ask":1},` + modernTasks + `}}}`)
					if got := strings.Join(w.client.take(), "\n"); !strings.Contains(got, x.named("T")) || !strings.Contains(got, `"S"`) {
						w.t.Fatal(got)
					}
					task := `"taskId":"` + x.named("T") + `"`
					for request, refusal := range map[string]string{
						call + `"requestState":"S","inputResponses":{},` + modernTasks + `}}}`:                             "request_state_expired",
						call + modernTasks + `,"io.modelcontextprotocol/related-task":{` + task + `}}}}`:                   "unknown task",
						`"method":"tasks/get","params":{` + task + `,` + modernTasks + `}}}`:                               "unknown task",
						`"method":"tasks/cancel","params":{` + task + `,` + modernTasks + `}}}`:                            "unknown task",
						`"method":"tasks/get","params":{"taskId":"T","x":"from when there was one",` + modernTasks + `}}}`: "unknown task",
						`"method":"acme/x","params":{"requestState":"S",` + modernTasks + `}}}`:                            "request_state_expired",
						`"method":"tasks/x","params":{` + task + `,` + modernTasks + `}}}`:                                 "unknown task",
					} {
						m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":1,` + request))
						if err != nil {
							w.t.Fatal(err)
						}
						var got [2]string
						for i, orphan := range []bool{false, true} {
							again := *m
							again.Orphan = orphan
							w.client.send(&again)
							got[i] = strings.Join(w.client.take(), "\n")
						}
						switch known, foreign := got[0], got[1]; {
						case !strings.Contains(known, `"result"`) && !strings.Contains(request, "acme/x"):
							w.t.Errorf("%s:\n%s", request, known)
						case process && !strings.Contains(foreign, refusal), !process && foreign != known:
							w.t.Errorf("%s, of another process:\n%s", request, foreign)
						}
					}
				})
			})
		}
	}
}

// A policy decides about a task by its tool: under each of its names, in each session of the principal, and in open
// subscriptions, also when the rules are replaced.
func TestTasksFollowTheirTools(t *testing.T) {
	for _, several := range []bool{false, true} {
		t.Run(fmt.Sprint("several principals: ", several), func(t *testing.T) {
			rule := policy.Rule{Key: "policies[0]", Who: policy.Who{Any: true}}
			p := &Router{Policies: policiesOf(t, rule)}
			p.Several.Store(several)
			inWorld(t, p, []string{"a", "b"}, func(w *world) {
				x := &thief{world: w}
				w.hands = map[string]func(*party, *jsonrpc.Message){"a": x.generous("a")}
				ask := func(method, params string) string {
					w.client.say(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `,` + modernTasks + `}}}`)
					return strings.Join(w.client.take(), "\n")
				}
				get := func(name string) string { return ask("tasks/get", `"taskId":"`+name+`"`) }
				told := func() string {
					w.upstream("a"+modernStream).tell(x.listen, "notifications/tasks", `"taskId":"T","status":"working"`)
					return strings.Join(w.client.take(), "\n")
				}
				ask("tools/call", `"name":"a__echo"`)
				w.client.say(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"taskIds":["a__T"]},` + modernTasks + `}}}`)
				if got := strings.Join(w.client.take(), "") + told() + get("a__T"); strings.Count(got, `"a__T"`) != 3 {
					t.Error("allowed:", got)
				}
				rule.Tools.Deny = []string{"a__echo"}
				if err := p.ReplacePolicies([]policy.Rule{rule}); err != nil {
					t.Fatal(err)
				}
				if got := told() + get("a__T") + get("T"); strings.Count(got, "unknown task") != 2 || strings.Contains(got, "working") {
					t.Error("denied:", got)
				}
				w.configure(func(*Router) {}) // another session
				if got := get("a__T") + get("T"); strings.Count(got, "unknown task") != 2 {
					t.Error("denied in another session:", got)
				}
				if got := ask("subscriptions/listen", `"notifications":{"taskIds":["a__T","T"]}`); strings.Contains(got, `T"`) {
					t.Error("denied in another session:", got)
				}
			})
		})
	}
}
