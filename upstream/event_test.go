//go:build unix

package upstream

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// says is the message of the one error about an end.
func says(end *jsonrpc.ClosedError) string {
	return strings.TrimPrefix(end.Wire(jsonrpc.CodeInternalError, "fake", jsonrpc.NotSent).Message, "Connection closed: ")
}

// What clients are told of a start, and whether they should try again, depends on
// what went wrong. The line in the log is about the same event.
func TestD48_SaysWhy(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\x00\x01"), 0o700); err != nil {
		t.Fatal(err)
	}
	nowhere := fakeCommand()
	nowhere.Dir = "no-such-directory"
	for _, tt := range []struct {
		command process.Command
		says    string
		lasting bool
	}{
		{process.Command{Path: "no-such-program-anywhere"}, "fake did not start: command not found", true},
		{process.Command{Path: "/no/such/program"}, "fake did not start: command not found", true},
		{process.Command{}, "fake did not start: command not found", true},
		{process.Command{Path: script}, "fake did not start: permission denied", true},
		{process.Command{Path: garbage}, "fake did not start: the command is no program", true},
		{nowhere, "fake did not start: no such working directory", true},
		{fakeCommand("dies"), "fake did not start: exit status 3", false},
	} {
		r := newRig(t, tt.command)
		c := r.attach("k")
		c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", []byte(`{}`))) // it may have ended
		end := c.end()
		c.returned()
		if says(end) != tt.says || end.Lasting != tt.lasting || end.Cause != jsonrpc.CauseStartFailed || end.Delivered {
			t.Errorf("%s: %q, %+v; want %q, lasting %v", tt.command.Path, says(end), end, tt.says, tt.lasting)
		}
		if w := r.log.at(slog.LevelWarn); len(w) != 1 || w[0]["event"] != end.Event || !jsonrpc.IsEvent(end.Event) {
			t.Errorf("%s: event %q, warnings %v", tt.command.Path, end.Event, w)
		}
	}
}

// A server that refuses initialize ends with that, without anybody hanging up, and
// nothing but a change makes it accept.
func TestD48_RefusalIsAnEnd(t *testing.T) {
	for i, how := range []string{"refuses", "odd", "refuses", "odd"} {
		command := fakeCommand(how)
		r := newRigOf(t, Upstream{Command: &command, Shared: i >= 2})
		c := r.attach("k")
		c.send("initialize", 0)
		end := c.end()
		c.returned()
		if says(end) != "fake refused initialize" || end.Cause != jsonrpc.CauseRefused || !end.Lasting || end.Delivered {
			t.Errorf("%s: %q, %+v", how, says(end), end)
		}
		eventually(t, "a warning", func() bool { return len(r.log.at(slog.LevelWarn)) > 0 }) // a shared one is told of meanwhile
		if w := r.log.at(slog.LevelWarn); len(w) != 1 || w[0]["msg"] != "upstream failed to start" || w[0]["event"] != end.Event {
			t.Errorf("%s: event %q, warnings %v", how, end.Event, w)
		} else if how == "refuses" && w[0]["err"] != "it says: no" {
			t.Errorf("it is logged with %v", w[0]["err"])
		}
	}
}

// D07: the error about a dead server and the one line about it name one event.
func TestD07_OneEvent(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	c.send("exit", 5)
	end := c.end()
	if w := r.warned("upstream ended unexpectedly", 1); w["event"] != end.Event || !jsonrpc.IsEvent(end.Event) {
		t.Errorf("event %q, warning %v", end.Event, w)
	}
	if says(end) != "fake exited (exit status 5)" {
		t.Error(says(end))
	}
	c.returned()
}

