package main

import (
	"fmt"
	"log/slog"
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
