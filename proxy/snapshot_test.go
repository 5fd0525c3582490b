package proxy

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// The hosting knows more reasons for a wait than the session.
func TestWaitsAreRefined(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	w := waitReasons{
		asking: map[string]bool{"asks": true},
		servers: map[string][]upstream.Status{
			"starts": {{Key: "another-key", Era: mcp.Legacy, State: upstream.StateRunning}, {Key: "k3v9x2ma-and-more", Era: mcp.Legacy, State: upstream.StateStarting}},
			"shared": {{Key: "shared", Era: mcp.Modern, State: upstream.StateStarting}},
			"failed": {{Key: "shared", Era: mcp.Legacy, State: upstream.StateWaiting, Next: soon, Cause: "exit status 3"}},
			"runs":   {{Key: "k3v9x2ma", Era: mcp.Legacy, State: upstream.StateRunning}},
		},
	}
	for _, tt := range []struct {
		upstream  string
		sees      observe.Wait
		want      observe.Wait
		detailHas string
	}{
		{"runs", observe.ForUpstream, observe.ForUpstream, ""},
		{"runs", observe.ForLink, observe.ForStart, ""}, // to itself a proxy has no link that anybody waits for
		{"runs", observe.ForClient, observe.ForClient, ""},
		{"starts", observe.ForUpstream, observe.ForStart, ""},
		{"shared", observe.ForUpstream, observe.ForStart, ""},
		{"failed", observe.ForStart, observe.ForBackOff, "after exit status 3"},
		{"asks", observe.ForUpstream, observe.ForLogin, "login"},
		{"asks", observe.ForRoom, observe.ForRoom, ""},
		{"", observe.ForProxy, observe.ForProxy, ""},
		{"unheard-of", observe.ForStart, observe.ForStart, ""},
	} {
		c := observe.OpenRequest{Session: "k3v9x2ma", Era: string(mcp.Legacy), Upstream: tt.upstream, WaitsFor: tt.sees}
		if w.refine(&c); c.WaitsFor != tt.want || !strings.Contains(c.Detail, tt.detailHas) {
			t.Errorf("%s, whose session sees %s: %s (%s)", tt.upstream, tt.sees, c.WaitsFor, c.Detail)
		}
	}
}

// The youngest calls to a server that has as many as it may wait for room.
func TestWaitsForOthers(t *testing.T) {
	w := waitReasons{queued: map[string]int{"docs": 2}}
	var calls []observe.OpenRequest
	for _, at := range []string{"docs", "docs", "files", "docs", "client", "docs"} {
		c := observe.OpenRequest{Upstream: at, WaitsFor: observe.ForUpstream}
		if at == "client" {
			c.Upstream, c.WaitsFor = "docs", observe.ForClient
		}
		calls = append(calls, c)
	}
	w.queue(calls)
	var got []string
	for _, c := range calls {
		got = append(got, string(c.WaitsFor))
	}
	if text := strings.Join(got, " "); text != "upstream upstream upstream room client room" {
		t.Error(text)
	}
}
