//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// consoleLines writes records of all kinds to a log.
func consoleLines(log *slog.Logger, at func(time.Duration)) {
	files := log.With("upstream", "files", "session", "7IZKUPGG")
	log.Warn("configuration", "warning", `mcp.json: mcpServers.docs.icon: not known`)
	banner := []string{
		"╭──────────────────────────╮", "│                          │", "│   \x1b[1;34mFastMCP\x1b[0m  2.11.3       │", "╰──────────────────────────╯",
		"▄▀▀ ▄▀█ █▀▀", "==========", "[11/22/25 16:20:01] INFO  Starting server \x1b]8;;http://x\x07docs\x1b]8;;\x07", "  indented", "bell\a and \x1b[2Jclear",
	}
	for range 2 {
		for _, line := range banner {
			files.Info("upstream stderr", "line", line)
		}
		at(5 * time.Second)
	}
	files.Info("upstream stderr", "line", "[11/22/25 16:20:09] INFO  Starting server docs")
	files.Info("upstream stderr", "line", "something else")
	files.Info("upstream stderr: lines dropped", "dropped", 12)
	at(time.Minute)
	files.Info("upstream stderr", "line", "something else")
	files.Warn("upstream ended unexpectedly", "cause", "signal: killed", "in_flight", 2, "dur", 1234567*time.Microsecond, "event", "k3v9x2ma",
		"stderr", "one\n╰────╯\nthe last word\n\x1b[2mnpm error A complete log of this run can be found in: /root\x1b[0m")
	files.Warn("upstream failed to start", "cause", "exit status 1", "in_flight", 0, "dur", time.Second, "event", "k3v9x2mb", "err", errors.New("exit status 1"))
	log.Warn("link lost", "link", "tools", "event", "k3v9x2mc", "err", errors.New("EOF"), "dur", time.Hour)
	log.Error("token file cannot be used, clients are refused", "token", "ci", "err", errors.New("open /run/secrets/ci: no such file or directory"))
	log.Info("call", "method", "tools/call", "dur", 1500*time.Microsecond, "nothing", "")
	log.Debug("not told")
	log.With("upstream", "a-name-that-is-longer-than-others").Info("upstream says \x1b[31mred\n and more")
	log.With("upstream", "ünïcode").Info(strings.Repeat("long", 30) + " word") //nolint:sloglint // longer than a line
}

// The log for people: on a wide and on a narrow terminal, without one, and with colours.
func TestConsoleLines(t *testing.T) {
	var all strings.Builder
	for _, look := range []struct {
		name  string
		wide  int
		color bool
	}{{"no terminal", 0, false}, {"100 columns, colours", 100, true}, {"50 columns", 50, false}, {"20 columns", 20, false}} {
		fmt.Fprintf(&all, "-- %s --\n", look.name)
		c := &console{obey: func(s string) { all.WriteString(s) }, wide: func() int { return look.wide }, color: look.color, folds: make(map[string]*fold)}
		c.know("files")
		now := time.Date(2026, 11, 22, 16, 20, 1, 0, time.Local)
		log := slog.New(&timedHandler{&consoleHandler{console: c, level: slog.LevelInfo}, &now})
		consoleLines(log, func(d time.Duration) { now = now.Add(d) })
	}
	golden(t, "console.golden", strings.ReplaceAll(all.String(), "\x1b", "␛"))
}

// golden compares got with a file in testdata; UPDATE_GOLDEN=1 writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (UPDATE_GOLDEN=1 writes it); got\n%s", file, got)
	}
}

// Programs read the JSON of the log: it stays the same, byte for byte.
func TestJSONLines(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	log, err := newLogger(&output{file: out}, "auto", "info")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 22, 16, 20, 1, 0, time.UTC)
	consoleLines(slog.New(&timedHandler{log.Handler(), &now}), func(d time.Duration) { now = now.Add(d) })
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "log.golden", string(text))
}

func TestWithoutArt(t *testing.T) {
	for line, want := range map[string]string{
		"│ hi │":             "hi",
		"┌───┐":              "",
		"*** *** ***":        "",
		"  Error: a | b":     "  Error: a | b",
		"\x1b[31mred\x1b[0m": "red",
		"⣿⣿⣿":                "",
		"100%|████████| 3/3": "100%|        | 3/3",
		"日本語":                "日本語",
		"\x1b[":              "",
	} {
		if got := withoutArt(line); got != want && strings.TrimSpace(printable(got)) != strings.TrimSpace(want) {
			t.Errorf("%q became %q, want %q", line, got, want)
		}
	}
}

func FuzzConsole(f *testing.F) {
	f.Add("╭──╮", 30)
	f.Add("\x1b]8;;x\x1b\\docs \x9b31m\n\r\t", 80)
	f.Fuzz(func(t *testing.T, line string, wide int) {
		var out strings.Builder
		c := &console{obey: func(s string) { out.WriteString(s) }, wide: func() int { return wide % 1000 }, folds: make(map[string]*fold)}
		log := slog.New(&consoleHandler{console: c})
		log.Info("upstream stderr", "upstream", line, "line", line)
		log.Warn(line, line, line) //nolint:sloglint // anything
		if strings.ContainsAny(out.String(), "\x1b\r\a\u009b\b") {
			t.Errorf("a terminal would obey %q", out.String())
		}
	})
}

