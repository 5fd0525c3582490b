package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An answer for which there is no connection for a moment is posted again, before later messages. One
// that may have been sent, or that cannot be sent for long, is given up.
func TestOutboxPostsAgain(t *testing.T) {
	unsent := &failure{cause: jsonrpc.CauseConnectFailed, phase: jsonrpc.NotSent}
	for name, tt := range map[string]struct {
		f     *failure
		fails int // times
		want  int // posts of the first message
		after time.Duration
	}{
		"no connection for a moment": {unsent, 3, 4, 700 * time.Millisecond},
		"no connection":              {unsent, 99, 6, 3100 * time.Millisecond},
		"perhaps sent":               {&failure{cause: jsonrpc.CauseConnectFailed, phase: jsonrpc.InFlight}, 99, 1, 0},
		"refused":                    {&failure{cause: jsonrpc.CauseConnectFailed, phase: jsonrpc.NotSent, status: 403}, 99, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, posts := time.Now(), 0
				var second time.Duration
				o := newOutbox(t.Context(), slog.New(slog.DiscardHandler), make(chan struct{}), func(_ context.Context, m *jsonrpc.Message) *failure {
					if m.ID == jsonrpc.IntID(2) {
						second = time.Since(began)
						return nil
					}
					if posts++; posts <= tt.fails {
						return tt.f
					}
					return nil
				})
				go o.run()
				for id := range int64(2) {
					o.put(outgoing{m: jsonrpc.NewResult(jsonrpc.IntID(id+1), nil)})
				}
				o.leave()
				<-o.done
				if posts != tt.want || second != tt.after {
					t.Errorf("%d posts, the next message after %v", posts, second)
				}
			})
		})
	}
}

// An answer to the server, and initialized, are posted again when the server could not take them, since they count
// only once. Other notifications are not.
func TestPostedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		var refused sync.Map
		f.any = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			text, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(text))
			m, _ := jsonrpc.Decode(text)
			if _, again := refused.LoadOrStore(m.Method, true); again || m.IsRequest() {
				return false
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		c := connect(t, f)
		f.await("notifications/initialized", 1)
		c.notify("notifications/progress", `{"progressToken":1,"progress":1}`)
		c.send(jsonrpc.NewResult(jsonrpc.IntID(9), raw("{}")))
		f.await("response 9", 1)
		c.close()
		if slices.Contains(f.all(), "notifications/progress") {
			t.Error("progress was posted again")
		}
	})
}

// D12: a server that takes no notifications still gets calls and cancellations that are sent after many of them.
func TestNotificationsHoldUpNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("notifications/progress", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		c := connect(t, f)
		f.await("notifications/initialized", 1)
		began := time.Now()
		for n := range 500 {
			c.notify("notifications/progress", fmt.Sprintf(`{"progressToken":1,"progress":%d}`, n))
		}
		c.request(1, "tools/call", `{}`)
		f.await("tools/call", 1)
		c.cancel(1)
		f.await("notifications/cancelled", 1)
		if took := time.Since(began); took > talkTimeout {
			t.Errorf("the cancellation came after %v", took)
		}
	})
}

// Cancellations that wait for a server that takes none are given up together, not 32 every ten seconds: their calls
// count as open until then.
func TestWaitingCancellationsOfADeafServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		const calls = 4 * maxCancels
		f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		f.handle("notifications/cancelled", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		c := connect(t, f)
		for id := range int64(calls) {
			c.request(id+1, "tools/call", `{}`)
		}
		f.await("tools/call", calls)
		for id := range int64(calls) {
			c.cancel(id + 1)
		}
		time.Sleep(2 * talkTimeout)
		open := &c.Conn.(*serverSession).calls
		open.mu.Lock()
		defer open.mu.Unlock()
		if n := open.open.Len(); n != 0 {
			t.Errorf("%d cancelled calls are open", n)
		}
	})
}
