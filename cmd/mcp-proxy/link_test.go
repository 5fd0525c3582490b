//go:build unix

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// overLinks runs a test with the upstreams behind each kind of link; for pairs of eras that
// are not both legacy, behind one kind.
func overLinks(t *testing.T, l layout, test func(*site), except ...string) {
	acrossEras(t, layout{place: "TCP link", level: l.level}, test, except...)
	for _, l.place = range places {
		if l.linked() {
			t.Run(l.place, func(t *testing.T) { test(newSite(t, l)) })
		}
	}
}

// list requests the tools and the resources, so that the client is notified of changes, and opens a
// listen if its era needs one.
func (c *client) list() {
	c.t.Helper()
	for _, kind := range []string{"tools", "resources"} {
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"%s/list"}`, kind, kind))
		if got := c.await(kind); strings.HasPrefix(got, "!") {
			c.t.Fatal(kind, got)
		}
		c.mu.Lock()
		delete(c.answers, strconv.Quote(kind))
		c.mu.Unlock()
	}
	if _, modern := c.wire.(*modernWire); modern {
		c.listen(9000, `{"toolsListChanged":true,"resourcesListChanged":true}`)
	}
}

// hearsOfReturn checks that c gets one notification of each kind when a link is back.
func (c *client) hearsOfReturn() {
	c.t.Helper()
	eventually(c.t, "list_changed", func() bool {
		return c.heardOf("tools/list_changed") > 0 && c.heardOf("resources/list_changed") > 0
	})
	c.works(5000, "b__echo")
	time.Sleep(2 * 50 * time.Millisecond) // others would come within the time for which they are held back
	if n := c.heardOf("list_changed"); n != 2 {
		c.t.Error("told of changes:", c.told)
	}
}

// D13: the carrier is cut with calls on both upstreams; the host keeps running.
func TestD13_CutLink(t *testing.T) {
	t.Parallel()
	overLinks(t, layout{}, func(s *site) {
		for round, wire := range []string{"stdio", "WebSocket"} {
			c := s.connectOver(wire)
			c.list()
			before := countPart(s.noted(), " end")
			for i := range 3 {
				c.call(i, "a__hang")
				c.call(10+i, "b__hang")
			}
			s.awaitNoted("a", `"hang"`, 3*(round+1))
			s.awaitNoted("b", `"hang"`, 3*(round+1))
			s.far.cut(false)
			for i := range 3 {
				for id, up := range map[int]string{i: "a", 10 + i: "b"} {
					if got := c.await(strconv.Itoa(id)); got != lost(up, "link lost") {
						s.t.Errorf("the call got %s", got)
					}
				}
			}
			if s.layout.pair() == "legacy to legacy" { // the link's end is its client's end
				s.awaitNoted("a", " end", before+1)
			} else {
				s.awaitNoted("a", "notifications/cancelled", 3*(round+1))
			}
			c.works(100, "a__echo")
			c.hearsOfReturn()
			if len(c.twice) > 0 {
				s.t.Error("answered twice:", c.twice)
			}
			c.vanish()
		}
	})
}

// D14: a link is lost without traffic. Clients notice at the next call.
func TestD14_IdleLinkLost(t *testing.T) {
	t.Parallel()
	overLinks(t, layout{level: slog.LevelDebug}, func(s *site) {
		c := s.connect()
		c.list()
		c.get(1, "a__echo")
		s.far.cut(true)
		if s.layout.pair() == "legacy to legacy" {
			s.awaitNoted("a", " end", 1)
		}
		eventually(s.t, "the loss", func() bool { return s.log.count(`msg="stream ended"`) == 2 })
		if n := c.count(func(string) bool { return true }); n != 2 || c.heardOf("list_changed") > 0 {
			s.t.Error("the client heard", c.answers, c.told)
		}
		began := time.Now()
		want := closedBy("a", jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}, jsonrpc.NotSent)
		if got := c.get(2, "a__echo"); got != want || time.Since(began) > 10*time.Second {
			s.t.Errorf("after %v the call got %s", time.Since(began), got)
		}
		s.far.up()
		c.hearsOfReturn()
		c.works(100, "a__echo")
	}, "legacy to modern: as the others", "modern to legacy: as the others")
}

// D14: a link is silent: no byte comes or goes.
func TestD14_SilentLink(t *testing.T) {
	t.Parallel()
	s := newSite(t, layout{place: "TCP link", beat: 170 * time.Millisecond})
	c := s.connect()
	c.call(1, "a__hang")
	s.awaitNoted("a", `"hang"`, 1)
	s.far.freeze()
	if got := c.await("1"); got != lost("a", "link lost") {
		t.Error("the call got", got)
	}
	s.awaitNoted("a", " end", 1)
	c.works(10, "a__echo")
}

// serversEnded reports whether all servers in the record of an upstream have ended.
func (s *site) serversEnded(upstream string) bool {
	return !slices.ContainsFunc(s.notedBy(upstream), func(line string) bool {
		pid, err := strconv.Atoi(strings.Fields(line)[0])
		return err != nil || !ended(pid)
	})
}

// hostProgram starts a host as a process, with n upstreams, at a socket.
func hostProgram(t *testing.T, socket, record string, n int) *program {
	t.Helper()
	config := socket + ".yaml"
	text := "upstreams:\n"
	for i := range n {
		text += fmt.Sprintf("  up%d: {command: fakeserver, start: eager, env: {FAKE_LOG: %q}}\n", i, record)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, nil, "host", "--listen", "unix://"+socket, "--config", config)
	if got := p.hear(); got != "listening on unix://"+socket {
		t.Fatal(got)
	}
	return p
}

// behindHost returns a site whose upstreams are behind a host at a socket.
func behindHost(t *testing.T) (s *site, socket string) {
	t.Helper()
	s = emptySite(t)
	return s, s.dir + "/link"
}

// D13: a host with four upstreams and six calls is killed, and another one starts.
func TestD13_KilledHost(t *testing.T) {
	t.Parallel()
	s, socket := behindHost(t)
	host := hostProgram(t, socket, s.record("a"), 4)
	s.run("links: {far: {dial: unix://" + socket + "}}\n")
	eventually(t, "the link", func() bool { return s.linkedTo("up3") })
	var clients []*client
	for range 2 {
		c := s.connect()
		c.list()
		clients = append(clients, c)
	}
	c := clients[0]
	for i := range 6 {
		c.call(i, fmt.Sprintf("up%d__hang", i%4))
	}
	s.awaitNoted("a", `"hang"`, 6)
	host.cmd.Process.Kill()
	for i := range 6 {
		if got := c.await(strconv.Itoa(i)); got != lost(fmt.Sprintf("up%d", i%4), "link lost") {
			t.Error("the call got", got)
		}
	}
	eventually(t, "the end of its servers", func() bool { return s.serversEnded("a") })
	host.cmd.Wait()
	hostProgram(t, socket, s.record("a"), 4)
	for _, c := range clients {
		eventually(t, "list_changed", func() bool { return c.heardOf("tools/list_changed") > 0 && c.heardOf("resources/list_changed") > 0 })
		c.works(100, "up2__echo")
	}
	time.Sleep(100 * time.Millisecond)
	for _, c := range clients {
		if c.heardOf("list_changed") != 2 || len(c.twice) > 0 {
			t.Errorf("told of changes: %v; answered twice: %v", c.told, c.twice)
		}
	}
	if n := s.log.count("link lost"); n != 1 {
		t.Errorf("want one warning of the link:\n%s", s.log)
	}
}

// D13: a proxy is killed. Its host ends the servers that it ran for the proxy, and serves the next one.
func TestD13_KilledProxy(t *testing.T) {
	s, socket := behindHost(t)
	host := hostProgram(t, socket, s.record("a"), 2)
	config := s.write("mcp-proxy.yaml", "links: {far: {dial: unix://"+socket+"}}\n")
	for i := range 2 {
		p := startProgram(t, nil, "stdio", "--config", config)
		p.say(initialize)
		p.hear()
		p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up0__hang"}}`)
		p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"up1__echo"}}`)
		if got := p.hear(); !strings.Contains(got, "structuredContent") {
			t.Error("got", got)
		}
		s.awaitNoted("a", `"hang"`, i+1)
		p.cmd.Process.Kill()
		s.awaitNoted("a", " end", 2*(i+1))
		s.awaitNoted("a", "notifications/cancelled", i+1)
	}
	host.cmd.Process.Signal(syscall.SIGTERM)
	if err := host.cmd.Wait(); err != nil {
		t.Errorf("the host: %v\n%s", err, host.log)
	}
}

// D13: a link is lost for good. Servers that its host keeps for one connection end with the
// link; those for principals wait for the proxy to dial again.
func TestD13_KeptForAProxyThatIsGone(t *testing.T) {
	t.Parallel()
	s := newSite(t, layout{place: "unix link", client: mcp.Modern, level: slog.LevelDebug})
	var pids []int
	for i, wire := range []string{"WebSocket", "HTTP"} {
		s.connectOver(wire).get(i, "a__echo")
		pids = append(pids, s.server(`"echo"`))
	}
	s.far.cut(true)
	eventually(t, "the end of what the WebSocket had", func() bool { return gone(pids[0]) })
	mu := inside[sync.Mutex](s.far.host, "half", "proxies", "mu")
	known := inside[map[string]*struct{ links int }](s.far.host, "half", "proxies", "byID")
	eventually(t, "the end of the link", func() bool { // which comes when all that it had has ended
		mu.Lock()
		defer mu.Unlock()
		for _, p := range *known {
			return p.links == 0
		}
		return false
	})
	mu.Lock()
	*inside[time.Duration](s.far.host, "half", "proxies", "keptFor") = 100 * time.Millisecond // from now on
	mu.Unlock()
	s.far.up()
	eventually(t, "the link", func() bool { return s.log.count("link up") == 4 }) // both ends log both links
	if gone(pids[1]) {
		t.Error("what the principal has is gone, too")
	}
	s.far.cut(true)
	eventually(t, "no process", s.settled)
}

// Two links announce a name, and one of them one that is configured here.
func TestNameClash(t *testing.T) {
	s := emptySite(t)
	text := fmt.Sprintf("upstreams:\n  x: {command: fakeserver, env: {FAKE_LOG: %q}}\n", s.record("x"))
	links := "links:\n"
	for _, name := range []string{"one", "two"} {
		hosts := fmt.Sprintf("upstreams:\n  x: {command: fakeserver}\n  y: {command: fakeserver, env: {FAKE_LOG: %q}}\n  %s: {command: fakeserver}\n", s.record(name), name)
		far := newFarHost(t, s.load(name+".yaml", hosts, true), 0, &lines{}, s.events)
		links += "  " + name + ": {dial: " + far.listen("unix://"+s.dir+"/"+name) + "}\n"
	}
	s.run(text + links)
	eventually(t, "both links", func() bool { return s.linkedTo("one") && s.linkedTo("two") })
	c := s.connect()
	for i, tool := range []string{"x__echo", "y__echo", "one__echo", "two__echo"} {
		if got := c.get(i, tool); strings.HasPrefix(got, "!") {
			t.Errorf("%s: %s", tool, got)
		}
	}
	if countPart(s.notedBy("x"), "tools/call") != 1 || countPart(s.notedBy("one"), "tools/call")+countPart(s.notedBy("two"), "tools/call") != 1 {
		t.Error("the calls went elsewhere")
	}
	if s.log.count(`"the name x is that of upstreams.x"`) != 2 {
		t.Errorf("log:\n%s", s.log)
	}
	for _, want := range []string{
		`link=one upstream=x event=`,
		`link=two upstream=x event=`,
		`link=two upstream=y event=`,
		`"the name y is that of links.one"`,
	} {
		if s.log.count(want) != 1 {
			t.Errorf("want once %q:\n%s", want, s.log)
		}
	}
}

// A host comes back without an upstream that clients have used.
func TestWithdrawnUpstream(t *testing.T) {
	t.Parallel()
	s, socket := behindHost(t)
	host := hostProgram(t, socket, s.record("a"), 3)
	s.run("links: {far: {dial: unix://" + socket + "}}\n")
	eventually(t, "the link", func() bool { return s.linkedTo("up2") })
	c := s.connect()
	c.list()
	c.get(1, "up2__echo")
	host.cmd.Process.Signal(syscall.SIGTERM)
	if err := host.cmd.Wait(); err != nil {
		t.Errorf("the host: %v\n%s", err, host.log)
	}
	hostProgram(t, socket, s.record("a"), 2)
	eventually(t, "the withdrawal", func() bool { return !s.linkedTo("up2") })
	c.works(10, "up1__echo")
	if got := c.get(2, "up2__echo"); !strings.HasPrefix(got, `!{"code":-32602,"message":"Unknown tool`) {
		t.Error("its tool got", got)
	}
	resp, err := http.Post(s.url+"/mcp/up2", "application/json", strings.NewReader(initialize))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusNotAcceptable {
		t.Error("its endpoint:", resp.Status)
	}
}

