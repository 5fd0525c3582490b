package eras

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The cost of updates of very many resources is bounded: beyond the bound, the subscribed resources
// are reported instead.
func TestUpdatesThatWaitAreBounded(t *testing.T) {
	inPool(t, func(k *pooled) {
		k.say("c", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{STAMP},"notifications":{"resourcesListChanged":true,"resourceSubscriptions":["a","b"]}}}`)
		k.hello("s0", `{"resources":{"subscribe":true,"listChanged":true}}`)
		k.recv("s0")
		k.recv("s0")
		const more = 100
		for i := range maxPending + more {
			k.say("s0", fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a/%d"}}`, i))
		}
		k.say("s0", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a/0","v":2}}`)
		k.say("s0", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"c"}}`)
		k.say("s0", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"b"}}`)
		k.say("s0", `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
		k.say("s0", `{"jsonrpc":"2.0","id":2,"result":{}}`)
		k.say("s0", `{"jsonrpc":"2.0","id":3,"result":{}}`)
		k.recv("c") // acknowledged
		time.Sleep(noticeFor)
		told := func(want string) {
			t.Helper()
			if m := k.recv("c"); !strings.Contains(string(m.Append(nil)), want) {
				t.Fatalf("the client received %s, want %s", k.text(m), want)
			}
		}
		told(`"uri":"a/0","v":2`)
		for i := range maxPending - 1 {
			told(fmt.Sprintf(`"uri":"a/%d"`, i+1))
		}
		told(`"uri":"a"`)
		told(`"uri":"b"`)
		told("notifications/resources/list_changed")
		k.quiet()
		k.say("s0", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a/1"}}`)
		time.Sleep(noticeFor)
		told(`"uri":"a/1"`)
	})
}

// A refused listen leaves nothing behind, whatever its capabilities.
func TestRefusedListenLeavesNothing(t *testing.T) {
	inPool(t, func(k *pooled) {
		listen := func(id int) {
			k.say("c", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":{"_meta":{STAMP},"notifications":{}}}`, id))
		}
		for id := range maxListens {
			listen(id)
		}
		k.hello("s0", `{}`)
		for range maxListens {
			k.recv("c") // acknowledged
		}
		for id := range 10 {
			k.caps = fmt.Sprintf(`{"experimental":{"%d":{}}}`, id)
			listen(maxListens + id)
			k.answered("c", maxListens+id, -32603)
		}
		if n := len(k.b.accounts[accountID{"up", "p-key"}].groups); n != 1 {
			t.Errorf("%d groups", n)
		}
	})
}

// lateConn is a Conn whose reader has what arrives only when the test says so.
type lateConn struct {
	*jsonrpc.PipeConn
	on chan struct{} // closed then
}

func (c lateConn) Recv() (*jsonrpc.Message, error) {
	m, err := c.PipeConn.Recv()
	<-c.on
	return m, err
}

// What a server answered just before its session ended is not handled any more.
func TestAnswerAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newPooled(t)
		near, far := jsonrpc.Pipe()
		late := lateConn{near, make(chan struct{})}
		k.b.Open = func(context.Context, string, string, mcp.Era) jsonrpc.Conn { return late }
		k.client("c", "p-key")
		k.say("c", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{STAMP},"notifications":{"resourceSubscriptions":["a"]}}}`)
		hello, _ := far.Recv()
		far.Send(jsonrpc.NewResult(hello.ID, []byte(`{"protocolVersion":"2025-11-25","capabilities":{"resources":{"subscribe":true}},"serverInfo":{"name":"srv"}}`)))
		synctest.Wait()
		k.b.Changed([]string{"up"})
		synctest.Wait()
		close(late.on)
		if end := jsonrpc.EndOf(<-k.sides["c"].end, jsonrpc.CauseLinkLost); end.Cause.Kind != jsonrpc.KindChanged {
			t.Errorf("the stream of the client ended with %v", end.Cause)
		}
		if m, err := far.Recv(); err == nil {
			t.Errorf("the server received %s after the end", k.text(m))
		}
	})
}
