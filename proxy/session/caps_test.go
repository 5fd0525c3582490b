package session

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// offersByCaps makes an upstream list the tools of those who may sample, else those of
// anybody; another one is an echo.
func (w *world) offersByCaps(upstream, sampling, others string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hands == nil {
		w.hands = map[string]func(*party, *jsonrpc.Message){}
	}
	w.hands[upstream] = func(p *party, m *jsonrpc.Message) {
		if m.Method != "tools/list" {
			echo(upstream)(p, m)
			return
		}
		offered := others
		if meta, _ := mcp.Read(m).Claim(); strings.Contains(string(meta.Capabilities), "sampling") {
			offered = sampling
		}
		p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[`+offered+`]}`)))
	}
}

// says returns a request of a modern client with these capabilities.
func (w *world) says(id int, caps, method, members string) *jsonrpc.Message {
	m := decode(w.t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, id, method, members))
	m.Params = mcp.SetMeta(m.Params, claim[0], jsonrpc.Value{Key: mcp.KeyCapabilities, Text: json.RawMessage(caps)})
	return m
}

// ask sends such a request and returns the answer.
func (w *world) ask(id int, caps, method, members string) string {
	w.t.Helper()
	m := w.says(id, caps, method, members)
	m.Headers = map[string][]string{}
	if err := w.client.conn.Send(m); err != nil {
		w.t.Fatal(err)
	}
	got := w.client.take()
	if len(got) != 1 {
		w.t.Fatalf("got %q, want one answer", got)
	}
	return got[0]
}

const (
	sampling = `{"sampling":{}}`
	none     = `{}`
)

// What one client was given stays known, whatever one with other capabilities lists;
// nobody is given what only others have.
func TestNamesByCapabilities(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.offersByCaps("a", `{"name":"x"},{"name":"y"}`, `{"name":"y"}`)
		for id := range 10 {
			for _, caps := range []string{sampling, none} {
				got := w.ask(id, caps, "tools/list", "")
				if strings.Contains(got, `"a__x"`) != (caps == sampling) {
					t.Errorf("%s lists %s", caps, got)
				}
			}
			for _, name := range []string{"a__x", "x"} { // exposed and bare
				if got := w.ask(id, sampling, "tools/call", `"name":"`+name+`"`); !strings.Contains(got, `"by":"a"`) {
					t.Errorf("%s: %s", name, got)
				}
				if got := w.ask(id, none, "tools/call", `"name":"`+name+`"`); !strings.Contains(got, "Unknown tool: "+name) {
					t.Errorf("%s: %s", name, got)
				}
			}
		}
	})
}

// Whoever has not listed is asked for, with the capabilities of the call, even if
// others have listed just now, or are about to.
func TestNamesNotListed(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.offersByCaps("a", `{"name":"x"}`, `{"name":"y"}`)
		w.client.conn.Send(w.says(1, none, "tools/call", `"name":"a__y"`))
		w.client.conn.Send(w.says(2, sampling, "tools/call", `"name":"a__x"`))
		for _, got := range w.client.take() {
			if !strings.Contains(got, `"by":"a"`) {
				t.Error(got)
			}
		}
		if n := w.asked("a"+modernStream, "tools/list"); n != 2 {
			t.Error("lists:", n)
		}
		w.cancel()
		<-w.ended
		w.connect() // a later session knows both
		w.ask(3, none, "tools/call", `"name":"a__y"`)
		w.ask(4, sampling, "tools/call", `"name":"a__x"`)
		if n := w.asked("a"+modernStream, "tools/list"); n != 0 {
			t.Error("listed again:", n)
		}
	})
}

// A call has to repeat in headers what its own client was told.
func TestMirrorsByCapabilities(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.offersByCaps("a", fmt.Sprintf(mirrored, "hdr"), `{"name":"hdr"}`)
		const members = `"name":"a__hdr","arguments":{"region":"eu"}`
		for id := range 3 {
			if got := w.ask(id, sampling, "tools/call", members); !strings.Contains(got, `"code":-32020`) {
				t.Error(got)
			}
			if got := w.ask(id, none, "tools/call", members); !strings.Contains(got, `"by":"a"`) {
				t.Error(got)
			}
			time.Sleep(relist)
		}
	})
}

// remembered is how many kinds of clients package lists tells apart.
const remembered = 16

// Of many kinds of clients the last ones are remembered; the others are asked for again.
func TestViewsAreBounded(t *testing.T) {
	inWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		for n := range remembered + 4 {
			caps := fmt.Sprintf(`{"experimental":{"n":%d}}`, n)
			if got := w.ask(n, caps, "tools/call", `"name":"a__echo"`); !strings.Contains(got, `"by":"a"`) {
				t.Error(got)
			}
		}
		if got := w.ask(0, `{"experimental":{"n":0}}`, "tools/call", `"name":"b__echo"`); !strings.Contains(got, `"by":"b"`) {
			t.Error(got)
		}
	})
}
