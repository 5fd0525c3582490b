//go:build unix

package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

func TestSharedInitializeIsAnsweredFromTheFirst(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.welcome = ""
		a, b := w.attach("a"), w.attach("b")
		a.say(`{"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
		b.say(`{"id":"x","method":"initialize","params":{}}`, `{"method":"notifications/initialized"}`,
			`{"id":2,"method":"tools/list"}`) // too early: it waits
		s := w.server()
		s.hears()
		a.hears()
		b.hears()
		s.say(`{"id":2,"result":"a guess"}`, `{"id":1,`+welcome+`}`)
		a.hears(`{"id":1,` + welcome + `}`)
		b.hears(`{"id":"x",` + welcome + `}`)
		s.hears(`{"id":2,"method":"tools/list"}`)
		w.start("c")
		b.say(`{"id":"x","method":"initialize","params":{}}`)
		b.hears(`{"id":"x","error":{"code":-32600,"message":"Invalid request: already initialized"}}`)
		s.hears()
		if len(w.servers) != 1 {
			t.Errorf("%d sessions", len(w.servers))
		}
	})
}

// What the server is told is what any client could do.
func TestSharedInitializeSaysItAll(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		near, far := jsonrpc.Pipe()
		w.host.Upstreams["u"] = Upstream{Shared: true, Dial: func(context.Context) (jsonrpc.Conn, error) { return near, nil }}
		c := w.attach("a")
		m, err := far.Recv()
		if err != nil {
			t.Fatal(err)
		}
		const want = `{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},` +
			`"elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"mcp-proxy","version":"1"}}`
		if m.Method != "initialize" || string(m.Params) != want {
			t.Errorf("got %s", m.Append(nil))
		}
		far.Send(parse(t, `{"id":1,`+welcome+`}`))
		if m, err = far.Recv(); err != nil || m.Method != "notifications/initialized" {
			t.Errorf("got %v, %v", m, err)
		}
		c.leave()
	})
}

func TestSharedRefusedInitializeEndsAllThatWait(t *testing.T) {
	for name, answer := range map[string]string{"error": `"error":{"code":-1,"message":"no"}`, "odd": `"result":"hello"`} {
		t.Run(name, func(t *testing.T) {
			inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
				w.welcome = ""
				a, b := w.attach("a"), w.attach("b")
				a.say(`{"id":1,"method":"initialize","params":{}}`)
				b.say(`{"id":1,"method":"initialize","params":{}}`, `{"id":2,"method":"tools/list"}`)
				w.server().say(`{"id":1,` + answer + `}`)
				a.ends(jsonrpc.CauseRefused.String(), false)
				b.ends(jsonrpc.CauseRefused.String(), false)
				w.server().hears()
				if st := w.host.Status(); len(st) != 1 || st[0].Failures != 1 || st[0].Key != sharedKey {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// However many come at once, there is one start for them, and one for those who
// come after it has failed.
func TestSharedStartsOnce(t *testing.T) {
	for range 50 {
		inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
			w.dialErr = &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}
			for i := range 8 {
				w.attach(fmt.Sprint("c", i))
			}
			for _, c := range w.clients {
				c.ends("connection refused", false)
			}
			if w.dials > freeFailures+1 {
				t.Errorf("%d dials", w.dials)
			}
		})
	}
}

// The claim and its back-off are the server's, not a client's.
func TestSharedBackOffIsTheServers(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.dialErr = &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}
		for i := range freeFailures + 1 {
			c := w.attach(fmt.Sprint("c", i))
			c.ends("connection refused", false)
		}
		w.attach("another").ends("connection refused", false)
		if w.dials != freeFailures+1 {
			t.Errorf("%d dials", w.dials)
		}
		if st := w.host.Status(); len(st) != 1 || st[0].State != StateWaiting {
			t.Errorf("status %+v", st)
		}
	})
}

func TestSharedIDsAndTokensComeBack(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call","params":{"x":1e2,"_meta":{"progressToken":"tok","k":[1 ,2]},"y":"\ud800"},"vendor":true}`,
			`{"id":"1","method":"tools/call"}`)
		b.say(`{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":9007199254740993}}}`)
		s.hears(
			`{"id":2,"method":"tools/call","vendor":true,"params":{"x":1e2,"_meta":{"progressToken":2,"k":[1 ,2]},"y":"\ud800"}}`,
			`{"id":3,"method":"tools/call"}`,
			`{"id":4,"method":"tools/call","params":{"_meta":{"progressToken":4}}}`)
		s.say(
			`{"method":"notifications/progress","params":{"progress":1,"progressToken":4}}`,
			`{"method":"notifications/progress","params":{"progressToken":"2","progress":0.5}}`,
			`{"method":"notifications/progress","params":{"progressToken":3,"progress":0.5}}`,
			`{"id":"4","result":{"of":"b"},"vendor":1}`, `{"id":3.0,"error":{"code":1,"message":"m"}}`, `{"id":2,"result":{"of":"a"}}`)
		a.hears(`@1 {"method":"notifications/progress","params":{"progressToken":"tok","progress":0.5}}`,
			`{"id":"1","error":{"code":1,"message":"m"}}`, `{"id":1,"result":{"of":"a"}}`)
		b.hears(`@1 {"method":"notifications/progress","params":{"progress":1,"progressToken":9007199254740993}}`,
			`{"id":1,"vendor":1,"result":{"of":"b"}}`)
	})
}

