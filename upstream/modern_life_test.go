//go:build unix

package upstream

import (
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A server without streams ends after a while, and is started again at need.
func TestModernIdleServerEnds(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a := w.attach("a")
		s := w.server()
		a.leave()
		time.Sleep(modernIdle - time.Second)
		w.attach("again").leave()
		time.Sleep(modernIdle - time.Second) // since the last one
		b := w.attach("b")
		b.lives(s)
		time.Sleep(2 * modernIdle)
		b.lives(s)
		b.leave()
		time.Sleep(modernIdle)
		w.server().hears()
		if s.end == nil {
			t.Fatal("the server was not ended")
		}
		w.attach("c").lives(w.server())
		if len(w.servers) != 2 {
			t.Errorf("%d sessions", len(w.servers))
		}
		if st := w.host.Status(); len(st) != 1 || st[0].Era != mcp.Modern || st[0].State != StateRunning || st[0].Key != sharedKey {
			t.Errorf("status %+v", st)
		}
	})
}

// A client may come back for a task until its ttlMs is over, or for an hour: so long the server runs.
func TestModernServerOfATaskStays(t *testing.T) {
	for ttl, stays := range map[string]time.Duration{`"ttlMs":600000`: 10 * time.Minute, `"ttlMs":null`: time.Hour, `"ttlMs":1e9`: time.Hour, `"ttlMs":1`: modernIdle} {
		t.Run(ttl, func(t *testing.T) {
			inModernWorld(t, func(w *sharedWorld) {
				a := w.attach("a")
				s := w.server()
				a.say(`{"id":1,"method":"tools/call","params":{}}`)
				s.heard()
				s.say(`{"id":2,"result":{"resultType":"task","taskId":"t","status":"working",` + ttl + `}}`)
				a.hears(`{"id":1,"result":{"resultType":"task","taskId":"t","status":"working",` + ttl + `}}`)
				a.leave()
				time.Sleep(stays - time.Second)
				b := w.attach("b")
				b.lives(s)
				b.leave()
				time.Sleep(modernIdle)
				if s.hears(); s.end == nil {
					t.Error("the server was not ended")
				}
			})
		})
	}
}

// With the last proxy a server that has no stream ends at once.
func TestEndIdle(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a := w.attach("a")
		s := w.server()
		w.host.EndIdle()
		a.lives(s)
		a.leave()
		w.host.EndIdle()
		if s.hears(); s.end == nil {
			t.Fatal("the server was not ended")
		}
		w.attach("b").lives(w.server())
	})
}

// Who comes in the instant in which the server is given up has it, or the next one.
func TestModernIdleServerEndsAsAStreamBegins(t *testing.T) {
	for range 200 {
		inModernWorld(t, func(w *sharedWorld) {
			a := w.attach("a")
			a.lives(w.server())
			a.leave()
			time.Sleep(modernIdle)
			b := w.attach("b")
			b.lives(w.server())
		})
	}
}

// A stream over HTTP has a Conn of its own, which knows what belongs to what. It is
// told what is cancelled, and of no tasks, which outlive it.
func TestModernStreamAlone(t *testing.T) {
	w := &sharedWorld{era: mcp.Modern}
	inWorld(t, w, Upstream{Era: mcp.Modern, Relates: true, Shared: true}, func(w *sharedWorld) {
		a := w.attach("a")
		sa := w.server()
		b := w.attach("b")
		sb := w.server()
		a.say(`{"id":1,"method":"subscriptions/listen"}`, `{"id":2,"method":"tools/call","params":{"task":{}}}`, `{"id":3,"method":"tools/call"}`)
		b.say(`{"id":2,"method":"ping"}`)
		sa.hears(`{"id":1,"method":"subscriptions/listen"}`, `{"id":2,"method":"tools/call","params":{"task":{}}}`, `{"id":3,"method":"tools/call"}`)
		sb.hears(`{"id":2,"method":"ping"}`)
		sa.say("@1 "+frame("tools/list_changed", "1"), `{"id":4,"method":"roots/list"}`, `{"id":2,"result":{"task":{"taskId":"t"}}}`)
		a.hears("@1 "+frame("tools/list_changed", "1"), `{"id":2,"result":{"task":{"taskId":"t"}}}`)
		if st := w.host.Status(); len(st) != 2 || st[0].InFlight != 1 || st[0].State != StateRunning {
			t.Errorf("status %+v", st)
		}
		a.leave()
		sa.hears(`{"method":"notifications/cancelled","params":{"requestId":1,`+goneReason+`}}`,
			`{"method":"notifications/cancelled","params":{"requestId":3,`+goneReason+`}}`)
		time.Sleep(time.Hour) // a first answer may take its time
		sb.say(`{"id":2,"error":{"code":-32601,"message":"no"}}`)
		b.hears(`{"id":2,"error":{"code":-32601,"message":"no"}}`)
		sb.die("connection lost")
		b.ends("connection lost", true)

		w.dialErr = &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}
		c := w.attach("c")
		c.say(`{"id":1,"method":"tools/call"}`)
		c.ends("connection refused", false)
	})
}
