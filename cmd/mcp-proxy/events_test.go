//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A book collects the events that a proxy and its hosts report, and those in errors.
type book struct {
	mu       sync.Mutex
	happened map[string]proxy.Event
	lost     map[string]proxy.Loss
}

func newBook() *book {
	return &book{happened: make(map[string]proxy.Event), lost: make(map[string]proxy.Loss)}
}

func (b *book) hooks() proxy.Hooks {
	return proxy.Hooks{
		Happened: func(e proxy.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.happened[e.ID] = e
		},
		RequestLost: func(l proxy.Loss) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lost[l.Event] = l
		},
	}
}

// balanced checks that each event in an error was also reported, except those that an operator
// caused.
func (b *book) balanced(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, l := range b.lost {
		e, ok := b.happened[id]
		switch {
		case !ok && l.Class == "changed":
			continue
		case !ok:
			t.Errorf("nobody tells of the event %s, of which an error said: %s (%s)", id, l.What, l.Reason)
			continue
		}
		if e.Upstream != "" && e.Upstream != l.Upstream || e.What == "" || e.Time.IsZero() || e.Class == "" {
			t.Errorf("the error %+v is that of %+v", l, e)
		}
	}
}

// With the event of an error, explain prints what happened: the last lines of the server, the requests in
// flight, and who got errors. It contains nothing of params.
func TestExplainEvent(t *testing.T) {
	dir := shortDir(t)
	env := []string{"XDG_RUNTIME_DIR=" + dir}
	p := startProgram(t, env, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	event := p.loses(t, "hang", "exit")
	text, code := command(t, env, "explain", event)
	for _, part := range []string{
		event + "  main exited (exit status 3)\n", "the server of main ended unexpectedly", "legacy era", "pid ",
		"in flight  2 requests\n", " t tools/call hang, for ", " t tools/call exit, for ", "told ", " t operator: ", "restarts on the next request",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if code != exitOK || strings.Contains(text, "MARKED") {
		t.Errorf("%d\n%s", code, text)
	}
	var e proxy.Event
	text, code = command(t, env, "explain", "--json", event)
	if err := json.Unmarshal([]byte(text), &e); err != nil || code != exitOK || e.ID != event || e.ExitStatus == nil || *e.ExitStatus != 3 || e.InFlight != 2 || e.Class != "exited" {
		t.Errorf("%d %v\n%s", code, err, text)
	}
	if text, code := command(t, env, "explain", "aaaaaaaa"); code != exitError || strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such event") {
		t.Errorf("%d %q", code, text)
	}
	if p.log.count(event) != 1 {
		t.Errorf("the log names it other than once:\n%s", p.log)
	}
}

// For a server behind a link the proxy knows the clients that got errors, and names the host that has the
// rest under the same id. If the link is lost, proxy and host each have an event of their own.
func TestExplainEventBehindALink(t *testing.T) {
	here, there := shortDir(t), shortDir(t)
	atProxy, atHost := []string{"XDG_RUNTIME_DIR=" + here}, []string{"XDG_RUNTIME_DIR=" + there}
	link := "unix://" + there + "/link"
	host := startProgram(t, atHost, "host", "--listen", link, "--", "fakeserver")
	host.hear()
	file := filepath.Join(here, "proxy.yaml")
	if err := os.WriteFile(file, []byte("links: {far: {dial: \""+link+"\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, atProxy, "stdio", "--config", file)
	p.say(initialize)
	p.hear()
	event := p.loses(t, "hang", "exit")
	for _, c := range []struct {
		env   []string
		parts []string
	}{
		{atProxy, []string{"main exited (exit status 3)", "told ", "t operator: ", "tools/call hang", "the host behind the link far saw it: ask there with mcp-proxy explain " + event}},
		{atHost, []string{"main exited (exit status 3)", "in flight  2 requests", "tools/call hang", "tools/call exit", "restarts on the next request"}},
	} {
		text, code := command(t, c.env, "explain", event)
		for _, part := range c.parts {
			if !strings.Contains(text, part) || code != exitOK {
				t.Errorf("%d, no %q in\n%s", code, part, text)
			}
		}
	}

	p.say(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"slow"}}`)
	eventually(t, "the call", func() bool {
		text, _ := command(t, atHost, "calls")
		return strings.Contains(text, "slow")
	})
	host.cmd.Process.Kill()
	host.cmd.Wait()
	for before := event; event == before; event = p.event(t) { // the error of each lost call has it
	}
	text, code := command(t, atProxy, "explain", event)
	for _, part := range []string{event + "  the link far was lost", "behind it  main", "in flight  1 request", "tools/call slow, for ", "cause      link lost: "} {
		if !strings.Contains(text, part) || code != exitOK {
			t.Errorf("%d, no %q in\n%s", code, part, text)
		}
	}
}

// loses calls tools, the last of which ends the server, and returns the event of that end.
func (p *program) loses(t *testing.T, tools ...string) (event string) {
	t.Helper()
	for i, tool := range tools {
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"about":"MARKED"}}}`, i+1, tool))
	}
	return p.event(t)
}

// event returns the event in the next error.
func (p *program) event(t *testing.T) (event string) {
	t.Helper()
	for event == "" {
		m, err := jsonrpc.Decode([]byte(p.hear()))
		if err != nil {
			t.Fatal(err)
		}
		event = jsonrpc.ReadErrorData(m.Error).Event
	}
	return event
}

