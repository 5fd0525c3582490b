package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmittmann/tint"
)

// newLogger returns the program's log: lines for people on a terminal, else JSON, or plain text
// with format "text".
func newLogger(out *output, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	switch terminal := out.isTerminal(); {
	case terminal && (format == "text" || format == "auto"):
		return slog.New(&consoleHandler{console: newConsole(out), level: l}), nil
	case format == "text":
		return newCounted(out, tint.NewTextHandler(out, &tint.Options{Level: l, NoColor: true, ReplaceAttr: readable})), nil
	case format == "json", format == "auto":
		return newCounted(out, slog.NewJSONHandler(out, &slog.HandlerOptions{Level: l, ReplaceAttr: readable})), nil
	}
	return nil, fmt.Errorf("--log-format %q: use text, json or auto", format)
}

// A countedHandler logs before the next record how many could not be written, because nobody read them or the disk
// was full.
type countedHandler struct {
	slog.Handler
	base    slog.Handler  // without attributes
	dropped *atomic.Int64 // of the output
}

func newCounted(out *output, h slog.Handler) *slog.Logger {
	return slog.New(&countedHandler{h, h, &out.dropped})
}

// Handle implements [slog.Handler].
func (h *countedHandler) Handle(ctx context.Context, r slog.Record) error {
	if n := h.dropped.Swap(0); n > 0 {
		gap := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped: nobody read them, or there was no room for them", 0)
		gap.Add("dropped", n)
		if h.base.Handle(ctx, gap) != nil {
			h.dropped.Add(n - 1) // gap itself was counted
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *countedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &countedHandler{h.Handler.WithAttrs(attrs), h.base, h.dropped}
}

// WithGroup implements [slog.Handler].
func (h *countedHandler) WithGroup(name string) slog.Handler {
	return &countedHandler{h.Handler.WithGroup(name), h.base, h.dropped}
}

// readable formats durations for people ("1.5s"; JSON would have nanoseconds), and drops empty
// attributes.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Millisecond).String())
	case a.Value.Kind() == slog.KindString && a.Value.String() == "":
		return slog.Attr{}
	}
	return a
}

// A consoleHandler writes the log to a console. It distinguishes records by their keys: a line that a
// server wrote to stderr has "line", and the unexpected end of a server has "event".
type consoleHandler struct {
	console *console
	level   slog.Level
	skip    func(r *record) bool // reports whether the reporter writes a record itself; nil for never
	attrs   []slog.Attr
}

// A record is one record of the log, with its attributes by key. take removes those that are in the line already.
type record struct {
	slog.Record
	order []string
	said  map[string]string
}

// Enabled implements [slog.Handler].
func (h *consoleHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// WithGroup implements [slog.Handler]. Our logs have no groups.
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

// take removes the first of keys that has a value, and returns the value.
func (r *record) take(keys ...string) string {
	for _, k := range keys {
		if text := r.said[k]; text != "" {
			delete(r.said, k)
			return text
		}
	}
	return ""
}

// tell writes a record as a line. It suppresses repeated lines of servers.
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

// lost says how many requests an end has failed. It drops how long the server ran.
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

// why returns the reason in a record, and the last line of stderr of a server that died.
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

// rest returns the attributes that are left: "in_flight=2 method=tools/list". It leaves out the session, whose id
// means nothing to people.
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

// folded writes a line of a server unless it repeats a recent one.
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

// mostFolds bounds the names whose lines are remembered: upstreams come and go.
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

// lastWord returns the last line of stderr that helps: npm ends with the path of its log.
func lastWord(stderr []string) string {
	for _, line := range slices.Backward(stderr) {
		if !strings.Contains(line, "A complete log of this run can be found in") {
			return line
		}
	}
	return ""
}
