package proxy

import (
	"regexp"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

var digests = regexp.MustCompile(`[0-9a-f]{64}`)

// A host announces idleStop only if there is one, and older hosts announce none. It announces which
// servers all clients share.
func TestAnnouncedIdleStop(t *testing.T) {
	for idle, text := range map[time.Duration]string{
		0:                `{"startTimeout":"30s","requestTimeout":"0s","digest":"?"}`,
		15 * time.Minute: `{"startTimeout":"30s","requestTimeout":"0s","digest":"?","idleStop":"15m0s"}`,
	} {
		u := announcementOf(config.Upstream{Name: "a", StartTimeout: 30 * time.Second, IdleStop: idle, Process: config.Process{Command: "x", Spare: 2}}, lists.NoStore())
		if said := digests.ReplaceAllString(string(u.Settings), "?"); said != text {
			t.Errorf("announced %s, want %s", u.Settings, text)
		}
		if route, err := routeFrom(u); err != nil || route.IdleStop != idle {
			t.Errorf("%s: %v, %v", text, route.IdleStop, err)
		}
	}
	for _, u := range []config.Upstream{{Name: "a"}, {Name: "a", Shared: true}, {Name: "a", Remote: config.Remote{URL: "http://127.0.0.1/mcp"}}} {
		if route, err := routeFrom(announcementOf(u, lists.NoStore())); err != nil || route.Shared != (u.Shared || u.URL != "") {
			t.Errorf("%+v became %+v, %v", u, route, err)
		}
	}
	for _, text := range []string{`{"idleStop":"-1s"}`, `{"idleStop":"soon"}`, `{"idleStop":5}`} {
		if _, err := routeFrom(link.Upstream{Name: "a", Settings: []byte(text)}); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// The number of spares does not matter to servers that run; when they rest does.
func TestRunsOn(t *testing.T) {
	old := config.Upstream{Name: "a", Process: config.Process{Command: "x", Spare: 1}}
	for name, row := range map[string]struct {
		change func(u *config.Upstream)
		want   bool
	}{
		"nothing":  {func(*config.Upstream) {}, true},
		"spare":    {func(u *config.Upstream) { u.Spare = 3 }, true},
		"idleStop": {func(u *config.Upstream) { u.IdleStop = time.Minute }, false},
		"args":     {func(u *config.Upstream) { u.Args = []string{"y"} }, false},
	} {
		now := old
		if row.change(&now); runsOn(old, now) != row.want {
			t.Errorf("%s: runs on %v", name, !row.want)
		}
	}
}

// A required server that rests is ready.
func TestRequiredRests(t *testing.T) {
	r := &required{host: &upstream.Host{}}
	if why := r.missing(config.Upstream{Name: "a", Shared: true}); why != "does not run" {
		t.Errorf("without idleStop: %q", why)
	}
	if why := r.missing(config.Upstream{Name: "a", Shared: true, IdleStop: time.Minute}); why != "" {
		t.Errorf("with idleStop: %q", why)
	}
}
