//go:build unix

package main

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/upstream/oauth/oauthtest"
)

// fakeBrowser is a browser whose user agrees to everything, once a test has opened the pipe of
// that name in its home for writing.
func fakeBrowser() {
	home := os.Getenv("HOME")
	log, err := os.OpenFile(filepath.Join(home, "opened"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(log, os.Args[1])
		log.Close()
	}
	if pipe, err := os.Open(filepath.Join(home, "agreed")); err == nil {
		pipe.Close()
	}
	if os.Getppid() == 1 { // the program that has opened it has ended
		return
	}
	resp, err := http.Get(os.Args[1])
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	_ = os.WriteFile(filepath.Join(home, "seen"), text, 0o600)
}

// A home is the home directory of a user who logs in with a browser.
type home struct {
	t    *testing.T
	dir  string
	site *oauthtest.Site
	all  []*program
}

func newHome(t *testing.T, v oauthtest.Variations) *home {
	h := &home{t: t, dir: t.TempDir(), site: oauthtest.New(t, v)}
	if err := syscall.Mkfifo(h.file("agreed"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.agree() // so that every browser ends
		for _, p := range h.all {
			if p.log.count(oauthtest.Marked) > 0 {
				t.Errorf("a secret is in a log: %s", p.log)
			}
		}
	})
	return h
}

func (h *home) file(name string) string { return filepath.Join(h.dir, name) }

// agree makes the user agree from now on.
func (h *home) agree() {
	pipe, err := os.OpenFile(h.file("agreed"), os.O_RDWR, 0) // also for reading, else the open would wait for a browser
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { pipe.Close() })
}

func (h *home) env() []string {
	return []string{"HOME=" + h.dir, "XDG_STATE_HOME=" + h.file("state"), "XDG_CONFIG_HOME=" + h.file("config"), "BROWSER=fakebrowser"}
}

func (h *home) start(args ...string) *program {
	h.t.Helper()
	p := startProgram(h.t, h.env(), args...)
	h.all = append(h.all, p)
	return p
}

func (h *home) opened() int {
	text, _ := os.ReadFile(h.file("opened"))
	return strings.Count(string(text), "\n")
}

// seesLogin waits for the last page of a login. Then its browser writes nothing more.
func (h *home) seesLogin() {
	h.t.Helper()
	eventually(h.t, "the last page", func() bool {
		text, _ := os.ReadFile(h.file("seen"))
		return strings.Contains(string(text), "You are logged in")
	})
}

// run runs a command to its end, checks the exit code and returns its output.
func (h *home) run(code int, args ...string) string {
	h.t.Helper()
	out, got := command(h.t, h.env(), args...)
	if got != code {
		h.t.Errorf("%v: exit code %d: %s", args, got, out)
	}
	if strings.Contains(out, oauthtest.Marked) {
		h.t.Errorf("a secret was printed: %s", out)
	}
	return out
}

