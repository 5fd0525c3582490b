package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const call1 = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`

// calls makes the client call a tool n times on an upstream that does not answer, with ids from
// first on, and returns the messages to the upstream.
func (w *world) calls(upstream, tool string, first, n int) []string {
	u := w.upstream(upstream)
	u.mute()
	u.take()
	for i := range n {
		w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s"}}`, first+i, tool))
	}
	return u.take()
}

// die ends the newest stream of an upstream like a host whose process has died.
func (w *world) die(upstream, cause string, delivered bool) {
	w.upstream(upstream).conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(cause), Delivered: delivered})
	synctest.Wait()
}

func TestD02_HalfCloseDrains(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		got := w.calls("files", "echo", 1, 2)
		w.client.conn.CloseWrite()
		time.Sleep(4 * time.Second)
		for _, m := range got {
			echo("files")(w.upstream("files"), decode(t, m))
		}
		w.client.want(
			`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`,
			`{"jsonrpc":"2.0","id":2,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`)
		if err := <-w.ended; !errors.Is(err, errDrained) || !errors.Is(err, jsonrpc.ErrClosed) {
			t.Error("ended with", err)
		}
	})
}

func TestD03_HalfCloseExceedsDrain(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 2)
		u := w.upstream("files")
		u.say(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`)
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`) // minted: 1 is initialize, 2 the first call
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{}}`)

		w.client.conn.CloseWrite()
		u.want(cc(`"q"`, -32000, "", "client disconnected", "in_flight"))
		u.say(`{"jsonrpc":"2.0","id":"late","method":"elicitation/create","params":{}}`)
		u.want(cc(`"late"`, -32000, "", "client disconnected", "in_flight"))
		time.Sleep(5*time.Second + time.Millisecond)
		w.client.want(cc(2, -32000, "", "", "in_flight"))
		if !u.gone() {
			t.Error("stream is still open")
		}
		<-w.ended
	})
}

func TestD04_ForceDuringHalfClose(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 2)
		w.client.conn.CloseWrite()
		time.Sleep(2 * time.Second)
		began := time.Now()
		w.cancel()
		got := w.client.take()
		slices.Sort(got)
		if want := []string{w.closing(1, "in_flight"), w.closing(2, "in_flight")}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		<-w.ended
		if d := time.Since(began); d > time.Second {
			t.Error("took", d)
		}
	})
}

func TestClientThatTalksAndDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := newStuckConn()
		done := make(chan error, 1)
		go func() { done <- new(Router).Serve(t.Context(), identity.Nobody, "", stuck) }()
		for range 3 * clientSpare * clientMessages { // writeLoop takes up to one of these, and one waits
			stuck.say(decode(t, `{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		}
		if err := <-done; !errors.Is(err, jsonrpc.ErrClosed) || !strings.Contains(err.Error(), "does not read") {
			t.Error("ended with", err)
		}
	})
}

