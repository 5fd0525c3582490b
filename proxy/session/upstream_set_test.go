package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Sets of upstreams that change while clients are served. testdata/upstreams_*.txtar and
// link_*.txtar have the client's view.

// cut ends all streams as the end of their link does.
func (w *world) cut() {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, streams := range w.conns {
		for _, p := range streams {
			p.conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true})
		}
	}
}

// another is a second client of the same proxy.
func (w *world) another() *world {
	other := &world{t: w.t, proxy: w.proxy, conns: map[string][]*party{}}
	other.connect()
	return other
}

func (w *world) leave() {
	w.client.conn.Close()
	<-w.ended
}

const (
	toolsChanged     = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	resourcesChanged = `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`
)

func TestD13_LinkLost(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b", "c", "d"}, func(w *world) {
		other := w.another()
		defer other.leave()
		clients := []*world{w, other}
		for _, c := range clients {
			c.initialize()
			c.list()
			c.client.say(`{"jsonrpc":"2.0","id":1,"method":"resources/list"}`)
			c.client.take()
		}
		inFlight := map[string]int{"a": 2, "b": 2, "c": 1, "d": 1}
		first := map[string]int{"a": 1, "b": 3, "c": 5, "d": 6}
		var want []string
		for _, u := range []string{"a", "b", "c", "d"} {
			for _, p := range w.conns[u] {
				p.mute()
			}
			w.calls(u, u+"__echo", first[u], inFlight[u])
			for i := range inFlight[u] {
				want = append(want, cc(first[u]+i, -32603, u, "link lost", "in_flight"))
			}
		}
		w.cut()
		got := w.client.take()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}

		w.proxy.Returned("a", "b", "c", "d")
		time.Sleep(time.Second)
		for _, c := range clients {
			c.client.want(toolsChanged, resourcesChanged)
			c.client.say(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"d__echo"}}`)
			c.client.want(`{"jsonrpc":"2.0","id":9,"result":{"content":[],"structuredContent":{"by":"d","args":{}}}}`)
			c.list()
			time.Sleep(time.Second)
			c.client.want() // the upstreams have started again, which is no news
		}
	})
}

// A client that has listed nothing is not notified.
func TestReturnedToClientsWithoutLists(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.proxy.Returned("a") // before initialize
		w.initialize()
		w.cut()
		w.proxy.Returned("a", "b")
		time.Sleep(time.Second)
		w.client.want()
		if n := len(w.conns["a"]); n != 1 {
			t.Error("streams:", n)
		}
	})
}

// The lists after the link's return are compared again once the client has listed.
func TestReturnedAndThenDifferent(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		w.list()
		w.cut()
		w.proxy.Returned("a")
		time.Sleep(time.Second)
		w.client.want(toolsChanged)
		w.list()
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/list" {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[]}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.die("a", "exit status 1", true)
		w.client.say(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"a__echo"}}`)
		time.Sleep(time.Second)
		w.client.want(`{"jsonrpc":"2.0","id":9,"result":{"content":[],"structuredContent":{"by":"a","args":{}}}}`, toolsChanged)
	})
}

// A list that was requested before the link's return does not count as one after it.
func TestReturnedDuringList(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		for _, u := range []string{"a", "b"} {
			w.upstream(u).mute()
		}
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		w.die("a", "link lost", true)
		w.proxy.Returned("a")
		time.Sleep(time.Second)
		w.client.want(toolsChanged)
		w.upstream("b").say(`{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a__echo"}}`)
		time.Sleep(time.Second)
		w.client.want(`{"jsonrpc":"2.0","id":2,"result":{"content":[],"structuredContent":{"by":"a","args":{}}}}`)
	})
}

// A session that ends does not wait to open streams again.
func TestReturnedAndTheEnd(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`)
		w.client.take()
		w.cut()
		synctest.Wait()
		began := time.Now()
		for range 100 {
			w.proxy.Returned("a", "b")
		}
		w.cancel()
		<-w.ended
		if took := time.Since(began); took > 0 || len(w.conns["a"]) != 1 {
			t.Error("took", took, "streams:", len(w.conns["a"]))
		}
	})
}

// A list that was requested before a list_changed does not count as one after it.
func TestUpdateDuringList(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		b := w.upstream("b")
		b.mute()
		b.take()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		b.take()
		w.proxy.Update(append(slices.Clone(w.proxy.Upstreams), Upstream{Name: "c"}), nil)
		time.Sleep(time.Second)
		w.client.want(toolsChanged)
		b.say(`{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a__echo","inputSchema":{"type":"object"}}]}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"c__echo"}}`)
		time.Sleep(time.Second)
		w.client.want(`{"jsonrpc":"2.0","id":2,"result":{"content":[],"structuredContent":{"by":"c","args":{}}}}`)
	})
}

