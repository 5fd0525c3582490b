package frontend

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestPassed: each request that is passed on is reported once, with its end.
func TestPassed(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	c, _ := f["a"].connectManual("2025-11-25")
	c = c.through(f["b"])
	says := func(all ...string) {
		t.Helper()
		conntest.Eventually(t, fmt.Sprint(all), func() bool {
			f["b"].mu.Lock()
			defer f["b"].mu.Unlock()
			return slices.Equal(f["b"].passed, all)
		})
	}
	wantStatus(t, c.post(`{"jsonrpc":"2.0","id":7,"result":{}}`), http.StatusAccepted)
	says("POST ok")
	ev := newEvents(t, c.post(fmt.Sprintf(call, 2)))
	ev.one()
	ev.close()
	says("POST ok", "POST cancelled")
	stream := newEvents(t, c.get())
	f["a"].cut()
	says("POST ok", "POST cancelled", "GET closed")
	stream.close()
	f["b"].sees("a", Away)
	wantStatus(t, c.delete(), http.StatusServiceUnavailable)
	f["b"].sees("a", Nowhere)
	wantStatus(t, c.delete(), http.StatusNotFound)
	says("POST ok", "POST cancelled", "GET closed", "DELETE closed")
}