// calls initializes a client, makes a call and returns the answer.
func (p *program) calls(id int) string {
	p.t.Helper()
	p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"add"}}`, id))
	for {
		if said := p.hear(); strings.Contains(said, fmt.Sprintf(`"id":%d,`, id)) || strings.Contains(said, fmt.Sprintf(`"id":%d}`, id)) {
			return said
		}
	}
}

func (p *program) begins() {
	p.t.Helper()
	p.say(initialize)
	if said := p.hear(); !strings.Contains(said, `"result"`) {
		p.t.Errorf("initialize: %s\n%s", said, p.log)
	}
	p.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

const fine = `"result":{"content":[]}`

// Five programs that start at once open one browser, and all work afterwards.
func TestFiveConnectsOpenOneBrowser(t *testing.T) {
	h := newHome(t, oauthtest.Variations{Says: true, Sends: "right"})
	var all []*program
	for range 5 {
		p := h.start("connect", h.site.Endpoint())
		p.say(initialize)
		all = append(all, p)
	}
	eventually(t, "a browser", func() bool { return h.opened() > 0 })
	h.agree()
	for _, p := range all {
		if said := p.hear(); !strings.Contains(said, `"result"`) {
			t.Errorf("initialize: %s\n%s", said, p.log)
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if said := p.calls(1); !strings.Contains(said, fine) {
			t.Errorf("got %s\n%s", said, p.log)
		}
	}
	if n := h.opened(); n != 1 || h.site.Count("authorize") != 1 || h.site.Count("register") != 1 {
		t.Errorf("%d browsers, %d logins, %d registrations", n, h.site.Count("authorize"), h.site.Count("register"))
	}
	h.seesLogin()
	err := filepath.WalkDir(h.file("state"), func(path string, d fs.DirEntry, err error) error {
		if info, _ := d.Info(); err == nil && !d.IsDir() && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A program that is killed during a login leaves nothing behind for which others would
// wait.
func TestKilledWhileLoggingIn(t *testing.T) {
	h := newHome(t, oauthtest.Variations{})
	first := h.start("connect", h.site.Endpoint())
	first.say(initialize)
	eventually(t, "a browser", func() bool { return h.opened() == 1 })
	second := h.start("connect", h.site.Endpoint())
	second.say(initialize)
	eventually(t, "its request", func() bool { return len(h.site.Carried()) > 1 })
	first.cmd.Process.Kill()
	eventually(t, "another browser", func() bool { return h.opened() == 2 })
	h.agree()
	if said := second.hear(); !strings.Contains(said, `"result"`) {
		t.Errorf("initialize: %s\n%s", said, second.log)
	}
	h.seesLogin()
}

// Programs that share a login refresh it together: no refresh token is sent twice, and no
// call fails.
func TestRefreshAcrossProcesses(t *testing.T) {
	t.Parallel()
	h := newHome(t, oauthtest.Variations{Life: 2 * time.Second})
	h.agree()
	h.run(exitOK, "login", h.site.Endpoint())
	var all []*program
	for range 5 {
		p := h.start("connect", h.site.Endpoint())
		p.begins()
		all = append(all, p)
	}
	for id := 1; h.site.Count("refresh") < 3 && !t.Failed(); id++ {
		for _, p := range all {
			if said := p.calls(id); !strings.Contains(said, fine) {
				t.Errorf("got %s\n%s", said, p.log)
			}
		}
	}
	if h.site.Count("reuse") > 0 || h.opened() != 1 {
		t.Errorf("%d refresh tokens were sent twice, %d browsers", h.site.Count("reuse"), h.opened())
	}
}

// A command at a terminal names the URL to log in to.
func TestCommandNamesTheURLToLogInTo(t *testing.T) {
	t.Parallel()
	h := newHome(t, oauthtest.Variations{})
	for _, args := range [][]string{{"tools"}, {"call", "add"}} {
		if said := h.run(exitError, append(args, h.site.Endpoint())...); !strings.HasSuffix(said, "needs a login: mcp-proxy login URL, where URL is "+h.site.Endpoint()+"\n") {
			t.Errorf("%s: got %s", args, said)
		}
	}
}

// serve opens no browser. It works as soon as the user has logged in, until they
// log out.
func TestServeNeedsALogin(t *testing.T) {
	t.Parallel()
	for name, oauth := range map[string]string{"configured": ", auth: {oauth: {}}", "found out": ""} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t, oauthtest.Variations{})
			h.agree()
			file := h.file("mcp-proxy.yaml")
			text := fmt.Sprintf("upstreams: {docs: {url: %q%s}, other: {command: fakeserver}}\n", h.site.Endpoint(), oauth)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			p := h.start("serve", "--listen", "127.0.0.1:0", "--config", file)
			s := &site{t: t, url: p.url()}
			c := s.connectOver("WebSocket")
			id := 100
			call := func(want string) {
				t.Helper()
				id++
				if said := c.get(id, "docs__add"); !strings.Contains(said, want) {
					t.Errorf("got %s, want %s\n%s", said, want, p.log)
				}
			}
			for range 4 {
				call("needs a login: mcp-proxy login docs")
			}
			if said := h.run(exitOK, "login", "docs", "--config", file); !strings.Contains(said, "Logged in to docs. The tokens are in "+h.file("state")) {
				t.Errorf("got %s", said)
			}
			call(`"content":[]`)
			if said := h.run(exitOK, "logout", "docs", "--config", file); !strings.Contains(said, "Logged out of docs: the tokens are revoked and deleted.") {
				t.Errorf("got %s", said)
			}
			call("needs a login: mcp-proxy login docs")
			h.run(exitError, "logout", "docs", "--config", file)
			if h.opened() != 1 {
				t.Errorf("%d browsers", h.opened())
			}
		})
	}
}

// Other commands use a login as a client that was given on the command line.
func TestLoginAsAGivenClient(t *testing.T) {
	t.Parallel()
	h := newHome(t, oauthtest.Variations{Closed: true})
	h.site.Know("me", "")
	h.agree()
	h.run(exitOK, "login", h.site.Endpoint(), "--client-id", "me")
	h.run(exitOK, "call", "add", h.site.Endpoint())
	h.run(exitOK, "logout", h.site.Endpoint())
}

// login fails if a signal interrupts it, or if the user denies it.
func TestLoginIsInterrupted(t *testing.T) {
	h := newHome(t, oauthtest.Variations{})
	p := h.start("login", h.site.Endpoint())
	eventually(t, "a browser", func() bool { return h.opened() == 1 })
	p.cmd.Process.Signal(syscall.SIGINT)
	if err := p.cmd.Wait(); err == nil || p.cmd.ProcessState.ExitCode() != exitError {
		t.Errorf("got %v: %s", err, p.log)
	}
	h.site.Vary(func(v *oauthtest.Variations) { v.Deny = true })
	h.agree()
	if said := h.run(exitError, "login", h.site.Endpoint()); !strings.Contains(said, "access_denied") {
		t.Errorf("got %s", said)
	}
}

// After a login that takes longer than requests can wait, the client is notified when the
// server is there.
func TestLateLogin(t *testing.T) {
	t.Parallel()
	h := newHome(t, oauthtest.Variations{})
	file := h.file("mcp-proxy.yaml")
	text := fmt.Sprintf("upstreams: {docs: {url: %q, startTimeout: 3s}, other: {command: fakeserver}}\nlistTimeout: 1s\n", h.site.Endpoint())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := h.start("stdio", "--config", file)
	p.begins()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for said := ""; !strings.Contains(said, `"id":1`); {
		said = p.hear()
		if strings.Contains(said, "docs__add") {
			t.Errorf("got %s", said)
		}
	}
	eventually(t, "a browser", func() bool { return h.opened() == 1 }) // the rest of the start takes little time
	p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"docs__add"}}`)
	for said := ""; !strings.Contains(said, `"id":2`); {
		if said = p.hear(); strings.Contains(said, `"id":2`) && !strings.Contains(said, "docs waits for you to log in") {
			t.Errorf("got %s", said)
		}
	}
	h.agree()
	for said := ""; !strings.Contains(said, "docs__add"); { // a merged list without it may come late, and another notification follows
		if said = p.hear(); strings.Contains(said, "notifications/tools/list_changed") {
			p.say(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
		}
	}
	if h.opened() != 1 {
		t.Errorf("%d browsers", h.opened())
	}
}