// Everything in an event is printed, in words and with times, and nothing that moves the cursor.
func TestStory(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	status := 3
	e := proxy.Event{
		EventLine: observe.EventLine{
			ID: "k3v9x2ma", Time: at, Kind: proxy.ServerNotBegun, Upstream: "files", Session: "s1",
			What: "files did not start: exit status 3", Cause: "start failed", InFlight: 1,
		},
		Era: "legacy", PID: 7, ExitStatus: &status, Began: at.Add(-1500 * time.Millisecond), Stderr: []string{"one", "\x1b[31mtwo\r"},
		Calls: []observe.LostRequest{{Session: "s1", Client: "c", Method: "tools/call", Tool: "write", AgeMs: 1400}, {Session: "s1", Method: "ping"}}, CallsLeftOut: 2,
		Told: []observe.Told{{Session: "s1", Client: "c", Principal: "token ci", Errors: 1}}, ToldLeftOut: 1,
		Failures: 5, State: "crash loop", Next: at.Add(30 * time.Second),
		Before: []observe.EventLine{{ID: "aaaaaaaa", Time: at.Add(-48 * time.Hour), What: "files did not start"}}, Trimmed: true,
	}
	var out strings.Builder
	printEvent(&out, &e, at.Add(200*time.Second))
	want := `k3v9x2ma  files did not start: exit status 3
  when       2026-01-02 15:04:05, 3m20s ago
  what       files did not start, or was not reached (session s1, legacy era, pid 7)
  ran        never: it tried for 1.5s
  cause      start failed (exit status 3)
  stderr     one
             \u001b[31mtwo
  in flight  1 request
             s1 c tools/call write, for 1.4s
             s1 ping, for <1ms
             and 2 more
  told       session s1 c token ci: 1 error
             and 1 more
  next       5 failures in a row, in a crash loop, no restart before 15:04:35
  before     aaaaaaaa  2025-12-31 15:04:05  files did not start
  note       stderr and lists were discarded to make room for newer events
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	out.Reset()
	printEvent(&out, &proxy.Event{Host: true, EventLine: observe.EventLine{ID: "bbbbbbbb", Time: at, Kind: proxy.HeardOf, Upstream: "x", Link: "far"}}, at)
	if !strings.Contains(out.String(), "the host behind the link far saw it") {
		t.Error(out.String())
	}
	out.Reset()
	printEvent(&out, &proxy.Event{Began: at.Add(-time.Minute), EventLine: observe.EventLine{
		ID: "cccccccc", Time: at, Kind: proxy.ReplicaDied, Replica: "R1", What: "replica R1 (10.0.0.7:7946) died", Cause: "link lost",
	}}, at)
	if want = `cccccccc  replica R1 (10.0.0.7:7946) died
  when   2026-01-02 15:04:05, <1ms ago
  what   another replica did not answer any more, and was declared dead
  ran    for 1m00s, since 15:03:05
  cause  link lost
`; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for d, want := range map[time.Duration]string{
		0: "<1ms", -time.Second: "<1ms", 1234 * time.Microsecond: "1ms", 59949 * time.Millisecond: "59.9s", 61 * time.Second: "1m01s", 3 * time.Hour: "3h00m", 100 * time.Hour: "4 days",
	} {
		if got := roughly(d); got != want {
			t.Errorf("%v is roughly %s, want %s", d, got, want)
		}
	}
}

// explain asks the running proxy.
func TestExplainAsksWhoRuns(t *testing.T) {
	dir := shortDir(t)
	env := []string{"XDG_RUNTIME_DIR=" + dir}
	file := filepath.Join(dir, "mcp-proxy.yaml")
	if err := os.WriteFile(file, []byte("upstreams: {files: {command: fakeserver, start: eager, tools: {deny: [hang]}}, docs: {command: fakeserver}, database: {command: fakeserver}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, code := command(t, env, "explain", "docs__x"); code != exitError || !strings.Contains(text, "no proxy or host of this user is running") {
		t.Errorf("of nobody: %d\n%s", code, text)
	}
	p := startProgram(t, env, "stdio", "--config", file)
	p.say(initialize)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	p.hear()
	for name, want := range map[string]struct {
		code int
		text string
	}{
		"files__echo": {exitOK, "leads     to files, as echo: the name begins with its prefix\n  listed    yes\n  server    1 running, legacy era"},
		"files__hang": {exitError, "hides it from all clients"},
		"echo":        {exitError, "several upstreams have it: files, docs, database"},
		"database":    {exitOK, "upstream database: "}, // it could be the id of an event
		"datebase":    {exitError, "no such event: "},
	} {
		if text, code := command(t, env, "explain", name); code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d\n%s", name, code, text)
		}
	}
	var e proxy.Explanation
	if text, code := command(t, env, "explain", "--json", "docs__echo"); json.Unmarshal([]byte(text), &e) != nil || code != exitOK || !e.Running || e.Upstream != "docs" {
		t.Errorf("%d\n%s", code, text)
	}
	for _, args := range [][]string{{"explain"}, {"explain", "a", "b"}, {"explain", ""}, {"explain", "--as", "foo", "docs__echo"}, {"explain", "--as", "foo", "--json", "docs__echo"}} {
		if text, code := command(t, env, args...); code != exitUsage || strings.Count(text, "\n") != 1 {
			t.Errorf("%q: %d %q", args, code, text)
		}
	}
}
