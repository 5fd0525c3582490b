package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/lmittmann/tint"
)

// newLogger returns the program's log: lines for people at a terminal, JSON for
// everybody else, or plain text if the format says so.
func newLogger(out *output, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	switch terminal := out.isTerminal(); {
	case terminal && (format == "text" || format == "auto"):
		return slog.New(&consoleHandler{console: newConsole(out), level: l}), nil
	case format == "text":
		return slog.New(tint.NewTextHandler(out, &tint.Options{Level: l, NoColor: true, ReplaceAttr: readable})), nil
	case format == "json", format == "auto":
		return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: l, ReplaceAttr: readable})), nil
	}
	return nil, fmt.Errorf("--log-format %q: use text, json or auto", format)
}

// readable writes durations as people do ("1.5s"; JSON would have nanoseconds),
// and leaves out what says nothing.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Millisecond).String())
	case a.Value.Kind() == slog.KindString && a.Value.String() == "":
		return slog.Attr{}
	}
	return a
}

// A consoleHandler writes the log to a console. It knows lines by their keys: what a server has
// written to its stderr has "line", and the end of something that nobody wanted has "event".
type consoleHandler struct {
	console *console
	level   slog.Level
	skip    func(r *record) bool // others tell of it; nil for nobody
	attrs   []slog.Attr
}

// A record is one line of the log by its keys, of which those that were told are taken out.
type record struct {
	slog.Record
	order []string
	said  map[string]string
}

// Enabled implements [slog.Handler].
func (h *consoleHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// WithGroup implements [slog.Handler]. Nobody groups.
func (h *consoleHandler) WithGroup(string) slog.Handler { return h }

// WithAttrs implements [slog.Handler].
func (h *consoleHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = slices.Concat(h.attrs, attrs)
	return &with
}

// Handle implements [slog.Handler].
func (h *consoleHandler) Handle(_ context.Context, r slog.Record) error {
	seen := &record{Record: r, said: make(map[string]string)}
	for _, a := range h.attrs {
		seen.add(a)
	}
	r.Attrs(func(a slog.Attr) bool {
		seen.add(a)
		return true
	})
	if h.skip == nil || !h.skip(seen) {
		h.console.tell(seen)
	}
	return nil
}

func (r *record) add(a slog.Attr) {
	if a = readable(nil, a); a.Key == "" {
		return
	}
	if _, twice := r.said[a.Key]; !twice {
		r.order = append(r.order, a.Key)
	}
	r.said[a.Key] = a.Value.Resolve().String()
}

// take returns what the first of these keys that is there says, which is told with it.
func (r *record) take(keys ...string) string {
	for _, k := range keys {
		if text := r.said[k]; text != "" {
			delete(r.said, k)
			return text
		}
	}
	return ""
}

// tell writes a line of the log, unless it is as one before.
func (c *console) tell(r *record) {
	name := cmp.Or(r.take("upstream"), r.take("link"), "proxy")
	if line, is := r.said["line"]; is {
		if line = withoutArt(line); line != "" {
			c.folded(r.Time, name, "│ ", dim, line)
		}
		return
	}
	text := r.Message
	if name != "proxy" {
		text = strings.TrimPrefix(text, "upstream ")
	}
	if warning := r.take("warning"); warning != "" {
		text = warning
	}
	if why := r.why(); why != "" {
		text += ": " + why
	}
	event := r.take("event")
	if event != "" {
		text += r.lost()
	}
	if more := r.rest(); more != "" {
		text += " (" + more + ")"
	}
	if event != "" {
		text += "\nmore: mcp-proxy explain " + event
	}
	c.say(r.Time, name, styleOf(r.Level), text)
}

// lost is how many requests an end has cost. How long there was something to end is not told.
func (r *record) lost() string {
	r.take("dur")
	switch n := r.take("in_flight"); n {
	case "", "0":
		return ""
	case "1":
		return ", 1 request was in flight"
	default:
		return ", " + n + " requests were in flight"
	}
}

// why is what a line says about its reason, and the last word of a server that has died.
func (r *record) why() string {
	why, cause, err := r.take("why"), r.take("cause"), r.take("err")
	said := cmp.Or(why, cause)
	if err != "" && err != said {
		said = strings.TrimPrefix(said+": "+err, ": ")
	}
	var last []string
	for line := range strings.Lines(r.take("stderr")) {
		if line = withoutArt(line); line != "" {
			last = append(last, line)
		}
	}
	if word := strings.TrimSpace(lastWord(last)); word != "" {
		said = strings.TrimPrefix(said+": "+oneLine(word, 200), ": ")
	}
	return said
}

// rest is all that was not told: "in_flight=2 method=tools/list". Sessions are numbers to people.
func (r *record) rest() string {
	delete(r.said, "session")
	var all []string
	for _, k := range r.order {
		if text, left := r.said[k]; left {
			all = append(all, fmt.Sprintf("%s=%s", k, text))
		}
	}
	return strings.Join(all, " ")
}

// folded writes a line of a server unless it has written the same a moment ago.
func (c *console) folded(at time.Time, name, mark string, s style, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.folds[name]
	if f == nil {
		if len(c.folds) == mostFolds {
			clear(c.folds)
		}
		f = new(fold)
		c.folds[name] = f
	}
	before, ok := f.fresh(at, text)
	if before != "" {
		c.sayLocked(at, name, s, mark+before)
	}
	if ok {
		c.sayLocked(at, name, s, mark+text)
	}
}

// mostFolds bounds the names whose lines are remembered: upstreams may come and go.
const mostFolds = 256

func styleOf(l slog.Level) style {
	switch {
	case l >= slog.LevelError:
		return red
	case l >= slog.LevelWarn:
		return yellow
	case l < slog.LevelInfo:
		return dim
	}
	return plain
}

// lastWord is the last line of stderr that says anything: that of npm is where its log is.
func lastWord(stderr []string) string {
	for _, line := range slices.Backward(stderr) {
		if !strings.Contains(line, "A complete log of this run can be found in") {
			return line
		}
	}
	return ""
}