// A proxy asks for an upstream that its host does not have. The others keep working.
func TestUnknownUpstream(t *testing.T) {
	t.Parallel()
	overLinks(t, layout{}, func(s *site) {
		c := s.connect()
		c.call(1, "a__slow")
		s.awaitNoted("a", `"slow"`, 1)
		_, err := inside[link.Client](s.proxy, "links", "all", "0", "client").Open(s.t.Context(), link.Hello{Upstream: "none", Key: "k", Era: string(mcp.Legacy)})
		if end, ok := errors.AsType[*jsonrpc.ClosedError](err); !ok || end.Delivered {
			s.t.Errorf("got %v", err)
		}
		c.get(2, "a__release")
		if got := c.await("1"); got != fakeDone {
			s.t.Error("the call got", got)
		}
		if s.log.count("hello refused") != 1 || s.log.count("link lost") > 0 {
			s.t.Errorf("log:\n%s", s.log)
		}
	})
}

// A host with a wrong token is refused at /link, and logged once.
func TestWrongToken(t *testing.T) {
	s := newSite(t, layout{place: "WebSocket link"})
	c := s.connect()
	for _, tt := range []struct {
		host, token string
		want        int
		asks        string
	}{
		{"", "Bearer wrong", http.StatusUnauthorized, `Bearer realm="mcp-proxy link", error="invalid_token"`},
		{"", "Bearer ", http.StatusUnauthorized, `Bearer realm="mcp-proxy link"`},
		{"", "", http.StatusUnauthorized, `Bearer realm="mcp-proxy link"`},
		{"evil.example", "Bearer secret", http.StatusForbidden, ""},
	} {
		req, _ := http.NewRequest(http.MethodGet, s.url+"/link", nil)
		req.Host = tt.host
		for name, value := range map[string]string{"Authorization": tt.token, "Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==", "Sec-WebSocket-Protocol": "mcp-proxy-link"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != tt.want || got != tt.asks {
			t.Errorf("%q at %q: %s, %s, want %d, %s", tt.token, tt.host, resp.Status, got, tt.want, tt.asks)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if s.log.count("link refused") != 4 || s.log.count("link lost") != 0 {
		t.Errorf("log:\n%s", s.log)
	}
	c.get(1, "a__echo")
}

// D15: a host that gets a signal to stop lets requests in flight finish and its servers end, and
// exits as soon as they have. A second signal kills a server that does not
// end.
func TestD15_HostStops(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		s, socket := behindHost(t)
		if stubborn {
			t.Setenv("FAKE_STUBBORN", "1")
		}
		host := startProgram(t, []string{"FAKE_LOG=" + s.record("a")}, "host", "--listen", "unix://"+socket, "--", "fakeserver")
		s.run("links: {far: {dial: unix://" + socket + "}}\n")
		eventually(t, "the link", func() bool { return s.linkedTo("main") })
		c := s.connect()
		c.call(1, "ask")
		eventually(t, "the question", func() bool { return c.questions() == 1 })
		host.cmd.Process.Signal(syscall.SIGTERM)
		eventually(t, "the shutdown", func() bool { return host.log.count("shutting down") == 1 })
		c.accept()
		if got := c.await("1"); got != `{"action":"accept"}` {
			t.Error("the call that could finish got", got)
		}
		s.awaitNoted("a", " end", 1)
		end := host.cmd.Wait
		if stubborn {
			end = host.insist
		}
		err := end()
		if forced := err != nil; forced != stubborn {
			t.Errorf("stubborn %v: exit %v\n%s", stubborn, err, host.log)
		}
		eventually(t, "the end of its server", func() bool { return s.serversEnded("a") })
	}
}
