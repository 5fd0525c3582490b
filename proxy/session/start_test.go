package session

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// cold runs a test in both eras with the known upstream b, which takes so long to start from then on.
// It begins with a call of b, with a progress token of 1 unless it is bare.
func cold(t *testing.T, start time.Duration, bare bool, test func(w *world)) {
	inLazyEras(t, []string{"a", "b"}, func(w *world) {
		w.publish("a", "b")
		w.initialize()
		w.list()
		dial := w.proxy.Dial
		w.proxy.Dial = func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
			time.Sleep(start)
			return dial(ctx, upstream, key, era)
		}
		meta := `,"_meta":{"progressToken":1}`
		if bare {
			meta = ""
		}
		w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b__echo"` + meta + `}}`)
		test(w)
	})
}

// starting is what a client hears of a start.
const starting = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":-1,"message":"starting b"}}`

// heard returns what the client got until now.
func (w *world) heard() string { return strings.Join(w.client.take(), "\n") }

// A call that waits for the start of its upstream says so once, before any progress of the server.
func TestColdCallSaysWhatItWaitsFor(t *testing.T) {
	cold(t, 3*time.Second, false, func(w *world) {
		hand := public("b")
		w.mu.Lock()
		w.hands["b"] = func(p *party, m *jsonrpc.Message) {
			if m.Method == mcp.MethodToolsCall {
				p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + m.ID.String() + `,"progress":0}}`)
				time.Sleep(2 * time.Second)
			}
			hand(p, m)
		}
		w.mu.Unlock()
		time.Sleep(999 * time.Millisecond)
		w.client.want()
		time.Sleep(time.Millisecond)
		w.client.want(starting)
		time.Sleep(2 * time.Second)
		w.client.want(strings.Replace(starting, `-1,"message":"starting b"`, "0", 1))
		time.Sleep(2 * time.Second)
		if got := w.heard(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":7,"result"`) {
			t.Error(got)
		}
	})
}

// Nobody is told of a start that is fast, or who did not ask for progress.
func TestColdCallSaysNothing(t *testing.T) {
	for name, c := range map[string]struct {
		start time.Duration
		bare  bool
	}{"fast": {start: 900 * time.Millisecond}, "without a token": {start: 3 * time.Second, bare: true}} {
		t.Run(name, func(t *testing.T) {
			cold(t, c.start, c.bare, func(w *world) {
				time.Sleep(10 * time.Second)
				if got := w.heard(); strings.Contains(got, "progress") || !strings.Contains(got, `"id":7,"result"`) {
					t.Error(got)
				}
			})
		})
	}
}

// A call that is over is told nothing.
func TestColdCallThatIsCancelled(t *testing.T) {
	cold(t, 3*time.Second, false, func(w *world) {
		time.Sleep(500 * time.Millisecond)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
		time.Sleep(10 * time.Second)
		w.client.want()
	})
}

func TestColdCallThatTimesOut(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a"}, {Name: "b", Lazy: true, RequestTimeout: 700 * time.Millisecond}}}
	inWorld(t, p, nil, func(w *world) {
		w.initialize()
		w.list()
		w.silent("b", "")
		w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b__echo","_meta":{"progressToken":1}}}`)
		time.Sleep(10 * time.Second)
		if got := w.heard(); strings.Contains(got, "progress") || !strings.Contains(got, `"id":7,"error"`) {
			t.Error(got)
		}
	})
}

