package eras

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// inPool runs a test of pooled sessions in a bubble, with one client c.
func inPool(t *testing.T, test func(k *pooled)) {
	synctest.Test(t, func(t *testing.T) {
		k := newPooled(t)
		k.client("c", "p-key")
		test(k)
		k.quiet()
	})
}

// asks makes the upstream one that is known to ask.
func (k *pooled) asks() { k.b.asking.Store("up", true) }

func (k *pooled) call(client string, id int, method string) {
	k.t.Helper()
	k.say(client, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"name":"a","_meta":{STAMP}}}`, id, method))
}

// occupy makes call i of the client occupy session i, of a server that is known to ask.
func (k *pooled) occupy(i int) {
	k.t.Helper()
	server := fmt.Sprintf("s%d", i)
	k.call("c", i, "tools/call")
	k.hello(server, "{}")
	k.recv(server)
}

// serve answers the request that a server receives next.
func (k *pooled) serve(server string) {
	k.t.Helper()
	k.say(server, `{"jsonrpc":"2.0","id":`+k.recv(server).ID.String()+`,"result":{}}`)
}

// answered fails unless a client receives the answer to a request next; code is zero for a result.
func (k *pooled) answered(client string, id, code int) {
	k.t.Helper()
	m := k.recv(client)
	e, _ := readError(m.Error)
	if m.ID != jsonrpc.IntID(int64(id)) || e.Code != code {
		k.t.Fatalf("%s received %s, want an answer to %d with %d", client, k.text(m), id, code)
	}
}

func (k *pooled) sessions() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.keys)
}

func TestSessionsAreReapedWhenIdle(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.call("c", 1, "tools/list")
		k.hello("s0", "{}")
		time.Sleep(50 * time.Second)
		k.serve("s0")
		k.answered("c", 1, 0)
		time.Sleep(50 * time.Second) // a minute since it began, but it was used
		k.call("c", 2, "tools/list")
		k.serve("s0")
		k.answered("c", 2, 0)
		k.call("c", 3, "tools/call") // and a call may take as long as it likes
		time.Sleep(5 * time.Minute)
		k.serve("s0")
		k.answered("c", 3, 0)
		time.Sleep(2 * time.Minute)
		k.ended("s0", "")

		k.call("c", 4, "tools/list")
		k.hello("s1", "{}")
		k.serve("s1")
		k.answered("c", 4, 0)
		if k.keys[0] != k.keys[1] || !strings.HasPrefix(k.keys[0], "p-key-") {
			t.Errorf("sessions have the keys %q", k.keys)
		}
	})
}

func TestSessionsOutliveStreams(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.call("c", 1, "tools/list")
		k.hello("s0", "{}")
		k.serve("s0")
		k.answered("c", 1, 0)
		k.sides["c"].c.Close()
		synctest.Wait()
		k.client("d", "p-key")
		k.call("d", 1, "tools/list")
		k.serve("s0")
		k.answered("d", 1, 0)
		k.client("e", "other") // somebody else has none of it
		k.call("e", 1, "tools/list")
		k.hello("s1", "{}")
		k.serve("s1")
		k.answered("e", 1, 0)
	})
}

func TestCallsWaitForLanesInOrder(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		for i := range maxGroupSessions {
			k.call("c", i, "tools/call")
			k.hello(fmt.Sprintf("s%d", i), "{}")
		}
		for i := range 3 {
			k.call("c", 100+i, "tools/call")
		}
		k.say("c", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":100}}`)
		if k.sessions() != maxGroupSessions {
			t.Fatalf("%d sessions", k.sessions())
		}
		k.serve("s3")
		k.answered("c", 3, 0)
		k.serve("s3")
		k.answered("c", 101, 0)
		k.serve("s3")
		k.answered("c", 102, 0)
		for i := range maxGroupSessions {
			if i != 3 {
				k.serve(fmt.Sprintf("s%d", i))
				k.answered("c", i, 0)
			}
		}
	})
}

func TestCallThatWaitsGetsALaneWhenOneDies(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		for i := range maxGroupSessions {
			k.occupy(i)
		}
		k.call("c", 100, "tools/call")
		for i := range maxGroupSessions {
			jsonrpc.CloseWith(k.sides[fmt.Sprintf("s%d", i)].c, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("gone"), Delivered: true})
			k.answered("c", i, -32603)
		}
		k.hello(fmt.Sprintf("s%d", maxGroupSessions), "{}")
		k.serve(fmt.Sprintf("s%d", maxGroupSessions))
		k.answered("c", 100, 0)
	})
}

