package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// newLogger returns the program's log: colours for people at a terminal, JSON
// for everybody else, unless the format says otherwise.
func newLogger(out *os.File, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	terminal := term.IsTerminal(int(out.Fd()))
	switch {
	case format == "text", format == "auto" && terminal:
		return slog.New(tint.NewTextHandler(io.Writer(out), &tint.Options{Level: l, NoColor: !terminal})), nil
	case format == "json", format == "auto":
		return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: l})), nil
	}
	return nil, fmt.Errorf("--log-format %q: use text, json or auto", format)
}
