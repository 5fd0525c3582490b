//go:build unix

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/upstream/eras"
)

// A site is a whole proxy in this process, with real servers behind it and a
// real socket in front of it.
type site struct {
	t        *testing.T
	layout   layout
	dir      string // a short path, since it contains sockets
	proxy    *proxy.Proxy
	cfg      *config.Config // of proxy
	url      string         // http://HOST:PORT
	log      *lines         // the host's, too, if there is one
	resident int            // number of processes that do not end with a client
	far      *farHost
	events   *book // of the proxy, and of the host
}

// A layout says where the upstreams a and b of a site are, their settings, and which era clients
// and servers speak.
type layout struct {
	client mcp.Era // of clients whose wire has none in its name; "" is legacy
	era    mcp.Era // of the servers; "" is legacy
	pin    bool    // the configuration has the era
	core   bool    // for everywhere: test each place with each pair of eras

	place string        // one of places; "" is local
	env   string        // of the servers of a, as NAME: value, …
	lazy  bool          // servers start when they are needed, not with their clients
	a     string        // settings of a, each with a comma before it
	top   string        // lines of the configuration
	beat  time.Duration // of the link; zero is its default

	idle, parkFor time.Duration // of the bridges; zero is their default

	level slog.Level // of the log
	start string     // the command of a, or the address of a; "" is one that starts
}

// places are where upstreams may be.
var places = []string{"local", "HTTP", "WebSocket", "unix link", "TCP link", "WebSocket link", "shared"}

func (l layout) linked() bool { return strings.HasSuffix(l.place, "link") }
func (l layout) remote() bool { return l.place == "HTTP" || l.place == "WebSocket" }

// oneServer reports whether all clients share one server process.
func (l layout) oneServer() bool { return l.remote() || l.place == "shared" || l.era == mcp.Modern }

// ownProcess reports whether a call that may ask something needs a server process of its own: nothing else
// tells whose question it is.
func (l layout) ownProcess() bool {
	return l.client == mcp.Modern && l.era != mcp.Modern && l.place != "HTTP"
}

// pair returns the name of the pair of eras.
func (l layout) pair() string {
	return fmt.Sprintf("%s to %s", cmp.Or(l.client, mcp.Legacy), cmp.Or(l.era, mcp.Legacy))
}

// otherPairs are the eras of clients and upstreams that are not both legacy.
var otherPairs = []layout{{client: mcp.Modern}, {era: mcp.Modern}, {client: mcp.Modern, era: mcp.Modern}}

// everywhere runs a test with legacy clients and upstreams at each place, and with the other
// pairs of eras at one place, or at each for a core row. It skips the places and pairs in
// except, each with its reason.
func everywhere(t *testing.T, l layout, test func(*site), except ...string) {
	everyPlace(t, l, test, except...)
	acrossEras(t, l, test, except...)
}

// everyPlace runs a test with upstreams at each place.
func everyPlace(t *testing.T, l layout, test func(*site), except ...string) {
	for _, l.place = range places {
		t.Run(l.place, func(t *testing.T) { unless(t, l, test, except) })
	}
}

// acrossEras runs a test with the pairs of eras that are not both legacy.
func acrossEras(t *testing.T, l layout, test func(*site), except ...string) {
	at := places
	if !l.core {
		at = []string{cmp.Or(l.place, "local")}
	}
	for _, pair := range otherPairs {
		l.client, l.era = pair.client, pair.era
		for _, l.place = range at {
			t.Run(l.pair()+"/"+l.place, func(t *testing.T) { unless(t, l, test, except) })
		}
	}
}

func unless(t *testing.T, l layout, test func(*site), except []string) {
	for _, e := range except {
		if strings.HasPrefix(e, l.place+":") || strings.HasPrefix(e, l.pair()+":") {
			t.Skip(e)
		}
	}
	test(newSite(t, l))
}

// newSite runs a proxy with the fake upstreams a and b, local ones without a layout.
func newSite(t *testing.T, l ...layout) *site {
	t.Helper()
	s := emptySite(t)
	if len(l) > 0 {
		s.layout = l[0]
	}
	if s.layout.oneServer() {
		s.resident = 2
	}
	s.run(s.config())
	return s
}