// A request that several upstreams get in turn says it once.
func TestColdRequestForSeveral(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
	inWorld(t, p, nil, func(w *world) {
		w.initialize()
		w.list()
		w.mu.Lock()
		w.hands = map[string]func(*party, *jsonrpc.Message){}
		for _, name := range []string{"a", "b"} {
			hand := echo(name)
			w.hands[name] = func(p *party, m *jsonrpc.Message) {
				switch m.Method {
				case mcp.MethodInitialize:
					time.Sleep(3 * time.Second)
				case mcp.MethodResourcesRead:
					p.conn.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeResourceNotFound, Message: "not here"}))
					return
				}
				hand(p, m)
			}
		}
		w.mu.Unlock()
		w.client.say(`{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"test://nobody","_meta":{"progressToken":1}}}`)
		time.Sleep(10 * time.Second)
		if got := w.heard(); strings.Count(got, "starting") != 1 || !strings.Contains(got, "starting a") || !strings.Contains(got, `"id":7,"error"`) {
			t.Error(got)
		}
	})
}

// In the modern era only the host knows whether the server of an open stream starts. One that sends
// progress has started.
func TestColdCallOnAnOpenStream(t *testing.T) {
	const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%TOKEN%,"progress":0}}`
	for _, c := range []struct {
		starts, progress bool
		want             string
	}{{starts: true, want: starting}, {want: ""}, {starts: true, progress: true, want: strings.Replace(progress, "%TOKEN%", "1", 1)}} {
		p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: true}}}
		p.Starting = func(upstream string) bool { return c.starts && upstream == "b" }
		inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
			w.publish("a", "b")
			w.initialize()
			w.list()
			w.mu.Lock()
			w.hands["b"] = func(p *party, m *jsonrpc.Message) {
				if c.progress && m.Method == mcp.MethodToolsCall {
					p.say(strings.Replace(progress, "%TOKEN%", m.ID.String(), 1))
				}
			}
			w.mu.Unlock()
			w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b__echo","_meta":{"progressToken":1}}}`)
			time.Sleep(10 * time.Second)
			if got := w.heard(); got != c.want {
				t.Errorf("%+v: got %s", c, got)
			}
		})
	}
}

// Nobody is told of the start of another client's server, nor of an upstream that is not lazy.
func TestColdCallElsewhere(t *testing.T) {
	for name, silent := range map[string]string{"another's": mcp.MethodToolsCall, "eager": mcp.MethodInitialize} {
		t.Run(name, func(t *testing.T) {
			p := &Router{Upstreams: []Upstream{{Name: "a", Lazy: true}, {Name: "b", Lazy: name != "eager"}}}
			p.Starting = func(string) bool { return true }
			inWorld(t, p, nil, func(w *world) {
				w.silent("b", silent)
				w.initialize()
				w.client.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b__echo","_meta":{"progressToken":1}}}`)
				time.Sleep(20 * time.Second)
				if got := w.heard(); strings.Contains(got, "progress") {
					t.Error(got)
				}
			})
		})
	}
}

// What upstreams log during initialize comes before its answer, so that a client gets it that leaves
// at once. Other messages wait for the client, and so does what comes behind them.
func TestLogsDuringInitialize(t *testing.T) {
	log := func(text string) string {
		return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + text + `"}}`
	}
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		inWorld(t, &Router{}, names, func(w *world) {
			hand := func(p *party, m *jsonrpc.Message) {
				if m.Method != "initialize" {
					echo("a")(p, m)
					return
				}
				for _, text := range []string{log("1"), log("2"), `{"jsonrpc":"2.0","method":"acme/changed"}`, log("3")} {
					p.conn.Send(decode(t, text))
				}
				echo("a")(p, m)
			}
			w.hands = map[string]func(*party, *jsonrpc.Message){"a": hand}
			w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
			synctest.Wait()
			got := w.client.take()
			if len(got) != 3 || got[0] != log("1") || got[1] != log("2") || !strings.Contains(got[2], `"id":0,"result"`) {
				t.Errorf("%d upstreams: got %q", len(names), got)
			}
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			synctest.Wait()
			if got := w.client.take(); len(got) == 0 || got[len(got)-1] != log("3") || slices.Contains(got, log("1")) {
				t.Errorf("%d upstreams: got %q once it is ready", len(names), got)
			}
		})
	}
}
