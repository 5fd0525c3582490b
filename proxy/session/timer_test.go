package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// asks makes the upstream ask the client something for one of its requests, 0 for an unnamed one,
// and returns when the client has the server request.
func (w *world) asks(upstream string, id int, related int64) {
	w.t.Helper()
	m := decode(w.t, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create"}`, id))
	if related > 0 {
		m.Related = jsonrpc.IntID(related)
	}
	w.upstream(upstream).conn.Send(m)
	w.client.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create"}`, id))
}

// wantTimeouts checks that exactly these calls have timed out, in any order.
func (w *world) wantTimeouts(ids ...int) {
	w.t.Helper()
	var want []string
	for _, id := range ids {
		want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, id, jsonrpc.TimedOut("files").Raw()))
	}
	if got := w.client.take(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		w.t.Errorf("got %q, want %q", got, want)
	}
}

// inTime runs a world with calls from 1 on in flight at an upstream with a timeout of one second.
// Their ids there are larger by one.
func inTime(t *testing.T, calls int, test func(w *world)) {
	inWorld(t, &Router{Upstreams: []Upstream{{Name: "files", RequestTimeout: time.Second}}}, nil, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, calls)
		test(w)
	})
}

// TestD11_WhileTheClientIsAsked: a user may think for any time. The timeout restarts with the
// answer.
func TestD11_WhileTheClientIsAsked(t *testing.T) {
	inTime(t, 2, func(w *world) {
		time.Sleep(900 * time.Millisecond)
		w.asks("files", 1, 2)
		w.asks("files", 2, 2)
		time.Sleep(time.Second)
		w.wantTimeouts(2) // nothing was asked for it
		w.upstream("files").say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}`)
		time.Sleep(time.Hour)
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		time.Sleep(time.Hour)
		w.client.want()
		w.client.say(`{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no"}}`)
		time.Sleep(999 * time.Millisecond)
		w.client.want()
		time.Sleep(time.Millisecond)
		w.wantTimeouts(1)
	})
}

// A server request that names no request may be for any earlier one, but not for later ones.
func TestD11_WhileTheClientIsAskedForAny(t *testing.T) {
	inTime(t, 2, func(w *world) {
		w.asks("files", 1, 0)
		w.client.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo"}}`)
		time.Sleep(time.Second)
		w.wantTimeouts(3)
		time.Sleep(time.Hour)
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		w.client.want()
		time.Sleep(time.Second)
		w.wantTimeouts(1, 2)
	})
}

// A withdrawn server request no longer suspends timeouts, nor does one for an unknown request.
func TestD11_QuestionWithdrawn(t *testing.T) {
	inTime(t, 1, func(w *world) {
		w.asks("files", 1, 2)
		time.Sleep(time.Hour)
		w.upstream("files").say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q1"}}`)
		w.client.want(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		w.asks("files", 2, 77)
		time.Sleep(time.Second)
		w.wantTimeouts(1)
	})
}

// A call that was answered, or has ended, while its server request was open does not time out.
func TestD11_AnsweredWhileTheClientIsAsked(t *testing.T) {
	inTime(t, 2, func(w *world) {
		w.asks("files", 1, 2)
		w.asks("files", 2, 3)
		w.upstream("files").say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		time.Sleep(time.Hour)
		w.client.want()
		w.die("files", "exit status 1", true)
		if got := strings.Join(w.client.take(), "\n"); !strings.Contains(got, cc(2, -32603, "files", "exit status 1", "in_flight")) {
			t.Error(got)
		}
		time.Sleep(time.Hour)
		w.client.want()
	})
}

// D03, D11: after a half-close, a request whose server request has failed is not also cancelled
// when it times out: one stimulus. Others are cancelled.
func TestD03_TimeoutAfterHalfClose(t *testing.T) {
	inTime(t, 2, func(w *world) {
		w.asks("files", 1, 2)
		w.upstream("files").take()
		w.client.conn.CloseWrite()
		time.Sleep(time.Second)
		w.wantTimeouts(1, 2)
		got := w.upstream("files").take()
		if len(got) != 2 || !strings.Contains(got[0], `"id":"q1","error"`) || !strings.Contains(got[1], `"requestId":3,`) {
			t.Errorf("the upstream got %q", got)
		}
	})
}