// emptySite returns a site without a proxy.
func emptySite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, log: &lines{}, dir: shortDir(t), events: newBook()}
	t.Cleanup(func() { s.events.balanced(t) }) // last, when everything has ended
	return s
}

// shortDir returns a directory with a path short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "site")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// config returns the text of the site's configuration, and starts what it needs.
func (s *site) config() string {
	a, b := s.upstream("a", s.layout.env), s.upstream("b", "")
	upstreams := fmt.Sprintf("upstreams:\n  a: {%s%s}\n  b: {%s}\n", a, s.layout.a, b)
	top := "limits: {sessions: 400}\n"
	if strings.HasPrefix(s.layout.top, "limits:") {
		top = ""
	}
	top += s.layout.top
	if !s.layout.linked() {
		return top + upstreams
	}
	s.far = newFarHost(s.t, s.load("host.yaml", upstreams, true), s.layout.beat, s.log, s.events)
	beat := ""
	if s.layout.beat > 0 {
		beat = fmt.Sprint(", heartbeat: ", s.layout.beat)
	}
	switch s.layout.place {
	case "unix link":
		return top + "links: {far: {dial: " + s.far.listen("unix://"+s.dir+"/link") + beat + "}}\n"
	case "TCP link":
		return top + "links: {far: {dial: " + s.far.listen("tcp://127.0.0.1:0") + beat + "}}\n"
	}
	s.write("token", "secret")
	return top + "links: {far: {accept: true, tokenFile: token}}\n"
}

// upstream returns the settings of one upstream.
func (s *site) upstream(name, env string) string {
	env = fmt.Sprintf("%s, FAKE_ERA: %q, FAKE_LOG: %q, GORACE: %q", cmp.Or(env, "FAKE_X: x"), s.layout.era, s.record(name), os.Getenv("GORACE"))
	era := "era: auto, "
	if s.layout.pin {
		era = fmt.Sprintf("era: %s, ", cmp.Or(s.layout.era, mcp.Legacy))
	}
	if !s.layout.lazy {
		era += "start: eager, "
	}
	command := "fakeserver"
	if name == "a" && s.layout.start != "" {
		command = s.layout.start
	} else if s.layout.remote() {
		command = keepServing(s.t, env)
	}
	switch s.layout.place {
	case "HTTP":
		return era + "url: http://" + command + "/mcp, stopGrace: 10s" // enough to post a cancellation of each call on a slow machine
	case "WebSocket":
		return era + "url: ws://" + command + "/ws"
	case "shared":
		era += "session: shared, "
	}
	return fmt.Sprintf("%scommand: %s, env: {%s}, stopGrace: 500ms", era, command, env)
}

// write creates a file beside the configuration.
func (s *site) write(name, text string) string {
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

func (s *site) load(name, text string, host bool) *config.Config {
	s.t.Helper()
	cfg, _, err := config.Load(config.Options{File: s.write(name, text), Host: host})
	if err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

// run runs a proxy with a configuration until the test ends.
func (s *site) run(text string) {
	t := s.t
	t.Helper()
	cfg := s.load("mcp-proxy.yaml", text, false)
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: s.layout.level}))
	p, err := proxy.New(cfg, proxy.Options{Log: log, Hooks: s.events.hooks()})
	if err != nil {
		t.Fatal(err)
	}
	s.proxy, s.cfg = p, cfg
	s.hurry(*inside[*eras.Bridge](p, "host", "bridge"))
	if s.far != nil {
		s.hurry(*inside[*eras.Bridge](s.far.host, "half", "bridge"))
	}
	listener := httptest.NewServer(p.Handler())
	s.url = listener.URL
	t.Cleanup(func() {
		s.shutdown(0)
		listener.Close()
	})
	if s.layout.place == "WebSocket link" {
		s.far.dial("ws" + strings.TrimPrefix(s.url, "http") + "/link")
	}
	if s.far != nil {
		eventually(t, "the link", func() bool { return s.linkedTo("b") })
	}
}