// While a claim waits for its next start, errors are about the last one.
func TestBackOffIsAboutTheLastEvent(t *testing.T) {
	for _, how := range []string{"dies", "refuses"} {
		r := newRig(t, fakeCommand(how))
		var last *jsonrpc.ClosedError
		for range freeFailures + 1 {
			c := r.attach("k")
			c.send("initialize", 0)
			last = c.end()
			c.returned()
		}
		c := r.attach("k")
		got := c.end()
		if err := c.returned(); !strings.Contains(err.Error(), "waiting") {
			t.Fatal(err)
		}
		if got.Event != last.Event || got.Lasting != last.Lasting || says(got) != says(last) || got.Cause != last.Cause {
			t.Errorf("%s: %q %+v, want %q %+v", how, says(got), got, says(last), last)
		}
		if w := r.log.at(slog.LevelWarn); len(w) != freeFailures+1 || w[freeFailures]["event"] != got.Event {
			t.Errorf("%s: event %q, warnings %v", how, got.Event, w)
		}
	}
}

// Only where the client is whoever runs the host, it hears a line of what a server
// said that did not start, shortened and without what cannot be printed.
func TestLastWordsAreForOperators(t *testing.T) {
	quoted := "no [31mlicense[0m in /etc: "
	quoted += strings.Repeat("\u00e9", (maxQuoted-len(quoted))/2)
	for _, tt := range []struct {
		up   func(*Upstream)
		role string
		want string
	}{
		{func(*Upstream) {}, "dies-wordy", "fake did not start: exit status 3: " + quoted},
		{func(u *Upstream) { u.Shared = true }, "dies-wordy", "fake did not start: exit status 3: " + quoted},
		{func(*Upstream) {}, "dies", "fake did not start: exit status 3: cannot find the license"},
	} {
		for _, operate := range []bool{false, true} {
			command := fakeCommand(tt.role)
			up := Upstream{Command: &command}
			tt.up(&up)
			r := newRigOf(t, up)
			r.host.ClientsOperate = operate
			c := r.attach("k")
			c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", []byte(`{}`)))
			want := tt.want
			if !operate {
				want = "fake did not start: exit status 3"
			}
			if end := c.end(); says(end) != want {
				t.Errorf("clients operate: %v: %q, want %q", operate, says(end), want)
			}
			c.returned()
		}
	}
	r := newRig(t, fakeCommand())
	r.host.ClientsOperate = true
	c := r.start("k")
	c.call("stderr", 1)
	c.send("exit", 5)
	if end := c.end(); says(end) != "fake exited (exit status 5)" {
		t.Errorf("one that had started: %q", says(end))
	}
	c.returned()
}

// What a process says last of all, when it is told that nobody listens any more, is in its
// event, too.
func TestEventHasTheLastWords(t *testing.T) {
	t.Parallel()
	r := newRig(t, process.Command{Path: "/bin/sh", Args: []string{"-c", "exec 1>&-; echo early >&2; cat >/dev/null; echo late >&2"}})
	c := r.attach("a-long-key")
	end := c.end()
	c.returned()
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.events[end.Event]
	if fmt.Sprint(e.Stderr) != "[early late]" || e.Kind != observe.ServerNotBegun || e.Session != "a-long-k" || e.Failures != 1 || e.PID == 0 || e.Began.IsZero() {
		t.Errorf("%+v", e)
	}
}

// D07: a remote server that dies under the sessions of several clients is one event,
// and one line that says how many they and their calls were.
func TestD07_RemoteDiesUnderSeveral(t *testing.T) {
	t.Parallel()
	r, f := remoteRig(t)
	var all []*client
	var servers []*jsonrpc.PipeConn
	for i := range 3 {
		c := r.attach(fmt.Sprint(i))
		id := c.send("initialize", 0)
		s := f.welcome()
		c.wait(id)
		for range i + 1 {
			c.send("tools/call", 1)
			recv(s)
		}
		all, servers = append(all, c), append(servers, s)
	}
	for _, s := range servers {
		s.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionLost, Delivered: true})
	}
	events := make(map[string]bool)
	for _, c := range all {
		end := c.end()
		if says(end) != "fake broke off the connection (connection lost)" || !end.Delivered {
			t.Errorf("%q, %+v", says(end), end)
		}
		events[end.Event] = true
		c.returned()
	}
	w := r.warned("upstream ended unexpectedly", 6)
	if len(events) != 1 || !events[fmt.Sprint(w["event"])] || w["streams"] != 3.0 || w["cause"] != "connection lost" {
		t.Errorf("events %v, warning %v", events, w)
	}
	r.host.Stop(t.Context())
	r.warned("upstream ended unexpectedly", 6)
}

