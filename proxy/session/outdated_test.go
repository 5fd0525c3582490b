package session

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// What a trial says that began before a reload is of the former configuration.
func TestTrialOfAnotherConfiguration(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true, Digest: "d"}, {Name: "b", Lazy: true, Digest: "b"}}}
	inWorld(t, p, nil, func(w *world) {
		release := make(chan struct{})
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/list" {
				<-release
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[{"name":"ok","inputSchema":{"type":"object"}},{"name":"secret","inputSchema":{"type":"object"}}]}`)))
				return
			}
			echo("a")(p, m)
		}}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() { p.Learn(ctx, 4); close(over) }()
		synctest.Wait()
		set := slices.Clone(p.Upstreams)
		set[0].Deny = []string{"secret"}
		p.Update(set, nil)
		close(release)
		<-over
		cancel()
		time.Sleep(time.Minute)
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		got := strings.Join(w.client.take(), "\n")
		if strings.Contains(got, "secret") {
			t.Error("clients see a tool that the configuration denies:", got)
		}
	})
}

// A renewal that waits for its pause asks by the configuration of when it begins.
func TestRenewalOfAnotherConfiguration(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true, Shared: true, Digest: "d"}, {Name: "b", Lazy: true, Digest: "b"}}}
	inWorld(t, p, nil, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/list" {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[{"name":"ok","inputSchema":{"type":"object"}},{"name":"secret","inputSchema":{"type":"object"}}]}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.initialize()
		w.list()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__ok"}}`)
		w.client.take()
		a := w.upstream("a")
		a.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		time.Sleep(time.Second)
		a.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`) // its renewal is due in 4 s
		time.Sleep(time.Second)
		set := slices.Clone(p.Upstreams)
		set[0].Deny = []string{"secret"}
		p.Update(set, nil)
		a.conn.Close() // as the host does
		time.Sleep(10 * time.Second)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		got := strings.Join(w.client.take(), "\n")
		if strings.Contains(got, "secret") {
			t.Error("clients see a tool that the configuration denies:", got)
		}
	})
}

// A description from the catalog is as old as its lists.
func TestAgeOfDescription(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.publish("a", "b")
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		w.client.take()
		time.Sleep(50 * time.Second)
		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":4,"method":"server/discover"}`)
		got := strings.Join(w.client.take(), "")
		w.wantStreams("a", 1, 0)
		if !strings.Contains(got, `"ttlMs":10000`) {
			t.Error("not 50 s older:", got)
		}
	})
}

// A list that its upstream has changed is shown while the upstream is asked again, and must not be cached.
func TestOutdatedListIsNotFresh(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		w.publish("a", "b")
		first, cancelFirst, endedFirst := w.client, w.cancel, w.ended
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a__echo"}}`)
		w.client.say(listenLists)
		w.client.take()
		a := w.upstream("a")
		hand := w.server("a")
		w.mu.Lock()
		w.hands["a"] = func(p *party, m *jsonrpc.Message) { // the next server is slow
			if m.Method == "tools/list" {
				time.Sleep(5 * time.Second)
			}
			hand(p, m)
		}
		w.mu.Unlock()
		var listen jsonrpc.ID
		for _, text := range a.take() {
			if m := decode(t, text); m.Method == "subscriptions/listen" {
				listen = m.ID
			}
		}
		a.tell(listen, "notifications/tools/list_changed", "")
		synctest.Wait()
		w.connect() // another client
		w.client.say(`{"jsonrpc":"2.0","id":9,"method":"tools/list"}`)
		time.Sleep(3 * time.Second)
		got := strings.Join(w.client.take(), "")
		if !strings.Contains(got, "a__echo") || strings.Contains(got, "ttlMs") { // 0 is left out in these tests
			t.Error("a list that is known to have changed may be cached:", got)
		}
		time.Sleep(10 * time.Second)
		w.cancel()
		<-w.ended
		w.client.conn.Close()
		w.client, w.cancel, w.ended = first, cancelFirst, endedFirst
	})
}

// A server may list something only for clients with an extension (SEP-2133), of which the catalog has asked nothing.
func TestListsForExtensions(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorld(t, p, nil, func(w *world) {
		apps := map[*party]bool{}
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			switch m.Method {
			case "initialize":
				apps[p] = strings.Contains(string(m.Params), "io.modelcontextprotocol/ui")
			case "tools/list":
				if apps[p] {
					p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[{"name":"chart","_meta":{"ui":{"resourceUri":"ui://chart"}},"inputSchema":{"type":"object"}}]}`)))
					return
				}
			}
			echo("a")(p, m)
		}}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() { p.LearnUnknown(ctx); close(over) }()
		synctest.Wait()
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}},"clientInfo":{"name":"t","version":"1"}}}`)
		synctest.Wait()
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		time.Sleep(time.Minute)
		got := strings.Join(w.client.take(), "\n")
		if !strings.Contains(got, "chart") {
			t.Error("the client does not see the tools for its extension:", got)
		}
		cancel()
		<-over
	})
}