// linkedTo reports whether a link has announced an upstream.
func (s *site) linkedTo(upstream string) bool {
	return slices.ContainsFunc(s.proxy.Snapshot().Links, func(l proxy.Link) bool { return slices.Contains(l.Upstreams, upstream) })
}

// shutdown ends the proxy; drain bounds its drain.
func (s *site) shutdown(drain time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopReserve(s.cfg)+drain)
	defer cancel()
	return s.proxy.Shutdown(ctx)
}

// stopReserve returns the part of a shutdown's time that is not for the drain.
func stopReserve(cfg *config.Config) time.Duration {
	longest := time.Second
	for _, u := range cfg.Upstreams {
		longest = max(longest, u.StopGrace)
	}
	return longest + 500*time.Millisecond
}

// hurry sets how long a translation waits.
func (s *site) hurry(b *eras.Bridge) { b.Idle, b.SuspendFor = s.layout.idle, s.layout.parkFor }

func (s *site) record(upstream string) string { return filepath.Join(s.dir, "record-"+upstream) }

// noted returns what the servers of upstream a noted, in order.
func (s *site) noted() []string { return s.notedBy("a") }

func (s *site) notedBy(upstream string) []string { return notedIn(s.record(upstream)) }

// notedIn returns what servers noted, except the ends of listens, so that all cancellations are of
// calls.
func notedIn(record string) []string {
	lines := allNotedIn(record)
	listens := map[string]bool{}
	return slices.DeleteFunc(lines, func(line string) bool {
		pid, message, _ := strings.Cut(line, " ")
		switch {
		case strings.Contains(message, `"subscriptions/listen"`):
			id, _ := jsonrpc.Member(json.RawMessage(message), "id")
			listens[pid+string(id)] = true
		case strings.Contains(message, `"notifications/cancelled"`):
			params, _ := jsonrpc.Member(json.RawMessage(message), "params")
			id, _ := jsonrpc.Member(params, "requestId")
			return listens[pid+string(id)]
		}
		return false
	})
}

func allNotedIn(record string) []string {
	text, _ := os.ReadFile(record) // there is none if no server has noted anything
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// server returns the process that was the last to note part.
func (s *site) server(part string) int {
	noted := s.noted()
	for _, line := range slices.Backward(noted) {
		if strings.Contains(line, part) {
			pid, _ := strconv.Atoi(strings.Fields(line)[0])
			return pid
		}
	}
	s.t.Helper()
	s.t.Fatalf("nobody noted %s: %v", part, noted)
	return 0
}

func countPart(lines []string, part string) int {
	n := 0
	for _, l := range lines {
		if strings.Contains(l, part) {
			n++
		}
	}
	return n
}

// settled reports whether the processes of clients have ended. All servers of a site have the path of a
// record in their environment.
func (s *site) settled() bool { return len(children(os.Getpid(), s.dir)) <= s.resident }

// kept returns how many connections to servers may be kept for reuse.
func (s *site) kept() int {
	if s.layout.place == "HTTP" {
		return 40
	}
	return 0
}

// keepServing runs a fake server on HTTP until the test ends, and a new one
// whenever it dies. It returns its address.
func keepServing(t *testing.T, env string) string {
	t.Helper()
	address := freeAddress(t)
	var words []string
	for _, pair := range strings.Split(env, ", ") {
		name, value, _ := strings.Cut(pair, ": ")
		words = append(words, name+"="+strings.Trim(value, `"`))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, "fakeserver")
			cmd.Env = append(append(os.Environ(), words...), "FAKE_HTTP="+address)
			cmd.Run()
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	eventually(t, "the server on HTTP", func() bool { return answers(address) })
	return address
}

func answers(address string) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

var (
	firstPort = 10000 + os.Getpid()*97%20000
	ports     atomic.Int64 // ports that were tried; tests run in parallel
)

// freeAddress returns an address that no connection from this machine can take. With a port that the
// system chooses, one could take it before a server listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+int(ports.Add(1)))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}
