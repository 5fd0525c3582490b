package proxy_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A farHost is a host elsewhere with one upstream.
type farHost struct {
	*proxy.Host
	server *naive
	url    string
	events events
	log    journal
	serve  func()
}

// events are those that a proxy or a host has reported.
type events struct {
	mu  sync.Mutex
	all []proxy.Event
}

func (e *events) hooks() proxy.Hooks {
	return proxy.Hooks{Happened: func(one proxy.Event) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all = append(e.all, one)
	}}
}

// ids are those of one kind.
func (e *events) ids(kind proxy.EventKind) (ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all {
		if one.Kind == kind {
			ids = append(ids, one.ID)
		}
	}
	return ids
}

// newFarHost returns a host that is unreachable before its serve is called.
func newFarHost(t *testing.T, upstream string, prefix *string) *farHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "far") // with a name that leaves room for that of a socket
	if err != nil {
		t.Fatal(err)
	}
	f := &farHost{server: newNaive(t), url: "unix://" + dir + "/link"}
	f.Host, err = proxy.NewHost(&config.Config{Upstreams: []config.Upstream{{Name: upstream, Prefix: prefix, Remote: config.Remote{URL: f.server.URL}, Era: "legacy"}}},
		config.HostLink{Listen: f.url}, proxy.Options{Hooks: f.events.hooks(), Log: logTo(&f.log)})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	f.serve = func() {
		if _, err := f.Listen(); err != nil {
			t.Fatal(err)
		}
		serving.Go(func() { f.Serve() })
	}
	t.Cleanup(func() {
		f.Close()
		serving.Wait()
		os.RemoveAll(dir)
	})
	return f
}

// newCaller returns a client with a session of the legacy era. url is that of /mcp.
func newCaller(t *testing.T, url, path string) *caller {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return (&caller{t: t, base: strings.TrimSuffix(url, "/mcp"), path: path, client: &http.Client{Transport: transport}}).initialize()
}

// A host has no name that belongs to another: not by announcing it, not by a prefix, and not
// by being there first. What clients get, and what operators read at both ends, depends on
// the configuration alone.
func TestHostTakesNoName(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		upstream, prefix string   // of the host that wants more than its due; "-": no prefix of its own
		upstreams        []string // of its link, which stands first
		victims          []string // of the other link
		wins             bool     // by the order of the configuration
		why              string
	}{
		"another's name":           {"files", "-", []string{"evil*"}, nil, false, "links.one.upstreams does not allow the name files"},
		"another's prefix":         {"evil", "files", []string{"evil*"}, nil, false, "links.one.upstreams does not allow the prefix files"},
		"all names":                {"evil", "", []string{"evil*"}, nil, false, "links.one.upstreams does not allow names without a prefix"},
		"a reserved name":          {"server-card", "-", nil, nil, false, "the name server-card is reserved"},
		"order":                    {"files", "-", nil, nil, true, "the name files is that of links.one"},
		"order, by prefix":         {"evil", "files", nil, nil, true, "the name files is that of links.one"},
		"order, by a shorter name": {"files_", "-", nil, nil, true, "the name files collides with files_ of links.one"},
		"order, by a longer name":  {"evil", "files__x", nil, nil, true, "the name files collides with files__x of links.one"},
		"order, allowed":           {"files", "-", []string{"*"}, []string{"files"}, true, "the name files is that of links.one"},
	} {
		for _, first := range []string{"one", "two"} {
			t.Run(name+", "+first+" first", func(t *testing.T) {
				var prefix *string
				if tt.prefix != "-" {
					prefix = &tt.prefix
				}
				one, two := newFarHost(t, tt.upstream, prefix), newFarHost(t, "files", nil)
				var seen events
				var log journal
				p, url := serveWith(t, config.Config{Links: []config.Link{
					{Name: "one", Key: "links.one", Dial: one.url, Heartbeat: time.Minute, Upstreams: tt.upstreams},
					{Name: "two", Key: "links.two", Dial: two.url, Heartbeat: time.Minute, Upstreams: tt.victims},
				}}, proxy.Options{Hooks: seen.hooks(), Log: logTo(&log)})
				up := func(i int) func() bool { return func() bool { return p.Snapshot().Links[i].Up } }
				if first == "one" {
					one.serve()
					eventually(t, "link", up(0))
					two.serve()
				} else {
					two.serve()
					eventually(t, "link", up(1))
					one.serve()
				}
				eventually(t, "links", func() bool { return up(0)() && up(1)() })

				loser, link := one, 0
				if tt.wins {
					loser, link = two, 1
				}
				eventually(t, "event at the host", func() bool { return len(loser.events.ids(proxy.NotOffered)) > 0 })
				rejected := p.Snapshot().Links[link].Rejected
				if len(rejected) != 1 || rejected[0].Why != tt.why {
					t.Fatalf("%+v", rejected)
				}
				id := []string{rejected[0].Event}
				if !slices.Equal(seen.ids(proxy.NotOffered), id) || !slices.Equal(loser.events.ids(proxy.NotOffered), id) {
					t.Errorf("events %v here, %v there, want %v", seen.ids(proxy.NotOffered), loser.events.ids(proxy.NotOffered), id)
				}
				if now := loser.Snapshot().Rejected; len(now) != 1 || now[0].Event != id[0] || strings.Contains(now[0].Why, "links.") {
					t.Errorf("the host's status: %+v", now)
				}
				for _, text := range []string{log.String(), loser.log.String()} {
					if strings.Count(text, id[0]) != 1 {
						t.Errorf("want one line with %s:\n%s", id[0], text)
					}
				}
				c := newCaller(t, url, "/mcp")
				c.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"files__echo","arguments":{}}}`)
				if !tt.wins && (one.server.saw("tools/call") > 0 || two.server.saw("tools/call") != 1) {
					t.Error("the call went to the other host")
				}
				if tt.wins && two.server.saw("tools/call") > 0 {
					t.Error("the call went to the host that comes second in the configuration")
				}
			})
		}
	}
}

// A link keeps the names in its upstreams for its host even while the host is away. Else a restart
// would give them to the first host that comes up.
func TestNamesAreKeptForALink(t *testing.T) {
	t.Parallel()
	one, two := newFarHost(t, "files", nil), newFarHost(t, "files", nil)
	p, url := serveWith(t, config.Config{Links: []config.Link{
		{Name: "one", Key: "links.one", Dial: one.url, Heartbeat: time.Minute, Upstreams: []string{"fil*"}},
		{Name: "two", Key: "links.two", Dial: two.url, Heartbeat: time.Minute},
	}}, proxy.Options{})
	two.serve()
	eventually(t, "link", func() bool { return p.Snapshot().Links[1].Up })
	if now := p.Snapshot().Links[1]; len(now.Upstreams) > 0 || len(now.Rejected) != 1 || now.Rejected[0].Why != "the name files is kept for links.one, by its upstreams" {
		t.Errorf("%+v", now)
	}
	one.serve()
	eventually(t, "link", func() bool { return p.Snapshot().Links[0].Up })
	c := newCaller(t, url, "/mcp")
	c.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"files__echo","arguments":{}}}`)
	if one.server.saw("tools/call") != 1 || two.server.saw("") > 0 {
		t.Error("the call went to the other host")
	}
}