// What is gathered is told before the host has stopped.
func TestStopTellsLosses(t *testing.T) {
	r, f := remoteRig(t)
	c, s := begin(r, f)
	s.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionLost, Delivered: true})
	c.end()
	c.returned()
	r.host.Stop(t.Context())
	if w := r.log.at(slog.LevelWarn); len(w) != 1 || w[0]["msg"] != "upstream ended unexpectedly" {
		t.Errorf("warnings: %v", w)
	}
}

// A remote server that cannot be asked for its era leaves one line, which all whom that
// concerns name, also those who ask again soon.
func TestNotAskedIsOneEvent(t *testing.T) {
	refused := &jsonrpc.ClosedError{Cause: jsonrpc.HTTPCause(401), Says: "needs OAuth (HTTP 401)", Lasting: true}
	r := newRigOf(t, Upstream{
		Dial:       func(context.Context) (jsonrpc.Conn, error) { return nil, refused },
		DialModern: func(context.Context) (jsonrpc.Conn, error) { return nil, refused },
		Probe:      func(context.Context) (bool, error) { return false, refused },
	})
	events := make(map[string]bool)
	for i := range 3 {
		c := r.attachIn(fmt.Sprint(i), mcp.Modern)
		end := c.end()
		if says(end) != "fake needs OAuth (HTTP 401)" || !end.Lasting || end.Delivered {
			t.Errorf("%q, %+v", says(end), end)
		}
		events[end.Event] = true
		c.returned()
	}
	w := r.log.at(slog.LevelWarn)
	if len(w) != 1 || len(events) != 1 || !events[fmt.Sprint(w[0]["event"])] || w[0]["why"] != "needs OAuth (HTTP 401)" {
		t.Errorf("events %v, warnings %v", events, w)
	}
}

// A session that a remote server does not let begin is one line, which says why.
func TestD48_RemoteRefusesUs(t *testing.T) {
	refused := &jsonrpc.ClosedError{Cause: jsonrpc.HTTPCause(401), Says: "needs OAuth (HTTP 401)", Lasting: true}
	r := newRigOf(t, Upstream{Dial: func(context.Context) (jsonrpc.Conn, error) { return nil, refused }})
	c := r.attach("k")
	end := c.end()
	c.returned()
	if says(end) != "fake needs OAuth (HTTP 401)" || !end.Lasting || end.Cause != jsonrpc.HTTPCause(401) {
		t.Errorf("%q, %+v", says(end), end)
	}
	if w := r.log.at(slog.LevelWarn); len(w) != 1 || w[0]["why"] != "needs OAuth (HTTP 401)" || w[0]["event"] != end.Event {
		t.Errorf("warnings: %v", w)
	}
}

// Who asks again later hears of another event: the same one would say that nothing was tried
// since. The warning is not given again.
func TestNotAskedLaterIsAnotherEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := failureLog{log: slog.New(slog.NewTextHandler(&out, nil)), hooks: &observe.Hooks{}, notAsked: make(map[string]askFailure)}
		refused := &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}
		first := jsonrpc.EndOf(f.cannotAsk("docs", refused), jsonrpc.Cause{}).Event
		soon := jsonrpc.EndOf(f.cannotAsk("docs", refused), jsonrpc.Cause{}).Event
		time.Sleep(gathered + time.Millisecond)
		later := jsonrpc.EndOf(f.cannotAsk("docs", refused), jsonrpc.Cause{}).Event
		if first == "" || soon != first || later == first {
			t.Errorf("events %q, %q and %q", first, soon, later)
		}
		if n := strings.Count(out.String(), "WARN"); n != 1 {
			t.Errorf("%d warnings: %s", n, &out)
		}
	})
}