// A login to a dialled link works like one to a remote server: by the command, or by the program
// that needs it.
func TestLoginOfLinks(t *testing.T) {
	t.Parallel()
	h := newHome(t, oauthtest.Variations{})
	s := emptySite(t)
	s.layout = layout{place: "TCP link"} // except that this test writes the configuration
	far := newFarHost(t, s.load("host.yaml", "upstreams: {a: {command: fakeserver, stopGrace: 500ms}}\n", true), 0, s.log, s.events)
	host, err := url.Parse("http://" + strings.TrimPrefix(far.listen("ws://127.0.0.1:0/link"), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	behind := httputil.NewSingleHostReverseProxy(host)
	guard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, h.site.Endpoint(), strings.NewReader(`{"method":"link"}`))
		ask.Header.Set("Authorization", r.Header.Get("Authorization"))
		said, err := h.site.Client().Do(ask)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		said.Body.Close()
		if said.StatusCode == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", said.Header.Get("WWW-Authenticate"))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		behind.ServeHTTP(w, r)
	}))
	defer guard.Close()
	defer guard.CloseClientConnections()
	h.site.Vary(func(v *oauthtest.Variations) { v.Resource = guard.URL + "/link" })
	config := s.write("mcp-proxy.yaml", fmt.Sprintf("links: {far: {dial: 'ws%s/link', auth: {oauth: {}}}}\n", strings.TrimPrefix(guard.URL, "http")))
	h.agree()

	p := h.start("stdio", "--config", config) // which opens the browser
	p.begins()
	p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a__echo"}}`)
	if said := p.hear(); !strings.Contains(said, `"id":2,"result"`) {
		t.Errorf("got %s\n%s", said, p.log)
	}
	if n := h.opened(); n != 1 {
		t.Errorf("%d browsers were opened", n)
	}
	h.run(0, "logout", "far", "--config", config)
	if said := h.run(0, "login", "far", "--config", config); !strings.Contains(said, "far") {
		t.Errorf("login said %s", said)
	}
	if n := h.opened(); n != 2 {
		t.Errorf("%d browsers were opened", n)
	}
}
