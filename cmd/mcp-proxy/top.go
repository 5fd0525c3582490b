package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newTop() *cobra.Command {
	var ask adminFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the upstreams and the calls in flight of a running proxy or host",
		Long: "Shows the upstreams, the busiest first, and the calls in flight, the oldest first, again and again until q or ^C.\n" +
			"Rates, errors and latencies are those of the last minute. With --json it prints a line of JSON each time, with the answers of status and calls.",
		Example: "  mcp-proxy top\n  mcp-proxy top --json >> load.ndjson",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runTop(cmd.Context(), &ask) },
	}
	ask.add(cmd)
	return cmd
}

// between is the time between two samples.
const between = time.Second

// A sample holds the answers of one moment.
type sample struct {
	Status json.RawMessage `json:"status"`
	Calls  json.RawMessage `json:"calls"`
}

func runTop(ctx context.Context, ask *adminFlags) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	if ask.json {
		return printLooks(ctx, ask)
	}
	if !stdout.isTerminal() {
		return errors.New("top needs a terminal; --json does not, and mcp-proxy status looks once")
	}
	first, err := lookAt(ctx, ask)
	if err != nil {
		return err
	}
	return watch(ctx, ask, first)
}

// lookAt takes a sample. It looks the process up each time: another may have taken its place.
func lookAt(ctx context.Context, ask *adminFlags) (*sample, error) {
	c, err := ask.client()
	if err != nil {
		return nil, err
	}
	l := new(sample)
	if err := c.getJSON(ctx, "/status", &l.Status); err != nil {
		return nil, err
	}
	if err := c.getJSON(ctx, "/calls", &l.Calls); err != nil {
		return nil, err
	}
	return l, nil
}

// printLooks prints a sample a line, as JSON, until ctx is done.
func printLooks(ctx context.Context, ask *adminFlags) error {
	for {
		l, err := lookAt(ctx, ask)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(stdout, string(text)); err != nil {
			return &runError{err}
		}
		if !pause(ctx) {
			return nil
		}
	}
}

// pause waits until the next sample, and reports false if ctx is done.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(between):
		return true
	case <-ctx.Done():
		return false
	}
}

// Escape sequences: the alternate screen without a cursor, and back; the cursor to the top left; clear the
// rest of a line, and of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	goHome      = "\x1b[H"
	clearLine   = "\x1b[K\r\n"
	clearRest   = "\x1b[J"
)

// watch draws until ctx is done or the user quits. It continues if the process does not answer, since
// that may be back.
func watch(ctx context.Context, ask *adminFlags, l *sample) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		if before, err := term.MakeRaw(in); err == nil {
			defer func() { _ = term.Restore(in, before) }()
			go quitOn(os.Stdin, quit) // may outlive watch: a read of a terminal cannot be interrupted, and the program ends
		}
	}
	stdout.command(enterScreen)
	defer stdout.command(leaveScreen)
	for said := error(nil); ; {
		wide, high, err := term.GetSize(int(stdout.file.Fd()))
		if err != nil || wide < 1 || high < 1 {
			wide, high = 80, 24
		}
		stdout.command(goHome + frame(l.screen(said, wide, high)) + clearRest)
		if !pause(ctx) {
			return nil
		}
		next, err := lookAt(ctx, ask)
		if said = err; err == nil {
			l = next
		}
	}
}

// quitOn calls quit at q, ^C, ^D or the end of the input.
func quitOn(in io.Reader, quit func()) {
	defer quit()
	var key [1]byte
	for {
		if n, err := in.Read(key[:]); err != nil || n > 0 && bytes.IndexByte([]byte("qQ\x03\x04"), key[0]) >= 0 {
			return
		}
	}
}

// frame formats a screen of lines for a terminal in raw mode.
func frame(screen string) string {
	return strings.ReplaceAll(strings.TrimSuffix(printable(screen), "\n"), "\n", clearLine) + "\x1b[K"
}

// screen draws a sample, and the error of a later one.
func (l *sample) screen(err error, wide, high int) string {
	var now proxy.Snapshot
	var calls proxy.Calls
	err = cmp.Or(err, json.Unmarshal(l.Status, &now), json.Unmarshal(l.Calls, &calls))
	says := summary(&now, &calls)
	if err != nil {
		says = "no answer: " + err.Error()
	}
	var out bytes.Buffer
	fmt.Fprintln(&out, oneLine(processLine(now.Process, calls.Now), wide))
	fmt.Fprintln(&out, oneLine(says, wide))
	slices.SortStableFunc(now.Traffic, func(a, b proxy.Traffic) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.InFlight, a.InFlight))
	})
	upstreams, waiting := upstreamRows(&now, calls.Now), callRows(&calls)
	left := high - 7 // without 2 lines above, 2 heads, 2 empty lines, 1 below
	replicas := replicaRows(&now)
	replicas.atMost(min(left/2-4, 10))
	if len(replicas.lines) > 0 {
		left -= len(replicas.lines) + 3 // with a head, an empty line, and one for those left out
	} else {
		replicas.more = 0 // no room at all
	}
	upstreams.atMost(max(left/2, left-len(waiting.lines)-1) - 1)
	waiting.atMost(left - len(upstreams.lines) - 2)
	for _, r := range []*rows{upstreams, replicas, waiting} {
		if r == replicas && len(r.lines) == 0 {
			continue
		}
		fmt.Fprintln(&out)
		r.write(&out, wide)
	}
	return out.String()
}

// summary returns the totals of all upstreams in one line.
func summary(now *proxy.Snapshot, calls *proxy.Calls) string {
	var rate float64
	requests, errors := 0, 0
	for _, t := range now.Traffic {
		rate, requests, errors = rate+t.PerSecond, requests+t.Requests, errors+t.Errors
	}
	line := fmt.Sprintf("%d in flight, %.1f requests a second", len(calls.Calls)+calls.LeftOut, rate)
	if requests > 0 {
		line += fmt.Sprintf(", %.1f %% errors", 100*float64(errors)/float64(requests))
	}
	if now.Process.Role == "proxy" {
		line += fmt.Sprintf(", %d clients", len(now.Sessions))
	}
	return line + " (q quits)"
}