// The longest idle session makes room; if none is idle there is no room.
// If no client listens, the stream gets one list_changed for several of the server.
func TestChangeWithoutAListen(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.call("c", 1, "tools/call")
		k.hello("s0", `{"tools":{"listChanged":true}}`)
		call := k.recv("s0")
		for range 3 {
			k.say("s0", `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		k.quiet()
		time.Sleep(noticeFor)
		if m := k.recv("c"); m.Method != mcp.MethodToolsChanged {
			t.Errorf("the client received %s", k.text(m))
		}
		k.say("s0", `{"jsonrpc":"2.0","id":`+call.ID.String()+`,"result":{}}`)
		k.answered("c", 1, 0)
	})
}

// A reload ends the calls that wait, too, with one event.
func TestCallsThatWaitWhenTheUpstreamChanges(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		for i := range maxGroupSessions {
			k.occupy(i)
		}
		k.call("c", 100, "tools/call")
		k.call("c", 101, "tools/call")
		k.b.each(func(a *account) { a.endWaitingLocked(jsonrpc.CauseChanged) })
		var events []string
		for i := range 2 {
			m := k.recv("c")
			events = append(events, eventMember.FindString(string(m.Error)))
			if m.ID != jsonrpc.IntID(int64(100+i)) || !strings.Contains(string(m.Error), `"not_sent"`) || events[i] == "" || events[i] != events[0] {
				t.Errorf("the client received %s", m.Append(nil))
			}
		}
	})
}

func TestSessionsOfAKeyAreBounded(t *testing.T) {
	inPool(t, func(k *pooled) {
		for i := range maxSessions {
			k.caps = fmt.Sprintf(`{"experimental":{"%d":{}}}`, i)
			k.call("c", i, "tools/call")
			k.hello(fmt.Sprintf("s%d", i), "{}")
		}
		k.caps = `{}`
		k.call("c", 100, "tools/call")
		k.answered("c", 100, -32603)
		for i := range maxSessions {
			k.serve(fmt.Sprintf("s%d", (i+5)%maxSessions))
			k.answered("c", (i+5)%maxSessions, 0)
			time.Sleep(time.Millisecond)
		}
		k.call("c", 101, "tools/call")
		k.ended("s5", "")
		k.hello(fmt.Sprintf("s%d", maxSessions), "{}")
		k.serve(fmt.Sprintf("s%d", maxSessions))
		k.answered("c", 101, 0)
		if n := len(k.b.accounts[accountID{"up", "p-key"}].groups); n != maxSessions {
			t.Errorf("%d groups", n)
		}
	})
}

// A client that does not read loses its stream, and others lose nothing.
func TestSlowClientIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newPooled(t)
		near, far := jsonrpc.Pipe()
		done := make(chan error, 1)
		go func() { done <- k.b.Modern(k.ctx, "up", "p-key", far) }()
		k.client("c", "p-key")
		k.call("c", 1, "tools/list")
		k.hello("s0", "{}")
		k.serve("s0")
		k.answered("c", 1, 0)

		near.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "tools/call", []byte(`{"_meta":{"progressToken":1}}`)))
		call := k.recv("s0")
		for range 2*maxUnread + 2*maxQueued { // the half of it may be on its way already
			k.sides["s0"].c.Send(jsonrpc.NewNotification("notifications/progress", []byte(`{"progress":1,"progressToken":`+call.ID.String()+`}`)))
		}
		synctest.Wait()
		if m := k.recv("s0"); m.Method != "notifications/cancelled" {
			t.Errorf("the server received %s", k.text(m))
		}
		if err := <-done; err.(*jsonrpc.ClosedError).Cause != jsonrpc.CauseSlowStream {
			t.Errorf("the stream ended with %v", err)
		}
		near.Close()
		k.call("c", 2, "tools/list")
		k.serve("s0")
		k.answered("c", 2, 0)
	})
}

// A server that does not read gets no more requests and answers than there is room for.
func TestServerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newPooled(t)
		near, far := jsonrpc.Pipe()
		k.b.Open = func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return near }
		k.client("c", "p-key")
		k.call("c", 0, "tools/list")
		hello, _ := far.Recv()
		far.Send(jsonrpc.NewResult(hello.ID, []byte(benchWelcome)))
		for i := range 4 * maxQueued {
			k.sides["c"].c.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i+1)), "tools/call", nil))
			far.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), "ping", nil))
		}
		synctest.Wait()
		refused := len(k.sides["c"].in)
		if refused < 2*maxQueued || refused >= 4*maxQueued {
			t.Errorf("%d calls were refused", refused)
		}
		if m := <-k.sides["c"].in; !strings.Contains(string(m.Error), jsonrpc.ReasonOverloaded) {
			t.Errorf("a call received %s", k.text(m))
		}
		waited := 0
		go func() {
			for {
				if _, err := far.Recv(); err != nil {
					return
				}
				waited++
			}
		}()
		synctest.Wait()
		const underWay = 3 * 64            // in the stream and on the way to it
		if waited > maxQueued+2+underWay { // calls and answers may each be one too many
			t.Errorf("%d wait, which is more than there is room for", waited)
		}
		far.Close()
	})
}

func TestStopEndsSessions(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.call("c", 1, "tools/call")
		k.hello("s0", "{}")
		k.recv("s0")
		k.caps = `{"roots":{}}`
		k.call("c", 2, "tools/call") // whose session has not begun
		k.recv("s1")
		k.b.Stop(context.Background())
		for range 2 {
			if m := k.recv("c"); !strings.Contains(string(m.Error), jsonrpc.CauseHostStopped.String()) {
				t.Errorf("a call ended with %s", k.text(m))
			}
		}
		k.ended("s0", "")
		k.ended("s1", "")
		k.b.Stop(context.Background())

		near, far := jsonrpc.Pipe()
		if err := k.b.Modern(k.ctx, "up", "new", far); err.(*jsonrpc.ClosedError).Cause != jsonrpc.CauseHostStopped {
			t.Errorf("a new stream ended with %v", err)
		}
		near.Close()
		k.sides["c"].c.Close()
		synctest.Wait()
	})
	(&Bridge{}).Stop(context.Background()) // one that never served
}

// The phase says whether anything can have happened.
func TestPhaseOfWhatASessionLoses(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.call("c", 1, "tools/call")
		k.recv("s0") // initialize
		jsonrpc.CloseWith(k.sides["s0"].c, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Delivered: true})
		if m := k.recv("c"); !strings.Contains(string(m.Error), `"phase":"not_sent"`) {
			t.Errorf("what never left: %s", k.text(m))
		}
		for i, delivered := range []bool{false, true} {
			server := fmt.Sprintf("s%d", i+1)
			k.call("c", 2, "tools/call")
			k.hello(server, "{}")
			k.recv(server)
			jsonrpc.CloseWith(k.sides[server].c, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("gone"), Delivered: delivered})
			if m := k.recv("c"); strings.Contains(string(m.Error), `"phase":"in_flight"`) != delivered {
				t.Errorf("delivered %v: %s", delivered, k.text(m))
			}
		}
	})
}

// A call that waits for a session and is cancelled is not placed any more.
func TestOtherEraAndCallsThatWait(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		for i := range maxGroupSessions {
			k.occupy(i)
		}
		for i := range 3 {
			k.call("c", 100+i, "tools/call")
		}
		jsonrpc.CloseWith(k.sides["s0"].c, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Delivered: true, Err: mcp.ErrOtherEra})
		k.ended("c", jsonrpc.CauseStartFailed.String())
		for i := range maxGroupSessions - 1 {
			if m := k.recv(fmt.Sprintf("s%d", i+1)); m.Method != "notifications/cancelled" {
				t.Errorf("a server received %s", k.text(m))
			}
		}
		time.Sleep(peer.Lingering)
		k.quiet()
		if n := k.sessions(); n != maxGroupSessions {
			t.Errorf("%d sessions", n)
		}
	})
}

// When an upstream turns out to be modern, nothing that may have run is reported as not sent.
func TestOtherEraAndCallsElsewhere(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.client("d", "p-key")
		k.call("c", 1, "tools/call")
		k.hello("s0", "{}")
		k.recv("s0")
		k.caps = `{"roots":{}}`
		k.call("c", 2, "tools/call")
		k.call("d", 1, "tools/call")
		k.recv("s1")
		jsonrpc.CloseWith(k.sides["s1"].c, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Err: mcp.ErrOtherEra})
		synctest.Wait()
		for client, delivered := range map[string]bool{"c": true, "d": false} {
			end, _ := errors.AsType[*jsonrpc.ClosedError](<-k.sides[client].end)
			if end == nil || !errors.Is(end, mcp.ErrOtherEra) || end.Delivered != delivered {
				t.Errorf("%s ended with %#v", client, end)
			}
		}
		if m := k.recv("s0"); m.Method != "notifications/cancelled" {
			t.Errorf("the server received %s", k.text(m))
		}
		time.Sleep(peer.Lingering)
	})
}

// Servers stop after Stop has returned, and in time.
func TestStopForcesNobodyBeforeItsTime(t *testing.T) {
	inPool(t, func(k *pooled) {
		var opened context.Context
		open := k.b.Open
		k.b.Open = func(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn {
			opened = ctx
			return open(ctx, upstream, key, era)
		}
		k.call("c", 1, "tools/list")
		k.hello("s0", "{}")
		k.serve("s0")
		k.answered("c", 1, 0)
		ctx, force := context.WithCancel(context.Background())
		k.b.Stop(ctx)
		k.ended("s0", "")
		if opened.Err() != nil {
			k.t.Error("the session was forced to end")
		}
		force()
		synctest.Wait()
		if opened.Err() == nil {
			k.t.Error("the session is not forced to end")
		}
	})
}

// An upstream may have a shorter time, but no longer one.
func TestSessionsOfOneUpstreamAreReaped(t *testing.T) {
	for idle, want := range map[time.Duration]time.Duration{0: time.Minute, 20 * time.Second: 20 * time.Second, time.Hour: time.Minute} {
		inPool(t, func(k *pooled) {
			k.b.IdleOf = func(upstream string) time.Duration {
				if upstream != "up" {
					t.Errorf("asked for %s", upstream)
				}
				return idle
			}
			k.call("c", 1, "tools/list")
			k.hello("s0", "{}")
			k.serve("s0")
			k.answered("c", 1, 0)
			time.Sleep(want - time.Second)
			k.call("c", 2, "tools/list")
			k.serve("s0")
			k.answered("c", 2, 0)
			time.Sleep(want - time.Second)
			k.quiet()
			time.Sleep(time.Second)
			k.ended("s0", "")
		})
	}
}
