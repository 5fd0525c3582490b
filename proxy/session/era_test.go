package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// inEras tests what both eras have in common.

// serves runs a session of the world's proxy.
func (w *world) serves(serve func(ctx context.Context, c jsonrpc.Conn) error) (*party, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ours, theirs := jsonrpc.Pipe()
	client, ended := newPeer(w.t, ours, nil), make(chan error, 1)
	go func() { ended <- serve(ctx, theirs) }()
	return client, func() {
		cancel()
		<-ended
		ours.Close()
	}
}

func TestServePrincipal(t *testing.T) {
	inWorld(t, &Router{Limits: Limits{InFlight: 2}}, []string{"files", "docs"}, func(w *world) {
		keys := map[string]string{} // by who
		who := ""
		w.proxy.Dial = DialFunc(func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
			if era != mcp.Modern {
				t.Error("era", era)
			}
			w.mu.Lock()
			if old := keys[who]; old != "" && old != key {
				t.Error("another key for", who)
			}
			keys[who] = key
			w.mu.Unlock()
			return w.open(ctx, upstream, key, era)
		})
		for _, row := range [][2]string{{"", "anonymous"}, {"", "token"}, {"files", "anonymous"}, {"files", "anonymous"}, {"", "anonymous"}} {
			who = fmt.Sprint(row)
			client, stop := w.serves(func(ctx context.Context, c jsonrpc.Conn) error {
				return w.proxy.ServePrincipal(ctx, identity.Principal{Kind: identity.Kind(row[1])}, row[0], c)
			})
			client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`) // the session knows that it is modern
			client.want(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Invalid params: \"_meta\" has no valid \"io.modelcontextprotocol/protocolVersion\""}}`)
			client.era = mcp.Modern
			client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			if got := client.take(); len(got) != 1 || strings.Contains(got[0], "files__echo") != (row[0] == "") {
				t.Errorf("got %q", got)
			}
			stop()
		}
		seen, words := map[string]bool{}, map[string]string{} // words by principal
		for who, key := range keys {
			holder := mcp.HolderOf(key)
			if seen[key] || !holder.Principal || len(key) != 55 || holder.Proxy != "" {
				t.Errorf("keys %q", keys)
			}
			seen[key] = true
			_, principal, _ := strings.Cut(who, " ")
			if word := words[principal]; word != "" && word != holder.Who {
				t.Errorf("keys %q: two words for %s", keys, principal)
			}
			words[principal] = holder.Who
		}
		if words["anonymous]"] == words["token]"] {
			t.Errorf("keys %q: one word for two principals", keys)
		}
	})
}

func TestServePrincipalBounds(t *testing.T) {
	inWorld(t, &Router{Limits: Limits{InFlight: 2}}, []string{"files"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(*party, *jsonrpc.Message) {}}
		client, stop := w.serves(func(ctx context.Context, c jsonrpc.Conn) error {
			return w.proxy.ServePrincipal(ctx, identity.Nobody.Principal, "", c)
		})
		defer stop()
		client.era = mcp.Modern
		for id := range 9 {
			client.say(strings.Replace(call1, `"id":1`, fmt.Sprint(`"id":`, id), 1))
		}
		client.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":8,"error":%s}`, jsonrpc.Overloaded("").Raw()))
	})
	err := new(Router).ServePrincipal(t.Context(), identity.Nobody.Principal, "nothing", newStuckConn())
	if cause := jsonrpc.EndOf(err, jsonrpc.Cause{}).Cause; cause != jsonrpc.CauseUnknownUpstream {
		t.Error("ended with", err)
	}
}

func TestD15_DrainModern(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		got := w.calls("files", "echo", 1, 1)
		shut := make(chan struct{})
		go func() { w.proxy.Shutdown(w.t.Context()); close(shut) }()
		synctest.Wait()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}}`)
		w.client.want(cc(2, -32603, "", "", "not_sent"))
		echo("files")(w.upstream("files"), decode(t, got[0]))
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`)
		<-shut
		<-w.ended
	})
}

func TestD03_HalfCloseExceedsDrainModern(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		w.client.conn.CloseWrite()
		time.Sleep(5*time.Second + time.Millisecond)
		w.client.want(cc(1, -32603, "", "", "in_flight"))
		<-w.ended
	})
}

func TestD48_CannotStartModern(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"bad", "good"}, func(w *world) {
		w.dial["bad"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"server/discover"}`)
		if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], `"logging":{}`) {
			t.Errorf("got %q", got)
		}
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad__x"}}`)
		w.client.want(cc(1, -32603, "bad", "start failed", "not_sent"))
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"good__nothing"}}`)
		w.client.want(`{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"Unknown tool: good__nothing"}}`)
	})
}

// The wait of a discovery for an upstream is bounded.
func TestDiscoverWithHungUpstream(t *testing.T) {
	inModernWorld(t, &Router{Upstreams: []Upstream{{Name: "hung", StartTimeout: time.Second}, {Name: "good"}}}, nil, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"hung": func(*party, *jsonrpc.Message) {}}
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"server/discover"}`)
		w.client.want()
		time.Sleep(time.Second)
		if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], `"logging":{}`) {
			t.Errorf("got %q", got)
		}
		w.upstream("hung").want(`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"no longer needed"}}`)
	})
}

// In the modern era nobody reports a new tool: an unknown name makes the upstream list again, but
// not each time.
func TestUnknownNamesListAnew(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.list()
		u := w.upstream("a")
		u.take()
		tools := `{"tools":[{"name":"new"}]}`
		u.handle(func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/list" {
				p.conn.Send(jsonrpc.NewResult(m.ID, []byte(tools)))
				return
			}
			echo("a")(p, m)
		})
		call := func(want string) {
			t.Helper()
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__new"}}`)
			if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("got %q", got)
			}
		}
		call("Unknown tool")
		u.want()
		time.Sleep(relist)
		call(`"by":"a"`)
		if got := u.take(); len(got) != 2 || !strings.Contains(got[0], "tools/list") {
			t.Errorf("upstream got %q", got)
		}
		call(`"by":"a"`)
		if got := u.take(); len(got) != 1 {
			t.Errorf("upstream got %q", got)
		}
	})
}

// Elements of a batch belong to the legacy era, which has batches.
func TestBatchWithClaim(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`)
		w.client.take()
		w.client.say(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":` + string(jsonrpc.Set(nil, claim...)) + `}}]`)
		w.client.want(`[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"Invalid request: no batch is possible here"}}]`)
	})
}

// A session of the legacy era uses nothing of the modern one.
func TestModernLineupIsMadeWhenNeeded(t *testing.T) {
	inWorld(t, &Router{}, []string{"files", "docs"}, func(w *world) {
		w.initialize()
		w.list()
		w.proxy.Update([]Upstream{{Name: "docs"}}, nil)
		synctest.Wait()
		s := w.proxy.running()[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.upstreams.modern.Load() != nil || s.subscriptions.Len() != 0 {
			t.Error("made before a request of the modern era")
		}
	})
}
