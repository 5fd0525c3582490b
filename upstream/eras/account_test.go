package eras

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A client that does not read loses its stream, and can return.
func TestConnectionThatMayReturn(t *testing.T) {
	for end, want := range map[error]bool{
		&jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Err: errors.New("reset")}: false,
		&jsonrpc.ClosedError{Cause: jsonrpc.CauseSlowStream}:                         true,
		&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Err: mcp.ErrOtherEra}:  true,
		&jsonrpc.ClosedError{Cause: jsonrpc.CauseClosed, Err: errors.New("reset")}:   false,
		&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped}:                        false,
		jsonrpc.ErrClosed: false,
	} {
		if mayReturn(end) != want {
			t.Errorf("%v: want %v", end, want)
		}
	}
}

// The last messages arrive, but a server that does not read is not waited for.
func TestD06_ConnectionLeavesServerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newPooled(t)
		near, far := jsonrpc.Pipe()
		k.b.Open = func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return near }
		k.client("c", "one")
		k.call("c", 0, "tools/call")
		hello, _ := far.Recv()
		far.Send(jsonrpc.NewResult(hello.ID, []byte(benchWelcome)))
		for i := range maxQueued / 2 {
			k.call("c", i+1, "tools/call")
		}
		began := time.Now()
		k.sides["c"].c.Close()
		k.b.Stop(context.Background())
		if waited := time.Since(began); waited != lastWords {
			t.Errorf("it took %v", waited)
		}
		far.Close()
	})
}

// A call counts as suspended while it waits for its client and its server waits for that.
func TestParked(t *testing.T) {
	inPool(t, func(k *pooled) {
		suspended := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := k.b.Suspended(); n != want {
				t.Errorf("%d calls are suspended, want %d", n, want)
			}
		}
		k.caps = `{"sampling":{}}`
		suspended(0)
		k.asks()
		k.suspension("s0", 1)
		k.suspension("s1", 2)
		k.call("c", 3, "tools/call")
		k.hello("s2", "{}")
		k.recv("s2")
		suspended(2)
		k.say("s0", `{"jsonrpc":"2.0","id":2,"result":{}}`) // its answer is kept
		k.recv("s0")
		suspended(1)
		k.say("c", `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"a","_meta":{STAMP},"requestState":"$2","inputResponses":{"q1":{"roots":[]}}}}`)
		k.recv("s1")
		suspended(0)
		k.say("s2", `{"jsonrpc":"2.0","id":2,"result":{}}`)
		k.answered("c", 3, 0)
		k.say("s1", `{"jsonrpc":"2.0","id":2,"result":{}}`)
		k.answered("c", 4, 0)
	})
}