func TestUpdateReplacesWhatDiffers(t *testing.T) {
	prefix := "x"
	for name, change := range map[string]func(*Upstream){
		"":               func(u *Upstream) { u.Allow = slices.Clone(u.Allow) },
		"Prefix":         func(u *Upstream) { u.Prefix = &prefix },
		"StartTimeout":   func(u *Upstream) { u.StartTimeout++ },
		"RequestTimeout": func(u *Upstream) { u.RequestTimeout = time.Second },
		"Allow":          func(u *Upstream) { u.Allow = []string{"echo"} },
		"Deny":           func(u *Upstream) { u.Deny = []string{"echo"} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, &Router{Upstreams: []Upstream{{Name: "a", Allow: []string{"e*"}}, {Name: "b"}}}, nil, func(w *world) {
				w.initialize()
				w.list()
				w.calls("a", "a__echo", 1, 1)
				w.calls("b", "b__echo", 2, 1)
				set := slices.Clone(w.proxy.Upstreams)
				change(&set[0])
				w.proxy.Update(set, nil)
				time.Sleep(time.Second)
				stays := name == "" || name == "Prefix" // a change of names ends nothing
				switch {
				case name == "":
					w.client.want()
				case stays:
					w.client.want(toolsChanged)
				default:
					w.client.want(cc(1, -32603, "a", "upstream changed", "in_flight"), toolsChanged)
				}
				if w.upstream("a").gone() == stays || w.upstream("b").gone() {
					t.Error("wrong streams are gone")
				}
				w.upstream("b").handle(echo("b"))
				if stays {
					w.upstream("a").handle(echo("a"))
				}
				w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
				if n := strings.Count(strings.Join(w.client.take(), ""), `__echo"`); n != map[bool]int{true: 1, false: 2}[name == "Deny"] {
					t.Error("tools:", n)
				}
			})
		})
	}
}

// The task, token and subscription of a removed upstream are forgotten, even if they come with its
// last answer.
func TestRemovedUpstreamLeavesNothing(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/call" {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"task":{"taskId":"t","status":"working"}}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.initialize()
		w.list()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo","task":{},"_meta":{"progressToken":"p"}}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`)
		w.upstream("a").say(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"_meta":{"progressToken":7}}}`)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"mine","status":"working"}}}`)
		w.client.take()
		s := w.proxy.running()[0]
		gone := s.upstreams.of(mcp.Legacy).conns[0]
		if n := len(s.resourceSubs.Of(gone)); n != 1 || !s.tasks.IsUnfinishedAt(gone) || !s.clientTasks.IsUnfinishedAt(gone) {
			t.Error("remembered:", n, s.tasks.IsUnfinishedAt(gone), s.clientTasks.IsUnfinishedAt(gone))
		}
		w.proxy.Update(w.proxy.Upstreams[1:], nil)
		synctest.Wait()
		s.tasks.Add(task{ID: "late", Conn: gone, Key: tokenKey{Conn: gone, N: 9}, Token: json.RawMessage(`1`), Unfinished: true})
		if n := len(s.resourceSubs.Of(gone)) + openCalls(s); n != 0 || s.tasks.HaveUnfinished() || s.clientTasks.HaveUnfinished() {
			t.Error("left:", n, s.tasks.HaveUnfinished(), s.clientTasks.HaveUnfinished())
		}
	})
}

// A call that waits for a stream to an upstream stops waiting when the upstream is removed.
func TestRemovedWhileItStarts(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		w.list()
		w.die("a", "exit status 1", true)
		w.proxy.Dial = gated(w, nil)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo"}}`)
		w.client.want()
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "c"}}, nil)
		w.client.want(cc(1, -32603, "a", "upstream changed", "not_sent"))
	})
}

