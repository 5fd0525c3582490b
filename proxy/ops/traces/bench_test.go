package traces

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// BenchmarkCall measures a traced request and its call, of which a part is recorded.
func BenchmarkCall(b *testing.B) {
	at := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer at.Close()
	for name, part := range map[string]float64{"none": 0, "all": 1} {
		b.Run(name, func(b *testing.B) {
			t := New(Settings{Endpoint: at.URL, Sample: &part})
			t.Start()
			defer t.Shutdown(b.Context())
			call := observe.Request{Session: "abcdefgh", Account: "anonymous", Era: "legacy", Method: "tools/call", Upstream: "files", Tool: "read", Listed: new(atomic.Value)}
			request := observe.Call{Session: "abcdefgh", Upstream: "files", Era: "legacy", Method: "tools/call"}
			end := observe.End{Took: time.Millisecond, Outcome: observe.OK}
			b.ReportAllocs()
			for b.Loop() {
				c := t.Follow(call, observe.Arrival{ID: "7", Transport: "http", Version: "2025-11-25"})
				if c == nil {
					continue
				}
				r := c.Call(request, "read")
				_ = r.Context()
				r.Sent()
				r.End(request, end)
				c.End(call, end)
			}
		})
	}
}
