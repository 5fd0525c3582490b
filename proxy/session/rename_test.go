package session

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// offersTools makes an upstream list tools with these names; otherwise it is an echo.
func (w *world) offersTools(upstream string, names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hands == nil {
		w.hands = map[string]func(*party, *jsonrpc.Message){}
	}
	w.hands[upstream] = func(p *party, m *jsonrpc.Message) {
		if m.Method == "tools/list" {
			p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[{"name":"`+strings.Join(names, `"},{"name":"`)+`"}]}`)))
			return
		}
		echo(upstream)(p, m)
	}
}

// by returns the upstream that serves a tool, and the tool's name there.
func (w *world) by(tool string) string {
	w.t.Helper()
	w.client.say(`{"jsonrpc":"2.0","id":"by","method":"tools/call","params":{"name":"` + tool + `"}}`)
	got := strings.Join(w.client.take(), "\n")
	_, by, _ := strings.Cut(got, `"by":"`)
	by, _, ok := strings.Cut(by, `"`)
	if !ok {
		return got
	}
	seen := w.newest(by).take()
	_, name, _ := strings.Cut(seen[len(seen)-1], `"name":"`)
	name, _, _ = strings.Cut(name, `"`)
	return by + " " + name
}

// When one upstream becomes several, or the other way, names change and nothing ends.
func TestRenameEndsNothing(t *testing.T) {
	long := strings.Repeat("l", 60)
	inEras(t, &Router{}, []string{"a"}, func(w *world) {
		w.offersTools("a", "read", "both", long)
		w.offersTools("b", "write", "both")
		w.initialize()
		w.list()
		a := w.upstream("a")
		w.calls("a", "read", 1, 1)
		one, two := []Upstream{{Name: "a"}}, []Upstream{{Name: "a"}, {Name: "b"}}

		w.proxy.Update(two, nil)
		time.Sleep(time.Second)
		w.wantChanged()
		a.handle(w.hands["a"])
		for name, want := range map[string]string{
			"read": "a read", long: "a " + long, "a__read": "a read", "a__both": "a both", "b__both": "b both", "write": "b write",
			catalog.Exposed("a__", long): "a " + long,
		} {
			if got := w.by(name); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
		if got := w.by("both"); !strings.Contains(got, "Unknown tool: both") {
			t.Error("an ambiguous name:", got)
		}
		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
		if got := strings.Join(w.client.take(), ""); strings.Count(got, `"name":"a__`) != 3 || strings.Count(got, `"name":"b__`) != 2 {
			t.Error("listed:", got)
		}

		w.proxy.Update(one, nil)
		time.Sleep(time.Second)
		w.wantChanged()
		for _, name := range []string{"a__read", "read", "untabled", catalog.Exposed("a__", long)} {
			if got := w.by(name); !strings.HasPrefix(got, "a ") || strings.Contains(got, "__") {
				t.Errorf("%s: got %s", name, got)
			}
		}
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"late":1}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"late":1}}`)
		if n := len(w.conns[stream("a", w.era)]); n != 1 {
			t.Error("streams:", n)
		}
	})
}

// wantChanged checks that the client got one list_changed of tools, and nothing else; in the modern
// era only a client that listens does.
func (w *world) wantChanged() {
	w.t.Helper()
	if w.era == mcp.Legacy {
		w.client.want(toolsChanged)
		return
	}
	w.client.want()
}

// Server requests, subscriptions and tasks stay with their upstream when its name changes.
func TestRenameKeepsWhatIsOpen(t *testing.T) {
	inWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			if m.Method == "tools/call" {
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"task":{"taskId":"t","status":"working"}}`)))
				return
			}
			echo("a")(p, m)
		}}
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","task":{}}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`)
		w.client.take()
		w.upstream("a").say(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "a"}}, nil)
		a := w.upstream("a")
		a.take()
		w.client.want()
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}`)
		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"t"}}`)
		w.client.say(`{"jsonrpc":"2.0","id":4,"method":"resources/unsubscribe","params":{"uri":"test://a/a"}}`)
		a.want(`{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`,
			`{"jsonrpc":"2.0","id":4,"method":"tasks/get","params":{"taskId":"t"}}`,
			`{"jsonrpc":"2.0","id":5,"method":"resources/unsubscribe","params":{"uri":"test://a/a"}}`)
	})
}