func TestSharedLocalAnswers(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		a.say(`{"id":1,"method":"ping"}`,
			`{"id":2,"method":"tools/call","params":{"_meta":{"progressToken":1,"progressToken":2}}}`,
			`{"id":3,"method":"tools/call","params":{"_Meta":{"progressToken":1}}}`,
			`{"method":"vendor/hello","params":{}}`)
		a.hears(`{"id":1,"result":{}}`,
			`{"id":2,"error":{"code":-32602,"message":"Invalid params: duplicate key \"progressToken\""}}`,
			`{"id":3,"error":{"code":-32602,"message":"Invalid params: key \"_meta\" is not written that way"}}`)
		s := w.server()
		s.hears(`{"method":"vendor/hello","params":{}}`)
		s.say(`{"id":"p","method":"ping"}`)
		s.hears(`{"id":"p","result":{}}`)
	})
}

func TestD17_SharedAnswerBeforeCancel(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call"}`)
		s.hears(`{"id":2,"method":"tools/call"}`)
		s.say(`{"id":2,"result":{}}`)
		a.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		a.hears(`{"id":1,"result":{}}`)
		s.hears()
	})
}

func TestD18_SharedCancelFirst(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call"}`)
		b.say(`{"id":1,"method":"tools/call"}`)
		s.heard()
		a.say(`{"method":"notifications/cancelled","params":{"reason":"why","requestId":1,"x":0}}`)
		s.hears(`{"method":"notifications/cancelled","params":{"reason":"why","requestId":2,"x":0}}`)
		s.say(`{"id":2,"result":{"late":true}}`, `{"id":3,"result":{"b":true}}`) // D19
		a.hears()
		b.hears(`{"id":1,"result":{"b":true}}`)
	})
}

// D26, and that what is late for the first use of an id is not taken for the
// second's.
func TestD26_SharedIDIsUsedAgain(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		const call = `{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`
		a.say(call, `{"method":"notifications/cancelled","params":{"requestId":1}}`, call)
		s.heard()
		s.say(`{"id":2,"result":{"late":true}}`, `{"id":2,"result":{"later":true}}`,
			`{"method":"notifications/progress","params":{"progressToken":2,"progress":1}}`) // D23
		a.hears()
		s.say(`{"id":3,"result":{}}`, `{"id":3,"result":{"twice":true}}`,
			`{"method":"notifications/progress","params":{"progressToken":3,"progress":1}}`)
		a.hears(`{"id":1,"result":{}}`)
	})
}

func TestD20_SharedInitializeIsNotCancelled(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.welcome = ""
		a := w.attach("a")
		a.say(`{"id":7,"method":"initialize","params":{}}`, `{"method":"notifications/cancelled","params":{"requestId":7}}`,
			`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		w.server().say(`{"id":1,` + welcome + `}`)
		a.hears(`{"id":7,` + welcome + `}`)
		w.server().hears()
	})
}

// D21: a client that leaves during initialize leaves it to the others.
func TestD21_SharedClientLeavesDuringInitialize(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.welcome = ""
		a, b := w.attach("a"), w.attach("b")
		a.say(`{"id":1,"method":"initialize","params":{}}`, `{"id":2,"method":"tools/call"}`)
		b.say(`{"id":1,"method":"initialize","params":{}}`)
		a.leave()
		s := w.server()
		s.hears()
		s.say(`{"id":1,` + welcome + `}`)
		b.hears(`{"id":1,` + welcome + `}`)
		s.hears()
		b.lives(s)
	})
}

func TestD22_SharedCancelOfNothing(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call"}`)
		s.heard()
		for _, params := range []string{`{"requestId":2}`, `{"requestId":"1"}`, `{"requestId":null}`, `{"requestId":true}`, `{}`, `[]`,
			`{"requestId":1,"requestId":1}`, `{"RequestId":1}`, `{"requestId":"init"}`, `{"requestId":1.5}`} {
			a.say(`{"method":"notifications/cancelled","params":` + params + `}`)
		}
		a.say(`{"method":"notifications/cancelled"}`)
		s.hears()
		s.say(`{"id":2,"result":{}}`)
		a.hears(`{"id":1,"result":{}}`)
	})
}