func TestD07_UpstreamDies(t *testing.T) {
	inEras(t, &Router{}, []string{"files", "docs"}, func(w *world) {
		w.initialize()
		w.list()
		w.calls("docs", "docs__echo", 100, 1)
		w.calls("files", "files__echo", 1, 5)
		w.die("files", "signal: killed", true)
		got := w.client.take()
		slices.Sort(got)
		var want []string
		for i := range 5 {
			want = append(want, cc(i+1, -32603, "files", "signal: killed", "in_flight"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}

		// The next call works again, on a new stream, and the other upstream is not affected.
		w.client.say(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"files__echo"}}`)
		w.client.want(`{"jsonrpc":"2.0","id":9,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`)
		if w.upstream("docs").gone() {
			t.Error("docs is gone, too")
		}
	})
}

func TestD07_UpstreamDiesWithOpenQuestion(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		w.upstream("files").say(`{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`)
		w.die("files", "exit status 1", true)
		w.client.want(cc(1, -32603, "files", "exit status 1", "in_flight"),
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"upstream disconnected"}}`)
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{}}`) // too late: dropped
		w.client.want()
	})
}

func TestD11_Timeout(t *testing.T) {
	inEras(t, &Router{Upstreams: []Upstream{{Name: "files", RequestTimeout: time.Second}}}, nil, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		u := w.upstream("files")
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":"p"}}}`)
		u.take()
		time.Sleep(900 * time.Millisecond)
		u.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":3,"progress":1}}`)
		w.client.want(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`)
		time.Sleep(200 * time.Millisecond)
		timeout := fmt.Sprintf(`{"jsonrpc":"2.0","id":%%d,"error":%s}`, jsonrpc.TimedOut("files").Raw())
		w.client.want(fmt.Sprintf(timeout, 1)) // the second one made progress
		u.want(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"timeout"}}`)
		time.Sleep(time.Second)
		w.client.want(fmt.Sprintf(timeout, 2))
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`) // D19: late
		w.client.want()
	})
}

func TestD14_NotSent(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.mu.Lock()
		w.dial["files"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
		w.mu.Unlock()
		w.die("files", "link lost", true)
		w.client.say(call1)
		w.client.want(cc(1, -32603, "files", "link lost", "not_sent"))
	})
}

func TestD15_Drain(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		u := w.upstream("files")
		shut := make(chan struct{})
		go func() { w.proxy.Shutdown(w.t.Context()); close(shut) }()
		synctest.Wait()
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}}`)
		w.client.want(cc(2, -32000, "", "", "not_sent"))

		// Server requests are still answered while requests finish.
		u.say(`{"jsonrpc":"2.0","id":5,"method":"roots/list"}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}`)
		u.want(`{"jsonrpc":"2.0","id":5,"result":{"roots":[]}}`)
		u.say(`{"jsonrpc":"2.0","id":2,"result":{"content":[]}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
		<-shut
		<-w.ended

		w.connect() // a client that comes now hears so at once
		w.client.say(call1)
		synctest.Wait()
		<-w.ended
	})
}

func TestD16_BothCloseAtOnce(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 3)
		u := w.upstream("files")
		go u.conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true})
		go w.client.conn.Close()
		<-w.ended
	})
}

func TestD17_ResponseBeforeCancel(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		w.upstream("files").say(`{"jsonrpc":"2.0","id":2,"result":{"a":1}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"a":1}}`)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		w.upstream("files").want()
		w.client.want()
	})
}

func TestD18_CancelBeforeResponse(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		u := w.upstream("files")
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"why not"}}`)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		u.want(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"why not"}}`)
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.client.want()

		// D26: the id may be reused; the late answer is not taken for the new call's.
		w.client.say(call1)
		u.take()
		u.say(`{"jsonrpc":"2.0","id":2,"result":{"late":true}}`)
		u.say(`{"jsonrpc":"2.0","id":3,"result":{"late":false}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"late":false}}`)
	})
}

func TestD18_CancelBeforeSent(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.die("files", "exit status 0", true)
		w.mu.Lock()
		gate := make(chan struct{})
		w.proxy.Dial = gated(w, gate)
		w.mu.Unlock()
		w.client.say(call1) // waits for the upstream to start
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		synctest.Wait()
		close(gate)
		for _, m := range w.upstream("files").take() {
			if strings.Contains(m, "tools/call") || strings.Contains(m, "cancelled") {
				t.Error("upstream got", m)
			}
		}
		w.client.want()
	})
}

func TestD20_CancelInitialize(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		gate := make(chan struct{})
		w.proxy.Dial = gated(w, gate)
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}`)
		w.client.want()
		close(gate)
		if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], `"protocolVersion":"2025-06-18"`) {
			t.Errorf("got %q", got)
		}
	})
}

func TestD21_ClientClosesDuringInitialize(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.proxy.Dial = DialFunc(func(ctx context.Context, u, k string, era mcp.Era) (jsonrpc.Conn, error) {
			c, err := w.open(ctx, u, k, era)
			w.conns[u][0].mute()
			return c, err
		})
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
		u := w.upstream("files")
		w.client.conn.Close()
		<-w.ended
		if got := u.take(); len(got) != 1 || !u.gone() {
			t.Errorf("upstream got %q", got)
		}
	})
}

func TestD22_CancelOfNothing(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		for _, id := range []string{`true`, `null`, `"1"`, `77`, `1.5`, `{}`, `[1]`} {
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
			w.upstream("files").say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
		}
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
		w.upstream("files").want()
		w.client.want()
		w.upstream("files").say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
}

func TestD23_LateProgress(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.upstream("files").mute()
		withToken := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":1}}}`
		w.client.say(withToken)
		u := w.upstream("files")
		u.take()
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.client.take()
		w.client.say(withToken) // the same id and token again
		u.take()
		u.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":9}}`)
		w.client.want()
		u.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":3,"progress":1}}`)
		w.client.want(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
	})
}

func TestD24_DoubleClose(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 1)
		w.client.conn.CloseWrite()
		w.client.conn.Close()
		w.client.conn.Close()
		w.cancel()
		if err := <-w.ended; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestD25_DuplicateID(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		if got := w.calls("files", "echo", 1, 1); len(got) != 1 {
			t.Fatal(got)
		}
		w.client.say(call1)
		w.upstream("files").want()
		w.client.want(`{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request: the id is in use by a request in flight"}}`)
		w.upstream("files").say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
}

func TestD45_BatchWithClientClosing(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`)
		w.client.take()
		w.upstream("files").mute()
		two := `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}},{"jsonrpc":"2.0","id":2,"method":"ping"}]`
		w.client.say(two)
		u := w.upstream("files")
		w.client.want() // not before both are answered
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.client.want(`[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":1,"result":{}}]`)

		w.client.say(two)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		w.client.want(`[{"jsonrpc":"2.0","id":2,"result":{}}]`)

		w.client.say(two)
		synctest.Wait()
		w.client.conn.Close()
		<-w.ended
		w.client.want()
		if !u.gone() {
			t.Error("stream is still open")
		}
	})
}

