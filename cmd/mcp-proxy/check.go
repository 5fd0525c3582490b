package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A check is what the command of that name is asked.
type check struct {
	file        string
	begin, json bool
}

func newCheck() *cobra.Command {
	var c check
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Validate a configuration: one line for each mistake, exit code 2",
		Long: "Validates a configuration and what it names: commands that are not there, and files of tokens, keys, headers and TLS that\n" +
			"cannot be used. Nothing is started without --start. Each mistake is a line with file and key, and the exit code is 2.\n" +
			"With --start each server is started, asked for its lists and stopped. The exit code is 1 if that fails.",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return errors.New("check takes one FILE")
			case len(args) == 1 && c.file != "":
				return errors.New("check takes FILE or --config FILE, not both")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.file = args[0]
			}
			return c.run(cmd.Context())
		},
	}
	addConfigFlag(cmd, &c.file)
	cmd.Flags().BoolVar(&c.begin, "start", false, "start each server, list what it offers, and stop it")
	addJSONFlag(cmd, &c.json)
	return cmd
}

func (c *check) run(ctx context.Context) error {
	cfg, found := proxy.Inspect(config.Options{File: c.file})
	if !c.json {
		printInspection(found)
	}
	if c.begin && found.OK {
		if err := c.start(ctx, cfg, found); err != nil {
			return err
		}
	}
	if c.json {
		if err := printJSON(found); err != nil {
			return &runError{err}
		}
	}
	switch {
	case len(found.Problems) > 0:
		return found.Problems
	case !found.OK:
		return errAnswerIsNo
	}
	return nil
}

// start tries each server, and prints a line for it.
func (c *check) start(ctx context.Context, cfg *config.Config, found *proxy.Inspection) error {
	log, err := newLogger(stderr, "auto", "error")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := found.Try(ctx, cfg, log); err != nil {
		return failed(ctx, err)
	}
	if !c.json {
		for i := range found.Trials {
			fmt.Fprintln(stdout, trialLine(&found.Trials[i]))
		}
	}
	return nil
}

// printInspection prints what is well, and warnings; problems are errors.
func printInspection(found *proxy.Inspection) {
	for _, w := range found.Warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	if !found.OK {
		return
	}
	n := len(found.Upstreams)
	fmt.Fprintf(stdout, "%s: ok, %d %s", found.File, n, plural("upstream", n))
	if n := len(found.Links); n > 0 {
		fmt.Fprintf(stdout, ", %d %s", n, plural("link", n))
	}
	fmt.Fprintln(stdout)
}

// trialLine says in one line what came of a trial, and of one that failed the last word, too.
func trialLine(t *proxy.Trial) string {
	name := cmp.Or(t.Upstream, "link "+t.Link)
	if t.OK() {
		return fmt.Sprintf("%s: ok, started in %s, %s", name, latency(t.StartMs), offers(t))
	}
	line := name + ": " + t.Failed
	if last := lastWord(t.Stderr); last != "" {
		line += ": " + oneLine(last, 200)
	}
	return line
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

// offers says how much an upstream offers.
func offers(t *proxy.Trial) string {
	var all []string
	for _, l := range []struct {
		noun string
		n    int
	}{{"tool", t.Tools.Count}, {"prompt", t.Prompts.Count}, {"resource", t.Resources.Count}, {"template", t.Templates.Count}} {
		if l.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", l.n, plural(l.noun, l.n)))
		}
	}
	return cmp.Or(strings.Join(all, ", "), "offers nothing")
}

func plural(noun string, n int) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
