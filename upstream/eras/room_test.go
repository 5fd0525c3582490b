package eras

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// suspension makes a call in its own session ask for something that nobody answers.
func (k *pooled) suspension(server string, id int) {
	k.t.Helper()
	k.call("c", id, "tools/call")
	k.hello(server, "{}")
	k.recv(server)
	k.ask(server)
	time.Sleep(collectFor)
	k.text(k.recv("c")) // and its state is known
}

func (k *pooled) ask(server string) {
	k.t.Helper()
	k.say(server, `{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage"}`)
}

// gaveUp fails unless a server gets exactly one error for its unanswered question.
func (k *pooled) gaveUp(server string) {
	k.t.Helper()
	if m := k.recv(server); !strings.Contains(string(m.Error), `"connection_closed","cause":"no answer in time"`) {
		k.t.Fatalf("%s received %s", server, k.text(m))
	}
	k.quiet()
}

// endsCall makes a server end its first call, as it does when its question gets an error.
func (k *pooled) endsCall(server string) {
	k.t.Helper()
	k.say(server, `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no answer"}}`)
}

func (k *pooled) cancel(id int) {
	k.t.Helper()
	k.say("c", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
}

func (k *pooled) comeBack(id, state int) {
	k.t.Helper()
	k.say("c", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","_meta":{STAMP},"requestState":"$%d","inputResponses":{"q1":{"roots":[]}}}}`, id, state))
}

// Clients that do not return do not keep others out for long, and clients that do return are not
// ended needlessly.
func TestD39_ParkedCallsMakeRoom(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		k.caps = `{"sampling":{}}`
		for i := range maxGroupSessions {
			k.suspension(fmt.Sprintf("s%d", i), i)
		}
		k.call("c", 100, "tools/call")
		k.cancel(100)
		time.Sleep(minSuspended)
		k.quiet() // nobody waits
		k.comeBack(20, 1)
		k.recv("s0")
		k.ask("s0")
		time.Sleep(collectFor)
		k.text(k.recv("c"))

		k.call("c", 101, "tools/call")
		k.gaveUp("s1") // the oldest since
		time.Sleep(time.Millisecond)
		k.call("c", 102, "tools/call")
		k.gaveUp("s2")
		time.Sleep(peer.Lingering)
		k.quiet() // they may still be at it
		k.endsCall("s1")
		k.endsCall("s2")
		k.serve("s1")
		k.answered("c", 101, 0)
		k.serve("s2")
		k.answered("c", 102, 0)
		k.comeBack(21, 2)
		if m := k.recv("c"); !strings.Contains(string(m.Error), stateExpired) {
			t.Errorf("the first received %s", k.text(m))
		}
		k.comeBack(22, 4)
		k.recv("s3")
		k.say("s3", `{"jsonrpc":"2.0","id":2,"result":{}}`)
		k.answered("c", 22, 0)
	})
}

// A call waits until another one has been suspended for long enough; a younger one stays.
func TestD39_CallWaitsUntilAParkIsOld(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		k.caps = `{"sampling":{}}`
		for i := range maxGroupSessions {
			k.occupy(i)
		}
		k.call("c", 100, "tools/call")
		k.call("c", 101, "tools/call")
		time.Sleep(minSuspended)
		k.quiet() // all work
		for _, server := range []string{"s7", "s3"} {
			k.ask(server)
			time.Sleep(collectFor)
			k.recv("c")
			time.Sleep(minSuspended/2 - collectFor)
		}
		for i, server := range []string{"s7", "s3"} {
			k.quiet()
			time.Sleep(collectFor)
			k.gaveUp(server)
			time.Sleep(peer.Lingering)
			k.endsCall(server)
			if m := k.recv(server); m.Method != "tools/call" {
				t.Errorf("call %d: %s received %s", i, server, k.text(m))
			}
			time.Sleep(minSuspended/2 - peer.Lingering - collectFor)
		}
	})
}

// The same for calls with other capabilities, when a key has no room for another session.
func TestD39_ParkedSessionMakesRoom(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		for i := range maxSessions {
			k.caps = fmt.Sprintf(`{"sampling":{},"experimental":{"%d":{}}}`, i/maxGroupSessions)
			k.suspension(fmt.Sprintf("s%d", i), i)
		}
		k.caps = `{}`
		k.call("c", 100, "tools/call")
		if m := k.recv("c"); !strings.Contains(string(m.Error), jsonrpc.ReasonOverloaded) {
			t.Errorf("a call received %s", k.text(m))
		}
		time.Sleep(minSuspended)
		k.call("c", 101, "tools/call")
		k.ended("s0", "")
		k.hello(fmt.Sprintf("s%d", maxSessions), "{}")
		k.serve(fmt.Sprintf("s%d", maxSessions))
		k.answered("c", 101, 0)
		time.Sleep(peer.Lingering)
		for len(k.sides["s0"].in) > 0 { // it may have heard why
			k.recv("s0")
		}
		k.comeBack(20, 1)
		k.answered("c", 20, jsonrpc.CodeInvalidParams)
	})
}