func TestD25_SharedDuplicateID(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"first"}`, `{"id":1,"method":"second"}`)
		s.hears(`{"id":2,"method":"first"}`)
		s.say(`{"id":2,"result":{}}`)
		a.hears(`{"error":{"code":-32600,"message":"Invalid request: the id is in use by a request in flight"}}`, `{"id":1,"result":{}}`)
	})
}

// D45: arrays are taken apart in both directions.
func TestD45_SharedArrays(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.conn.Send(&jsonrpc.Message{Batch: []*jsonrpc.Message{parse(t, `{"id":1,"method":"x"}`), parse(t, `{"id":2,"method":"y"}`)}})
		synctest.Wait()
		b.say(`{"id":1,"method":"z"}`)
		s.hears(`{"id":2,"method":"x"}`, `{"id":3,"method":"y"}`, `{"id":4,"method":"z"}`)
		s.conn.Send(&jsonrpc.Message{Batch: []*jsonrpc.Message{parse(t, `{"id":4,"result":{}}`), parse(t, `{"id":3,"result":{}}`)}})
		a.hears(`{"id":2,"result":{}}`)
		b.hears(`{"id":1,"result":{}}`)
		a.leave()
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
	})
}

// D49: of an answer and a cancellation at the same instant one wins. If that is
// the cancellation the answer is dropped, and the server, which has answered, need
// not hear of it.
func TestD49_SharedAnswerAndCancelAtOnce(t *testing.T) {
	for range 200 {
		inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
			a := w.start("a")
			s := w.server()
			a.say(`{"id":1,"method":"x"}`)
			s.heard()
			answer, cancel := parse(t, `{"id":2,"result":{}}`), parse(t, `{"method":"notifications/cancelled","params":{"requestId":1}}`)
			go s.conn.Send(answer)
			go a.conn.Send(cancel)
			answers, cancels := a.heard(), s.heard()
			if len(answers)+len(cancels) > 1 {
				t.Errorf("client got %q, server %q", answers, cancels)
			}
			a.lives(s)
		})
	}
}

func TestSharedTooManyCalls(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		for i := range maxMemberCalls + 1 {
			a.conn.Send(parse(t, fmt.Sprintf(`{"id":%d,"method":"x"}`, i)))
		}
		a.hears(fmt.Sprintf(`{"id":%d,"error":{"code":-32603,"message":"Too many requests in flight",`+
			`"data":{"reason":"overloaded","upstream":"u","phase":"not_sent","retryable":true}}}`, maxMemberCalls))
		s.heard()
		b.lives(s)
	})
}

// A server that does not read holds up who sends, not who does not, and what was
// not sent is cancelled without a trace.
func TestSharedServerDoesNotRead(t *testing.T) {
	const flood = 3000 // of 1 KiB, more than the stream to the server holds
	pad := strings.Repeat("x", 1<<10)
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		block := make(chan struct{})
		s.hand = func(m *jsonrpc.Message) { <-block; s.add(m) }
		sent := 0
		a2 := make(chan struct{})
		go func() {
			defer close(a2)
			for i := range flood {
				if a.conn.Send(parse(t, fmt.Sprintf(`{"id":%d,"method":"x","params":{"pad":%q}}`, i, pad))) != nil {
					return
				}
				sent = i
			}
		}()
		synctest.Wait()
		if sent == flood-1 {
			t.Error("nothing holds up a client that floods the server")
		}
		b.say(`{"id":"b","method":"secret"}`, `{"method":"notifications/cancelled","params":{"requestId":"b"}}`, `{"id":1,"method":"ping"}`)
		b.hears(`{"id":1,"result":{}}`)
		close(block)
		<-a2
		heard := s.heard()
		if len(heard) != flood || slices.ContainsFunc(heard, func(m string) bool { return strings.Contains(m, "secret") }) {
			t.Errorf("the server got %d messages", len(heard))
		}
	})
}

func TestSharedForcedByContext(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		a.cancel(errors.New("enough"))
		a.ends(jsonrpc.CauseHostStopped.String(), true)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
		b.lives(s)
		done := w.attach("c")
		done.cancel(nil)
		done.leave()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, far := jsonrpc.Pipe()
		if err := attach(ctx, w.host, "u", "d", mcp.Legacy, far); !errors.Is(err, context.Canceled) {
			t.Errorf("Attach returned %v", err)
		}
	})
}
