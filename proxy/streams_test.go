package proxy

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// The bound of streams follows from the configuration, also after a change, when the streams of
// removed upstreams are still ending.
func TestStreamsFollowConfig(t *testing.T) {
	limits := config.Limits{Sessions: 3000}
	p, err := New(&config.Config{Limits: limits, Upstreams: []config.Upstream{{Name: "a", Process: config.Process{Command: "a"}}, {Name: "b", Process: config.Process{Command: "b"}}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := p.local.Streams(); got != 3000*2*2 {
		t.Errorf("%d streams for 3000 sessions, 2 upstreams and 2 eras", got)
	}
	err = p.Reload(&config.Config{Upstreams: []config.Upstream{{Name: "a", Process: config.Process{Command: "other"}}, {Name: "c", Process: config.Process{Command: "c"}}, {Name: "d", Process: config.Process{Command: "d"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.local.Streams(); got != 3000*(3+2)*2 {
		t.Errorf("%d streams for 3000 sessions and 2 eras, when 1 upstream has changed, 1 has gone and 2 have come", got)
	}
	for sessions, want := range map[int]int{256: 4096, 3000: 2 * 3000 * 2} {
		h, err := NewHost(&config.Config{Limits: config.Limits{Sessions: sessions}, Upstreams: []config.Upstream{{Name: "a", Process: config.Process{Command: "a"}}}}, config.HostLink{}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if got := h.half.server.Streams; got < want {
			t.Errorf("a host takes %d streams for %d sessions, want at least %d", got, sessions, want)
		}
	}
}
