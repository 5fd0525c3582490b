//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// onlyOneSocket returns the path of the only socket in the directory of this user.
func onlyOneSocket(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	eventually(t, "a socket", func() bool { all = sockets(filepath.Join(dir, "mcp-proxy")); return len(all) == 1 })
	return all[0]
}

// Each command has a socket for operators, which only its user can reach, and removes it at the end.
func TestAdminSocket(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"serve":   {"serve", "--listen", "127.0.0.1:0", "--", "fakeserver"},
		"stdio":   {"stdio", "--", "fakeserver"},
		"host":    {"host", "--listen", "tcp://127.0.0.1:0", "--", "fakeserver"},
		"connect": {"connect", "http://127.0.0.1:1/mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			env := []string{"XDG_RUNTIME_DIR=" + dir}
			if text, code := command(t, env, "healthcheck"); code != exitError || strings.Count(text, "\n") != 1 {
				t.Errorf("before: %d %q", code, text)
			}
			p := startProgram(t, env, args...)
			path := onlyOneSocket(t, dir)
			eventually(t, "health", func() bool {
				text, code := command(t, env, "healthcheck")
				return code == exitOK && text == "ok\n"
			})
			for file, mode := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
				if info, err := os.Stat(file); err != nil || info.Mode().Perm() != mode {
					t.Errorf("%s: %v, %v", file, info.Mode(), err)
				}
			}
			if text, code := command(t, nil, "healthcheck", "--live", "--admin", path); code != exitOK || text != "ok\n" {
				t.Errorf("--admin: %d %q", code, text)
			}
			p.cmd.Process.Signal(syscall.SIGTERM)
			p.cmd.Wait()
			if left := sockets(filepath.Dir(path)); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// A runtime directory that cannot be used is passed over, and a process without a socket says so.
func TestAdminSocketElsewhere(t *testing.T) {
	tmp := shortDir(t)
	long := filepath.Join(tmp, strings.Repeat("long", 25))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, runtime := range []string{filepath.Join(tmp, "none"), long} {
		env := []string{"TMPDIR=" + tmp, "XDG_RUNTIME_DIR=" + runtime}
		p := startProgram(t, env, "stdio", "--", "fakeserver")
		eventually(t, "health", func() bool {
			text, code := command(t, env, "healthcheck")
			return code == exitOK && text == "ok\n"
		})
		p.in.Close()
		p.cmd.Wait()
	}
	for _, runtime := range []string{"none", long} {
		p := startProgram(t, []string{"TMPDIR=" + long, "XDG_RUNTIME_DIR=" + runtime}, "stdio", "--", "fakeserver")
		p.in.Close()
		p.cmd.Wait()
		if p.log.count("no socket for operators") != 1 {
			t.Errorf("log:\n%s", p.log)
		}
	}
}

// A killed process leaves its socket behind. Commands skip it, and the next start removes it, but
// not a new one, whose process may not listen yet.
func TestAdminSocketsThatAreDead(t *testing.T) {
	dir := filepath.Join(shortDir(t), "mcp-proxy")
	if err := ownDir(dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(dir))
	dead, young := filepath.Join(dir, "serve-1.sock"), filepath.Join(dir, "serve-2.sock")
	for _, path := range []string{dead, young} {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dead, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	if path, err := socketOf(""); err == nil {
		t.Errorf("%s is taken for one that lives", path)
	}
	sweep(dir)
	if all := sockets(dir); len(all) != 1 || all[0] != young {
		t.Errorf("left: %q", all)
	}
}

// If several processes run, a command lists them, and takes a name or a number of that
// list.
func TestSeveralProcesses(t *testing.T) {
	s := emptySite(t)
	env := []string{"XDG_RUNTIME_DIR=" + shortDir(t)}
	var files []string
	for _, name := range []string{"one", "two"} {
		files = append(files, s.write(name+".yaml", "listen: [\"127.0.0.1:0\"]\nupstreams: {"+name+": {command: fakeserver}}\n"))
	}
	var at []string
	for _, file := range files {
		p := startProgram(t, env, "serve", "--config", file)
		at = append(at, strings.TrimPrefix(p.url(), "http://"))
	}
	wd, _ := os.Getwd()
	text, code := command(t, env, "status")
	var names []string
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		words := strings.Fields(line)
		switch {
		case i < 2 && code == exitError: // the error, and the head of the table
		case i > 3 || len(words) != 6 || words[0] != fmt.Sprint(i-1) || words[2] != files[i-2] || words[3] != at[i-2] || words[4] != wd:
			t.Errorf("code %d, line %d: %q", code, i, line)
		default:
			names = append(names, words[1])
		}
	}
	if len(names) != 2 {
		t.Fatalf("the list is\n%s", text)
	}
	for i, upstream := range []string{"one", "two"} {
		for _, choice := range []string{names[i], fmt.Sprint(i + 1)} {
			if text, code := command(t, env, "status", "--admin", choice); code != exitOK || !strings.Contains(text, upstream) {
				t.Errorf("--admin %s: %d\n%s", choice, code, text)
			}
		}
	}
	if text, code := command(t, env, "status", "--admin", "nobody"); code != exitError || !strings.Contains(text, names[0]) {
		t.Errorf("a name that nobody has: %d\n%s", code, text)
	}
}

// A directory that others can access, or that another user has created, is not used.
func TestAdminDirOfOthers(t *testing.T) {
	tmp := shortDir(t)
	wide, link := filepath.Join(tmp, "wide"), filepath.Join(tmp, "link")
	if err := os.Mkdir(wide, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(shortDir(t), link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{wide, link, filepath.Join(tmp, "no", "parent")} {
		if ownDir(dir) == nil {
			t.Errorf("%s is used", dir)
		}
	}
}

// On TCP, probes and metrics are open and everything else needs the token. While a call drains, readiness
// fails and liveness does not.
func TestAdminOnTCP(t *testing.T) {
	s := emptySite(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	os.WriteFile(filepath.Join(s.dir, "token"), []byte("secret\n"), 0o600)
	config := filepath.Join(s.dir, "c.yaml")
	os.WriteFile(config, []byte("listen: [\"127.0.0.1:0\"]\nadmin: {listen: [\""+at+"\"], tokenFile: token}\nupstreams: {main: {command: fakeserver, env: {FAKE_LOG: "+s.record("a")+"}}}\n"), 0o600)
	p := startProgram(t, []string{"XDG_RUNTIME_DIR=" + s.dir}, "serve", "--config", config)
	s.url = p.url()

	get := func(path, token string) int {
		r, _ := http.NewRequest(http.MethodGet, "http://"+at+path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	eventually(t, "readiness", func() bool { return get("/readyz", "") == http.StatusOK })
	if got := get("/metrics", ""); got != http.StatusOK {
		t.Errorf("metrics: %d", got)
	}
	if a, b, c := get("/livez", ""), get("/status", ""), get("/status", "secret"); a != 200 || b != 401 || c != 200 {
		t.Errorf("livez %d, status %d, with the token %d", a, b, c)
	}
	client := s.connect()
	client.call(1, "hang")
	s.awaitNoted("a", "hang", 1)
	p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "a drain that shows", func() bool { return get("/readyz", "") == http.StatusServiceUnavailable })
	if text, code := command(t, nil, "healthcheck", "--admin", at); code != exitError || text != "drain: shutting down; not ready\n" {
		t.Errorf("healthcheck while it drains: %d %q", code, text)
	}
	text, code := command(t, nil, "healthcheck", "--json", "--admin", at)
	var got proxy.Health
	if err := json.Unmarshal([]byte(text), &got); err != nil || code != exitError || got.OK || !slices.Equal(got.Says, []string{"drain: shutting down", "not ready"}) {
		t.Errorf("as JSON: %d %q", code, text)
	}
	if got := get("/livez", ""); got != http.StatusOK {
		t.Errorf("livez while it drains: %d", got)
	}
}

// Readiness waits for everything required: one successful trial of an isolated command, a shared
// server to run, also after it was killed, and a link to be up.
func TestRequired(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	late, socket := filepath.Join(s.dir, "late"), filepath.Join(s.dir, "l.sock")
	config := s.write("c.yaml", "listen: [\"127.0.0.1:0\"]\nupstreams:\n"+
		"  once: {command: sh, args: [-c, \"test -e "+late+" || exit 3; exec fakeserver\"], inheritEnv: [all], required: true}\n"+
		"  all: {command: fakeserver, inheritEnv: [all], env: {FAKE_LOG: "+s.record("a")+"}, session: shared, required: true}\n"+
		"  other: {command: /no/such/command}\n"+
		"links: {far: {dial: \"unix://"+socket+"\", required: true}}\n")
	p := startProgram(t, []string{"XDG_RUNTIME_DIR=" + s.dir}, "serve", "--config", config)
	servers := func() []string { return children(p.cmd.Process.Pid) }
	says := func(want string) {
		t.Helper()
		got := ""
		defer func() {
			if t.Failed() {
				t.Log("it said ", got)
			}
		}()
		eventually(t, want, func() bool {
			text, _ := command(t, []string{"XDG_RUNTIME_DIR=" + s.dir}, "healthcheck")
			got = strings.TrimSpace(text)
			return got == want
		})
	}
	says("upstream once: did not start: exit status 3; link far: is unreachable: connect failed; not ready")
	os.WriteFile(late, nil, 0o600)
	says("link far: is unreachable: connect failed; not ready")
	host := startProgram(t, []string{"XDG_RUNTIME_DIR=" + shortDir(t)}, "host", "--listen", "unix://"+socket, "--", "fakeserver")
	says("ok")

	eventually(t, "the end of the trial", func() bool { return len(servers()) == 1 })
	pid := s.server("initialize") // the shared one
	first := strconv.Itoa(pid)
	if now := servers(); now[0] != first {
		t.Errorf("%q run, and not %s", now, first)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	eventually(t, "another server", func() bool {
		now := servers()
		return len(now) == 1 && now[0] != first
	})
	says("ok")
	host.cmd.Process.Kill()
	says("link far: is unreachable: link lost; not ready")
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the end: %v", err)
	}
}

// After SIGTERM readiness fails first, while new clients are still served. A second signal
// skips the rest of the delay, but does not force: requests in flight finish.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	env := []string{"XDG_RUNTIME_DIR=" + dir}
	p, s := serving(t, append(env, "MCP_PROXY_DRAIN_DELAY=1h")...)
	p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "the first signal", func() bool { return p.log.count("draining") == 1 })
	first := time.Now()
	eventually(t, "readiness that fails", func() bool {
		text, code := command(t, env, "healthcheck")
		return code == exitError && text == "drain: shutting down; not ready\n"
	})
	if text, code := command(t, env, "healthcheck", "--live"); code != exitOK {
		t.Errorf("live: %d %q", code, text)
	}
	client := s.connect()
	if got := client.get(1, "echo"); strings.HasPrefix(got, "!") {
		t.Errorf("a client that comes during the delay: %s", got)
	}
	eventually(t, "time for another signal", func() bool { return time.Since(first) > together })
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