// A fold forgets: a line that comes again after a while is written again.
func TestFold(t *testing.T) {
	var f fold
	now := time.Now()
	for i, step := range []struct {
		after  time.Duration
		text   string
		before string
		fresh  bool
	}{
		{0, "2026-11-22T16:20:01Z hello", "", true},
		{1, "2026-11-22T16:20:02Z hello", "", false},
		{1, "hello", "", false},
		{1, "2 hellos", "(2 lines as before)", true},
		{1, "2026-11-22 16:20:02,123 - hello", "", false},
		{foldTime, "hello", "(1 line as before)", true},
		{1, "3 hellos", "", true},
	} {
		now = now.Add(step.after)
		before, fresh := f.fresh(now, step.text)
		if before != step.before || fresh != step.fresh {
			t.Errorf("step %d: %q, %v", i, before, fresh)
		}
	}
	for i := range 3 * foldLines {
		f.fresh(now, fmt.Sprint("line ", i))
	}
	if len(f.told) != foldLines {
		t.Error(len(f.told), "lines are remembered")
	}
}

// A client is announced once, by its own name, and not at all if it sends no request.
func TestVisitors(t *testing.T) {
	var told []string
	v := clientLines{tell: func(text string) { told = append(told, text) }}
	for _, id := range []string{"A", "B", "C"} {
		v.came(proxy.Session{ID: id, Transport: "http", Principal: map[string]string{"B": "anonymous"}[id]})
	}
	for range 3 {
		v.asked(proxy.Request{Session: "A", Client: "claude\x1b[2J"}, proxy.End{})
		v.asked(proxy.Request{Session: "B", Client: "inspector"}, proxy.End{})
		v.asked(proxy.Request{Session: "B", Client: "other"}, proxy.End{})
		v.asked(proxy.Request{Session: "unknown", Client: "x"}, proxy.End{})
	}
	for _, id := range []string{"A", "B", "C", "A"} {
		v.left(proxy.Session{ID: id}, proxy.End{Took: 61 * time.Second, Outcome: proxy.OK})
	}
	want := []string{
		"claude connected (http, session A)", "inspector connected (http, session B)", "other connected (http, session B)",
		"clients do not authenticate here, so these clients are one, and servers remember the same for both. Give them tokens (auth.tokens) to separate them.",
		"claude disconnected after 1m01s", "inspector, other disconnected after 1m01s",
	}
	if got := strings.Join(told, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("told\n%s", got)
	}
}

// A slow start of an upstream is reported while it continues.
func TestLateStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		c := &console{obey: func(s string) { out.WriteString(s) }, wide: func() int { return 50 }, live: true, folds: make(map[string]*fold)}
		cfg := &config.Config{Upstreams: []config.Upstream{{Name: "slow"}, {Name: "quick"}}}
		n := newReporter(slog.New(&consoleHandler{console: c}), cfg)
		stop := n.begin(t.Context(), slowTrials)
		time.Sleep(time.Minute)
		stop()
		want := "quick   ready  offers nothing  0.0 s\nslow    starting  the first start may download it\nslow    ready  offers nothing  0.0 s\n"
		if out.String() != want {
			t.Errorf("it says\n%s", &out)
		}
	})
}

// slowTrials tries two upstreams, of which one takes 20 s to start.
func slowTrials(_ context.Context, _ []config.Upstream, tell func(*proxy.Trial)) {
	tell(&proxy.Trial{Upstream: "quick"})
	time.Sleep(20 * time.Second)
	tell(&proxy.Trial{Upstream: "slow"})
}

// The failure of an upstream is told once, by its trial, even if a client or the background has found it before that:
// as soon as the proxy serves, at the start and in a reload.
func TestFailureBeforeTheTrial(t *testing.T) {
	var out strings.Builder
	c := &console{obey: func(s string) { out.WriteString(s) }, wide: func() int { return 0 }, live: true, folds: make(map[string]*fold)}
	cfg := &config.Config{Upstreams: []config.Upstream{{Name: "a"}}}
	log := slog.New(&consoleHandler{console: c})
	n := newReporter(log, cfg)
	fails := func(upstream, event string) {
		log.Warn("upstream failed to start", "upstream", upstream, "cause", "exit status 1", "in_flight", 0, "event", event)
	}
	fails("a", "othera00")
	stop := n.begin(t.Context(), func(_ context.Context, upstreams []config.Upstream, tell func(*proxy.Trial)) {
		for _, u := range upstreams {
			tell(&proxy.Trial{Upstream: u.Name, Failed: "did not start", Event: "trial" + u.Name})
		}
	})
	reload := n.adopting(func(cfg *config.Config) error {
		for _, u := range cfg.Upstreams[1:] {
			fails(u.Name, "other"+u.Name)
		}
		if len(cfg.Upstreams) > 2 {
			return errors.New("rejected")
		}
		return nil
	})
	b := config.Upstream{Name: "b"}
	if err := reload(&config.Config{Upstreams: append(cfg.Upstreams, b)}); err != nil {
		t.Error(err)
	}
	if err := reload(&config.Config{Upstreams: append(cfg.Upstreams, b, config.Upstream{Name: "c"})}); err == nil {
		t.Error("it was not rejected")
	}
	stop()
	for _, name := range []string{"a", "b"} {
		if n := strings.Count(out.String(), "(more: mcp-proxy explain trial"+name); n != 1 || strings.Contains(out.String(), "other") {
			t.Errorf("%s has failed %d times in\n%s", name, n, &out)
		}
	}
	out.Reset()
	fails("c", "later000") // the rejected configuration hides nothing
	if !strings.Contains(out.String(), "later000") {
		t.Errorf("it says\n%s", &out)
	}
}

// A timedHandler gives records the time of a clock.
type timedHandler struct {
	slog.Handler
	now *time.Time
}

func (h *timedHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Time = *h.now
	return h.Handler.Handle(ctx, r)
}

func (h *timedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &timedHandler{h.Handler.WithAttrs(attrs), h.now}
}
