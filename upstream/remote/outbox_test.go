package remote

import (
	"context"
	"log/slog"
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