// What is unusable in a batch is answered in it, beside the rest.
func TestUnusableElements(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`)
		w.client.take()
		w.client.say(`[1,{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":7}]`)
		w.client.want(`[{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request: batch element is not an object"}},` +
			`{"jsonrpc":"2.0","id":2,"result":{}},` +
			`{"jsonrpc":"2.0","id":3,"error":{"code":-32600,"message":"Invalid request: \"method\" is not a string"}}]`)
		w.client.say(`[1]`)
		w.client.want(`[{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request: batch element is not an object"}}]`)
	})
}

func TestBatchElsewhere(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize() // 2025-11-25
		w.client.say(`[{"jsonrpc":"2.0","id":2,"method":"ping"}]`)
		w.client.want(`{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request: no batch is possible here"}}`)
	})
}

func TestD46_ListWithDeadAndHungUpstreams(t *testing.T) {
	inEras(t, &Router{}, []string{"dead", "files", "hung"}, func(w *world) {
		w.initialize()
		w.mu.Lock()
		w.dial["dead"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
		w.mu.Unlock()
		w.die("dead", "exit status 1", true)
		hung := w.upstream("hung")
		hung.mute()
		hung.take()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		w.client.want()
		time.Sleep(10*time.Second + time.Millisecond)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"files__echo","inputSchema":{"type":"object"}}]}}`)
		hung.want(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"no longer needed"}}`)
	})
}

func TestD46_AllDead(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		for _, u := range []string{"a", "b"} {
			w.mu.Lock()
			w.dial[u] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
			w.mu.Unlock()
			w.die(u, "exit status 1", true)
		}
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		w.client.want(cc(1, -32603, "a", "start failed", "not_sent"))
	})
}

func TestD48_CannotStart(t *testing.T) {
	inWorld(t, &Router{}, []string{"bad", "good"}, func(w *world) {
		w.dial["bad"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		got := w.client.take()
		if len(got) != 1 || !strings.Contains(got[0], `"completions":{}`) || !strings.Contains(got[0], `"logging":{}`) {
			t.Errorf("got %q", got)
		}
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad__x"}}`)
		w.client.want(cc(1, -32603, "bad", "start failed", "not_sent"))
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"good__nothing"}}`)
		w.client.want(`{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"Unknown tool: good__nothing"}}`)
	})
}

// Either a timeout or an answer at the same instant wins, never both.
func TestD49_TimeoutAndResultAtOnce(t *testing.T) {
	for range 200 {
		inEras(t, &Router{Upstreams: []Upstream{{Name: "files", RequestTimeout: time.Second}}}, nil, func(w *world) {
			w.initialize()
			w.calls("files", "echo", 1, 1)
			u := w.upstream("files")
			time.AfterFunc(time.Second, func() { u.conn.Send(jsonrpc.NewResult(jsonrpc.IntID(2), json.RawMessage(`{}`))) })
			time.Sleep(time.Second)
			got, cancels := w.client.take(), u.take()
			if len(got) != 1 {
				t.Fatalf("got %q", got)
			}
			if timedOut := strings.Contains(got[0], "timeout"); timedOut != (len(cancels) == 1) {
				t.Errorf("got %q, upstream %q", got, cancels)
			}
		})
	}
}

func TestD50_ThousandInFlight(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.upstream("files").handle(func(*party, *jsonrpc.Message) {})
		for i := range 1000 {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}`, i))
		}
		w.die("files", "signal: killed", true)
		seen := map[string]int{}
		for _, m := range w.client.take() {
			seen[m]++
		}
		for i := range 1000 {
			if seen[cc(i, -32603, "files", "signal: killed", "in_flight")] != 1 {
				t.Fatal("no single error for", i)
			}
		}
	})
}

func TestOverload(t *testing.T) {
	inEras(t, &Router{Limits: Limits{InFlight: 2}}, []string{"files"}, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 3)
		w.client.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"error":%s}`, jsonrpc.Overloaded("").Raw()))
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		w.upstream("files").want(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	})
}

// The last messages of a client reach the upstream, although nobody waits for an answer.
func TestD02_LastNotificationArrives(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		gate := make(chan struct{})
		w.proxy.Dial = gated(w, gate)
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		w.client.say(`{"jsonrpc":"2.0","method":"vendor/save"}`)
		synctest.Wait()
		w.client.conn.CloseWrite()
		synctest.Wait()
		close(gate) // the upstream starts only now
		<-w.ended
		u := w.upstream("files")
		if got := u.take(); !slices.Contains(got, `{"jsonrpc":"2.0","method":"vendor/save"}`) || !u.gone() {
			t.Errorf("upstream got %q, gone %v", got, u.gone())
		}
	})
}