// An upstream that neither reads nor answers can be removed nevertheless.
func TestRemovedWhileItStalls(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.proxy.Dial = DialFunc(func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
			c, err := w.open(ctx, upstream, key, era)
			return &stallingConn{c.(*jsonrpc.PipeConn), make(chan struct{}), sync.Once{}}, err
		})
		w.initialize()
		w.list()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo"}}`)
		synctest.Wait()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a__echo"}}`)
		synctest.Wait()
		gone := w.proxy.running()[0].upstreams.of(mcp.Legacy).conns[0]
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "c"}}, nil)
		began := time.Now()
		answer, err := gone.ask(context.Background(), "late", nil)
		if err != nil || !strings.Contains(string(answer.Error), `"not_sent"`) || time.Since(began) > 0 {
			t.Error("late request:", answer, err)
		}
		time.Sleep(time.Second)
		got := w.client.take()
		slices.Sort(got)
		if want := []string{cc(1, -32603, "a", "upstream changed", "in_flight"), cc(2, -32603, "a", "upstream changed", "not_sent"), toolsChanged}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}

// A stallingConn accepts no tools/call until it is closed.
type stallingConn struct {
	*jsonrpc.PipeConn
	closed chan struct{}
	once   sync.Once
}

func (c *stallingConn) Send(m *jsonrpc.Message) error {
	if m.Method == "tools/call" {
		<-c.closed
		return jsonrpc.ErrClosed
	}
	return c.PipeConn.Send(m)
}

func (c *stallingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.PipeConn.Close()
}

func TestUpdateWhileDraining(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		w.list()
		w.calls("a", "a__echo", 1, 1)
		w.calls("b", "b__echo", 2, 1)
		w.client.conn.CloseWrite()
		synctest.Wait()
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "c"}}, nil)
		w.client.want(cc(1, -32603, "a", "upstream changed", "in_flight"))
		w.upstream("b").say(`{"jsonrpc":"2.0","id":3,"result":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		if err := <-w.ended; !errors.Is(err, errDrained) {
			t.Error("ended with", err)
		}
		w.proxy.Update(nil, nil) // nobody is there any more
		w.proxy.Returned("b")
	})
}

// A session with one upstream keeps it; later sessions get the new set.
func TestServeUpstreamAndUpdate(t *testing.T) {
	inWorld(t, &Router{}, nil, func(w *world) {
		w.proxy.Update([]Upstream{{Name: "a"}, {Name: "b"}}, nil)
		serve := func(name string) (*party, chan error) {
			ours, theirs := jsonrpc.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- w.proxy.Serve(context.Background(), identity.Nobody, name, theirs) }()
			return newPeer(t, ours, nil), ended
		}
		client, ended := serve("a")
		alone := &world{t: t, client: client}
		alone.initialize()
		alone.list()
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "c"}}, farAway)
		time.Sleep(time.Second)
		client.say(call1)
		client.want(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"a","args":{}}}}`)
		w.proxy.Returned("a")
		time.Sleep(time.Second)
		client.want(toolsChanged)
		client.conn.Close()
		<-ended

		_, ended = serve("a")
		if err := <-ended; jsonrpc.CauseOf(err) != "unknown upstream" {
			t.Error("ended with", err)
		}
		client, ended = serve("c")
		alone.client = client
		alone.initialize()
		client.say(call1)
		client.want(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"c","args":{}}}}`)
		client.conn.Close()
		<-ended
	})
}

// A session with one upstream follows its settings.
func TestUpdateOfTheOnlyUpstream(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			inWorldOf(t, era, &Router{Upstreams: []Upstream{{Name: "a"}, {Name: "b"}}}, nil, func(w *world) {
				w.configure(func(*Router) { w.path = "a" })
				w.initialize()
				w.list()
				set := slices.Clone(w.proxy.Upstreams)
				set[0].Deny = []string{"echo"}
				w.proxy.Update(set, nil)
				time.Sleep(time.Minute)
				w.client.take()
				w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"}}`)
				if got := strings.Join(w.client.take(), "\n"); !strings.Contains(got, "Unknown tool: echo") {
					t.Error("a tool that is denied now:", got)
				}
			})
		})
	}
}

