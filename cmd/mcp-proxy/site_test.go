//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A site is a whole proxy in this process, with real servers behind it and a
// real socket before it.
type site struct {
	t        *testing.T
	layout   layout
	dir      string // short, since sockets are in it
	engine   *engine
	front    *frontend.HTTP
	url      string // http://HOST:PORT
	log      *lines // the host's, too, if there is one
	resident int    // processes that no client's leaving ends
	far      *farHost
}

// A layout is where the upstreams a and b of a site are, and how they are set.
type layout struct {
	place string          // one of places; "" is local
	env   string          // of the servers of a, as NAME: value, …
	a     string          // settings of a, each with a comma before it
	top   string          // lines of the configuration
	beat  *link.Heartbeat // of the link
	level slog.Level      // of the log
	start string          // the command of a, or the address of a; "" is one that starts
}

// places are where upstreams may be.
var places = []string{"local", "HTTP", "WebSocket", "unix link", "TCP link", "WebSocket link", "shared"}

func (l layout) linked() bool { return strings.HasSuffix(l.place, "link") }
func (l layout) remote() bool { return l.place == "HTTP" || l.place == "WebSocket" }

// oneServer tells whether all clients have one server process.
func (l layout) oneServer() bool { return l.remote() || l.place == "shared" }

// everywhere runs a test with upstreams at each place, except those that are named
// with the reason.
func everywhere(t *testing.T, l layout, test func(*site), except ...string) {
	for _, l.place = range places {
		t.Run(l.place, func(t *testing.T) {
			if i := slices.IndexFunc(except, func(e string) bool { return strings.HasPrefix(e, l.place+":") }); i >= 0 {
				t.Skip(except[i])
			}
			test(newSite(t, l))
		})
	}
}

// newSite runs a proxy with the fake upstreams a and b, here if nothing is said.
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

// emptySite is one where nothing runs yet.
func emptySite(t *testing.T) *site {
	t.Helper()
	return &site{t: t, log: &lines{}, dir: shortDir(t)}
}

// shortDir returns a directory whose name leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "site")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// config returns the text of the site's configuration; what it needs is there.
func (s *site) config() string {
	a, b := s.upstream("a", s.layout.env), s.upstream("b", "")
	upstreams := fmt.Sprintf("upstreams:\n  a: {%s%s}\n  b: {%s}\n", a, s.layout.a, b)
	top := "limits: {sessions: 400}\n" + s.layout.top
	if !s.layout.linked() {
		return top + upstreams
	}
	s.far = newFarHost(s.t, s.load("host.yaml", upstreams, true), s.log)
	switch s.layout.place {
	case "unix link":
		return top + "links: {far: {dial: " + s.far.listen("unix://"+s.dir+"/link") + "}}\n"
	case "TCP link":
		return top + "links: {far: {dial: " + s.far.listen("tcp://127.0.0.1:0") + "}}\n"
	}
	s.write("token", "secret")
	return top + "links: {far: {accept: true, tokenFile: token}}\n"
}

// upstream returns the settings of one upstream.
func (s *site) upstream(name, env string) string {
	env = fmt.Sprintf("%s, FAKE_LOG: %q, GORACE: %q", cmp.Or(env, "FAKE_X: x"), s.record(name), os.Getenv("GORACE"))
	command := "fakeserver"
	if name == "a" && s.layout.start != "" {
		command = s.layout.start
	} else if s.layout.remote() {
		command = keepServing(s.t, env)
	}
	switch s.layout.place {
	case "HTTP":
		return "url: http://" + command + "/mcp"
	case "WebSocket":
		return "url: ws://" + command + "/ws"
	case "shared":
		return fmt.Sprintf("session: shared, command: %s, env: {%s}, stopGrace: 500ms", command, env)
	}
	return fmt.Sprintf("command: %s, env: {%s}, stopGrace: 500ms", command, env)
}

// write makes a file beside the configuration.
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