// A request that cannot be attributed because of a suspended call ends that call, if it is old. The
// request is refused, with one log line.
func TestQuestionEndsAnOldPark(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.relates, k.caps = true, `{"sampling":{}}`
		for i := range 2 {
			k.call("c", i, "tools/call")
			if i == 0 {
				k.hello("s0", "{}")
			}
			k.recv("s0")
		}
		k.say("s0", `@2 {"jsonrpc":"2.0","id":"p","method":"sampling/createMessage"}`)
		time.Sleep(collectFor)
		k.text(k.recv("c"))
		for range 2 {
			k.ask("s0")
			k.recv("s0") // refused
		}
		time.Sleep(minSuspended)
		k.ask("s0")
		if m := k.recv("s0"); !strings.Contains(string(m.Error), "no answer in time") {
			t.Fatalf("the server received %s", k.text(m))
		}
		k.recv("s0") // refused: it may still be of the other
		time.Sleep(peer.Lingering)
		k.quiet()
		k.endsCall("s0")
		k.ask("s0")
		time.Sleep(collectFor)
		if m := k.recv("c"); m.ID != jsonrpc.IntID(1) {
			t.Errorf("the client received %s", k.text(m))
		}
		if n := strings.Count(k.logged.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings: %s", n, &k.logged)
		}
	})
}

// With one server for all sessions, a request that cannot be attributed may be caused by any of
// them.
func TestUnattributedEndsAnOldPark(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		k.caps = `{"sampling":{}}`
		k.suspension("s0", 0)
		time.Sleep(minSuspended / 2)
		k.suspension("s1", 1)
		time.Sleep(minSuspended / 2)
		k.b.Unattributed("other")
		k.quiet()
		k.b.Unattributed("up")
		k.gaveUp("s0")
		k.b.Unattributed("up")
		k.quiet()
		k.endsCall("s0")
	})
}

// Consecutive calls share one session, whatever other sessions there are, because the server
// remembers things in it.
func TestCallsInTurnHaveOneSession(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		for i := range 3 {
			k.call("c", i, "tools/call")
			k.hello(fmt.Sprintf("s%d", i), "{}")
		}
		for i, server := range []string{"s1", "s2", "s0", "s0", "s0", "s0"} {
			if i >= 3 {
				k.call("c", i, "tools/call")
			}
			k.serve(server)
			k.recv("c")
			time.Sleep(time.Millisecond)
		}
	})
}

func TestParksMakeRoomForParks(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.relates, k.caps = true, `{"sampling":{}}`
		for i := range maxSuspended + 1 {
			k.call("c", i, "tools/call")
			if i == 0 {
				k.hello("s0", "{}")
			}
			call := k.recv("s0")
			if i == maxSuspended {
				time.Sleep(minSuspended)
			}
			k.say("s0", fmt.Sprintf(`@%s {"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}`, call.ID, i))
			time.Sleep(collectFor)
			k.answered("c", i, 0)
		}
		k.gaveUp("s0")
		time.Sleep(k.b.SuspendFor + peer.FadeFor)
		synctest.Wait()
		for range 2*maxSuspended + 1 { // an error for each other, and a cancellation for all
			k.recv("s0")
		}
	})
}

// Room that is made for a call that waits may be given to it meanwhile.
func TestLastCallThatWaitsGetsTheRoomOfAPark(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		k.caps = `{"sampling":{}}`
		k.suspension("s0", 0)
		for i := 1; i < maxSessions; i++ {
			if i > 2 {
				k.caps = fmt.Sprintf(`{"experimental":{"%d":{}}}`, i/maxGroupSessions)
			}
			k.occupy(i)
		}
		time.Sleep(minSuspended - peer.Lingering)
		for i, server := range []string{"s1", "s2"} {
			k.cancel(1 + i)
			k.recv(server)
			time.Sleep(time.Millisecond)
		}
		k.caps = `{"sampling":{}}`
		k.call("c", 100, "tools/call")
		k.call("c", 101, "tools/call")
		k.quiet()
		time.Sleep(peer.Lingering) // s1 is free
		if m := k.recv("s0"); !strings.Contains(string(m.Error), "no answer in time") {
			t.Errorf("s0 received %s", k.text(m))
		}
		k.serve("s1")
		k.answered("c", 100, 0)
		last := fmt.Sprintf("s%d", maxSessions)
		k.hello(last, "{}")
		k.serve(last)
		k.answered("c", 101, 0)
	})
}
