package eras

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

func TestParksAreBounded(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.relates, k.caps = true, `{"sampling":{}}`
		for i := range maxSuspended + 1 {
			k.call("c", i, "tools/call")
			if i == 0 {
				k.hello("s0", "{}")
			}
			call := k.recv("s0")
			k.say("s0", fmt.Sprintf(`@%s {"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}`, call.ID, i))
			time.Sleep(collectFor)
			if i < maxSuspended {
				k.answered("c", i, 0)
			}
		}
		if m := k.recv("s0"); m.Error == nil || m.ID != jsonrpc.IntID(maxSuspended) {
			t.Errorf("the question too many got %s", k.text(m))
		}
		time.Sleep(k.b.SuspendFor)
		synctest.Wait()
		for range maxSuspended { // an error for each
			if m := k.recv("s0"); m.Error == nil {
				t.Fatalf("the server received %s", k.text(m))
			}
		}
		k.quiet()
		time.Sleep(peer.FadeFor)
		synctest.Wait()
		for range maxSuspended { // and if it goes on all the same, a cancellation
			if m := k.recv("s0"); m.Method != "notifications/cancelled" {
				t.Fatalf("the server received %s", k.text(m))
			}
		}
	})
}

// Large params are not kept, but recognized.
func TestLargeCallIsParked(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.caps = `{"sampling":{}}`
		arguments := `{"b":[1, 2],"a":"` + strings.Repeat("x", 2*maxCanonical) + `"}`
		k.say("c", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":`+arguments+`,"_meta":{STAMP,"progressToken":1}}}`)
		k.hello("s0", "{}")
		if m := k.recv("s0"); !strings.Contains(string(m.Params), arguments) {
			t.Errorf("the server received %.80s", m.Params)
		}
		k.say("s0", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}`)
		if m := k.recv("c"); string(m.Params) != `{"progressToken":1,"progress":1}` {
			t.Errorf("the client received %s", m.Params)
		}
		k.say("s0", `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}`)
		time.Sleep(collectFor)
		k.text(k.recv("c"))
		retry := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"arguments":` + arguments + `,"name":"a","_meta":{STAMP},"requestState":"$1","inputResponses":{"q1":{"roots":[]}}}}`
		k.say("c", strings.Replace(retry, "xx", "xy", 1))
		k.answered("c", 2, jsonrpc.CodeInvalidParams)
		k.say("c", retry)
		k.recv("s0")
		k.say("s0", `{"jsonrpc":"2.0","id":2,"result":{}}`)
		k.answered("c", 2, 0)
	})
}

func TestKeptAnswersAreBounded(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.relates, k.caps = true, `{"sampling":{}}`
		const calls = maxKept>>20 + 1 // the last is too many
		answer := []byte(`{"a":"` + strings.Repeat("x", 1<<20) + `"}`)
		for i := range calls {
			k.call("c", i, "tools/call")
			if i == 0 {
				k.hello("s0", "{}")
			}
			call := k.recv("s0")
			k.say("s0", fmt.Sprintf(`@%s {"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}`, call.ID, i))
			time.Sleep(collectFor)
			k.text(k.recv("c"))
			k.sides["s0"].c.Send(jsonrpc.NewResult(call.ID, answer))
			k.recv("s0") // the question is not needed any more
		}
		for i := 1; i < calls; i++ {
			k.say("c", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","_meta":{STAMP},"requestState":"$%d","inputResponses":{}}}`, calls+i, i+1))
			if m := k.recv("c"); (m.Result != nil) != (i < calls-2) {
				t.Errorf("call %d received %.200s", i, k.text(m))
			}
		}
		time.Sleep(k.b.SuspendFor) // nobody comes for the first
		synctest.Wait()
		if n := k.b.accounts[accountID{"up", "p-key"}].kept; n != 0 {
			t.Errorf("%d bytes are kept", n)
		}
	})
}

func TestRoundsAreBounded(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.caps = `{"sampling":{}}`
		k.call("c", 0, "tools/call")
		k.hello("s0", "{}")
		k.recv("s0")
		for i := range maxRounds {
			k.say("s0", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}`, i))
			time.Sleep(collectFor)
			k.text(k.recv("c")) // and the state is known
			k.say("c", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","_meta":{STAMP},"requestState":"$%d","inputResponses":{"q%d":{"roots":[]}}}}`, i+1, i+1, i+1))
			if m := k.recv("s0"); m.Result == nil {
				t.Fatalf("round %d: %s", i, k.text(m))
			}
		}
		k.say("s0", `{"jsonrpc":"2.0","id":100,"method":"sampling/createMessage"}`)
		time.Sleep(collectFor)
		if m := k.recv("s0"); m.Error == nil {
			t.Errorf("the server received %s", k.text(m))
		}
		k.say("s0", `{"jsonrpc":"2.0","id":2,"result":{}}`)
		k.answered("c", maxRounds, 0)
		if n := len(k.b.accounts[accountID{"up", "p-key"}].suspensions); n != 0 {
			t.Errorf("%d suspensions are left", n)
		}
	})
}

// Every character of a requestState matters, and states differ: a client with any other state gets
// nothing, and the call keeps waiting.
func TestD39_ForgedState(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.asks()
		k.caps = `{"sampling":{}}`
		k.suspension("s0", 0)
		k.suspension("s1", 1)
		state := k.states[0]
		if len(state) < 22 || state == k.states[1] {
			t.Fatalf("states %q", k.states)
		}
		forged := []string{"", " ", state + "A", state[1:], state[:len(state)-1], strings.ToLower(state), state + "\n", strings.Repeat("x", 4096)}
		for i := range state {
			forged = append(forged, state[:i]+string('A'+('Z'-state[i])%26)+state[i+1:])
		}
		for i, text := range forged {
			if text == state {
				continue
			}
			k.say("c", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","_meta":{STAMP},"requestState":%s,"inputResponses":{"q1":{}}}}`,
				100+i, jsonrpc.Quote(text)))
			if m := k.recv("c"); !strings.Contains(string(m.Error), stateExpired) {
				t.Errorf("%q received %s", text, k.text(m))
			}
		}
		k.client("d", "p-other") // another principal
		k.say("d", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{STAMP},"requestState":"$1","inputResponses":{"q1":{}}}}`)
		if m := k.recv("d"); !strings.Contains(string(m.Error), stateExpired) {
			t.Errorf("another principal received %s", k.text(m))
		}
		k.quiet()
		k.comeBack(1, 1)
		if m := k.recv("s0"); m.Result == nil {
			t.Errorf("the server received %s", k.text(m))
		}
	})
}

// A client that cancels its request just as the call is suspended has cancelled the call: nobody would come back.
func TestCancelledWhileSuspended(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.caps = `{"sampling":{}}`
		k.call("c", 0, "tools/call")
		k.hello("s0", "{}")
		k.recv("s0")
		k.say("s0", `{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage"}`)
		k.b.each(func(a *account) { // with its lock, for which both wait
			time.Sleep(collectFor)
			for range 1000 {
				runtime.Gosched() // suspend comes first
			}
			for s := range a.streams {
				r := s.peer.Request(jsonrpc.IntID(0))
				k.sides["c"].c.Send(mcp.Cancellation(r.ID, "the user is gone"))
				for r.Open() {
					runtime.Gosched()
				}
			}
		})
		if m := k.recv("s0"); m.Error == nil || m.ID != jsonrpc.IntID(7) {
			t.Errorf("the server received %s", k.text(m))
		}
		if n := k.b.Suspended(); n != 0 {
			t.Errorf("%d calls are suspended", n)
		}
	})
}