// run runs the proxy of a configuration until the test ends.
func (s *site) run(text string) {
	t := s.t
	t.Helper()
	cfg := s.load("mcp-proxy.yaml", text, false)
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: s.layout.level}))
	var err error
	if s.engine, err = newEngine(cfg, log); err != nil {
		t.Fatal(err)
	}
	if s.layout.beat != nil {
		s.engine.far.all[0].client.Heartbeat = *s.layout.beat
		s.far.half.server.Heartbeat = *s.layout.beat
	}
	s.engine.start()
	s.front = &frontend.HTTP{Serve: s.engine.serve, Known: s.engine.known, Limits: limitsOf(cfg), Sessions: cfg.Limits.Sessions}
	listener := httptest.NewServer(handlerOf(s.engine, s.front))
	s.url = listener.URL
	t.Cleanup(func() {
		s.front.Close()
		s.engine.stop(context.Background())
		listener.Close()
	})
	if s.layout.place == "WebSocket link" {
		s.far.dial("ws" + strings.TrimPrefix(s.url, "http") + "/link")
	}
	if s.far != nil {
		eventually(t, "the link", func() bool { return s.engine.known("b") })
	}
}

func (s *site) record(upstream string) string { return filepath.Join(s.dir, "record-"+upstream) }

// noted returns what the servers of upstream a noted, in order.
func (s *site) noted() []string { return s.notedBy("a") }

func (s *site) notedBy(upstream string) []string { return notedIn(s.record(upstream)) }

func notedIn(record string) []string {
	text, _ := os.ReadFile(record)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
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

// settled reports whether the processes are gone that clients have.
func (s *site) settled() bool { return len(children(os.Getpid())) <= s.resident }

// kept is how many connections to servers may be kept for reuse.
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

var nextPort = 10000 + os.Getpid()*97%20000

// freeAddress returns an address that no connection from here can take, as one of
// a port that the system chooses could be while nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		nextPort++
		address := fmt.Sprintf("127.0.0.1:%d", nextPort)
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// A farHost is a host in this process, whose links can be cut.
type farHost struct {
	t    *testing.T
	half *hosting
	ctx  context.Context
	wg   sync.WaitGroup

	mu   sync.Mutex
	down bool // no link comes up
	open []*carrier
}

func newFarHost(t *testing.T, cfg *config.Config, log *lines) *farHost {
	t.Helper()
	half, err := newHosting(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	f := &farHost{t: t, half: half}
	ctx, cancel := context.WithCancel(context.Background())
	f.ctx = ctx
	t.Cleanup(func() {
		cancel()
		f.wg.Wait()
		f.half.stop(context.Background())
	})
	return f
}

// listen serves links at a URL and returns it with its port.
func (f *farHost) listen(url string) string {
	f.t.Helper()
	at := link.Endpoint{URL: url}
	l, err := at.Listen()
	if err != nil {
		f.t.Fatal(err)
	}
	f.wg.Go(func() { f.half.server.Accept(f.ctx, watched{l, f}) })
	return linkURL(at, l)
}

// dial keeps a link up to a proxy.
func (f *farHost) dial(url string) {
	at := link.Endpoint{URL: url, Token: func() (string, error) { return "secret", nil }}
	f.wg.Go(func() {
		f.half.server.Redial(f.ctx, func(ctx context.Context) (net.Conn, error) {
			c, err := at.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return f.watch(c)
		})
	})
}

// watch keeps c to be cut. While the links are down it closes c.
func (f *farHost) watch(conn net.Conn) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		conn.Close()
		return nil, errors.New("down")
	}
	c := &carrier{conn, make(chan struct{})}
	f.open = append(f.open, c)
	return c, nil
}

// freeze makes all links silent that are open.
func (f *farHost) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.open {
		close(c.frozen)
	}
	f.open = nil
}

// A carrier is one that can be frozen: then what is written goes nowhere, and
// nothing comes.
type carrier struct {
	net.Conn
	frozen chan struct{}
}

func (c *carrier) Write(p []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func (c *carrier) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		select {
		case <-c.frozen:
			if err == nil {
				continue
			}
		default:
		}
		return n, err
	}
}

// cut cuts all links, and keeps them down or not.
func (f *farHost) cut(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	for _, c := range f.open {
		c.Conn.Close()
	}
	f.open = nil
}

// up ends what cut began.
func (f *farHost) up() { f.cut(false) }

// watched is a listener whose connections can be cut.
type watched struct {
	net.Listener
	f *farHost
}

func (w watched) Accept() (net.Conn, error) {
	for {
		c, err := w.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, err = w.f.watch(c); err == nil {
			return c, nil
		}
	}
}