// The first link of the configuration comes up last: clients that use the name at another host until
// then are notified, and their next calls go where the configuration says, on any stream. Requests
// in flight at the other host end.
func TestLateLinkTakesItsName(t *testing.T) {
	t.Parallel()
	one, two := newFarHost(t, "files", nil), newFarHost(t, "files", nil)
	p, url := serveWith(t, config.Config{Links: []config.Link{
		{Name: "one", Key: "links.one", Dial: one.url, Heartbeat: time.Minute},
		{Name: "two", Key: "links.two", Dial: two.url, Heartbeat: time.Minute},
	}}, proxy.Options{})
	two.serve()
	eventually(t, "link", func() bool { return p.Snapshot().Links[1].Up })
	all, alone := newCaller(t, url, "/mcp"), newCaller(t, url, "/mcp/files")
	call := func(c *caller, id int, tool string) string {
		_, body := c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, tool))
		return body
	}
	call(all, 2, "files__echo")
	call(alone, 2, "echo")
	if two.server.saw("tools/call") != 2 {
		t.Error("the calls went elsewhere")
	}
	all.say(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	news := all.begin("GET", "/mcp", "", all.headers()...)
	lost := all.begin("POST", "/mcp", `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"files__hang","arguments":{}}}`, all.headers()...)
	two.server.awaits(1, `"hang"`)

	one.serve()
	lost.await(`"cause":"upstream changed","phase":"in_flight"`)
	news.await("notifications/tools/list_changed")
	call(all, 5, "files__echo")
	call(alone, 5, "echo")
	if n := one.server.saw("tools/call"); n != 2 {
		t.Errorf("%d of 2 calls went to the host that the configuration names first", n)
	}
	if now := two.Snapshot().Rejected; len(now) != 1 {
		t.Errorf("%+v", now)
	}
}

// While a host has not come yet, no other server gets calls by its names, though it lists such
// a tool as its own.
func TestNamesOfAnAbsentHost(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	mcp.AddTool(server.mcp, &mcp.Tool{Name: "files__greet"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		t.Error("the call went to another server")
		return nil, nil, nil
	})
	_, url := serve(t, config.Config{
		Upstreams: []config.Upstream{{Name: "evil", Key: "upstreams.evil", Remote: config.Remote{URL: server.URL}, Era: "legacy"}},
		Links:     []config.Link{{Name: "tools", Key: "links.tools", Dial: "unix:///nobody-listens-here", Heartbeat: time.Minute}},
	}, proxy.Hooks{})
	c := newCaller(t, url, "/mcp")
	c.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	_, body := c.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"files__greet","arguments":{}}}`)
	if !strings.Contains(body, `"reason":"connection_closed"`) {
		t.Error("the call got", body)
	}
}