// D42: a listen at the path of an upstream ends when that is removed.
func TestD42_OnlyUpstreamRemoved(t *testing.T) {
	inWorldOf(t, mcp.Modern, &Router{Upstreams: []Upstream{{Name: "a"}, {Name: "b"}}}, nil, func(w *world) {
		w.configure(func(*Router) { w.path = "a" })
		w.initialize()
		w.client.say(listenLists)
		w.client.take()
		w.proxy.Update(slices.Clone(w.proxy.Upstreams[1:]), nil)
		if got := strings.Join(w.client.take(), "\n"); !strings.Contains(got, `"id":"l","result":{`) {
			t.Error("the listen has not ended:", got)
		}
	})
}

// With other settings, or at another host, an upstream has another connection, at which the client is subscribed as
// before.
func TestUpdateKeepsSubscriptions(t *testing.T) {
	for name, change := range map[string]func(*Upstream){
		"timeout": func(u *Upstream) { u.RequestTimeout = time.Minute },
		"headers": func(u *Upstream) { u.Forward = []Forward{{From: "X-Foo", To: "X-Foo"}} },
		"host":    func(u *Upstream) { u.Link = "far" },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, &Router{Upstreams: []Upstream{{Name: "a"}, {Name: "b"}}}, nil, func(w *world) {
				w.initialize()
				w.client.say(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`)
				w.client.want(`{"jsonrpc":"2.0","id":1,"result":{}}`)
				before := w.upstream("a")
				set := slices.Clone(w.proxy.Upstreams)
				change(&set[0])
				w.proxy.Update(set, nil)
				time.Sleep(time.Second)
				after := w.upstream("a")
				if got := strings.Join(after.take(), "\n"); after == before || !strings.Contains(got, `"resources/subscribe","params":{"uri":"test://a/a"}`) {
					t.Error("not subscribed at the new connection:", got)
				}
			})
		})
	}
}

// openCalls returns the number of server requests that the client has not answered.
func openCalls(s *session) int {
	calls, _ := s.client.Open()
	return calls
}

// A client is told why the upstream that has tasks cannot list them, though another one before it knows no such list.
func TestTasksOfAFailedUpstream(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		hand := echo("a")
		offers := func(p *party, m *jsonrpc.Message) {
			switch m.Method {
			case "initialize":
				p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"list":{}}},"serverInfo":{"name":"a","version":"1"}}}`)
			case "tasks/list":
				p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"error":{"code":-32601,"message":"Method not found"}}`)
			default:
				hand(p, m)
			}
		}
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": offers, "b": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tasks/list" {
				p.conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.ParseCause("exit status 1"), Delivered: true})
				return
			}
			offers(p, m)
		}}
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`)
		w.client.want(cc(1, -32603, "b", "exit status 1", "in_flight"))
	})
}

// A call that was routed just before its upstream was removed fails with an event that the log has, although the
// upstream had no stream.
func TestRemovedBeforeTheCall(t *testing.T) {
	var log bytes.Buffer
	inWorld(t, &Router{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		w.list()
		w.die("a", "exit status 1", false)
		gone := w.proxy.running()[0].upstreams.of(mcp.Legacy).conns[0]
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "c"}}, nil)
		data := jsonrpc.ReadErrorData(gone.Start(context.Background()).Raw())
		if data.Cause != jsonrpc.CauseChanged || !strings.Contains(log.String(), data.Event) {
			t.Errorf("the log has no event %s of %q", data.Event, data.Cause)
		}
	})
}

// A client that was told of tasks may list them just after their upstream was replaced, before the new one has said
// anything.
func TestTasksOfAReplacedUpstream(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		hand := echo("b")
		w.hands = map[string]func(*party, *jsonrpc.Message){"b": func(p *party, m *jsonrpc.Message) {
			switch m.Method {
			case "initialize":
				p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"list":{}}},"serverInfo":{"name":"b","version":"1"}}}`)
			case "tasks/list":
				p.say(`{"jsonrpc":"2.0","id":` + m.ID.String() + `,"result":{"tasks":[{"taskId":"t","status":"working"}]}}`)
			default:
				hand(p, m)
			}
		}}
		w.initialize()
		w.proxy.Update([]Upstream{{Name: "a"}, {Name: "b", Link: "other"}}, nil)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`)
		synctest.Wait()
		var answers []string
		for _, m := range w.client.take() {
			if strings.Contains(m, `"id":1`) {
				answers = append(answers, m)
			}
		}
		want := `{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"b__t","status":"working"}]}}`
		if len(answers) != 1 || answers[0] != want {
			t.Errorf("got %v, want %s", answers, want)
		}
	})
}
