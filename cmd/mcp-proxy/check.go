package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newCheck() *cobra.Command {
	var file string
	var begin bool
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
			case len(args) == 1 && file != "":
				return errors.New("check takes FILE or --config FILE, not both")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				file = args[0]
			}
			cfg, err := runCheck(file)
			if err != nil || !begin {
				return err
			}
			log, err := newLogger(os.Stderr, "auto", "error")
			if err != nil {
				return err
			}
			return runCheckStart(cmd.Context(), cfg, log)
		},
	}
	addConfigFlag(cmd, &file)
	cmd.Flags().BoolVar(&begin, "start", false, "start each server, list what it offers, and stop it")
	return cmd
}

func runCheck(file string) (*config.Config, error) {
	cfg, warnings, err := config.Load(config.Options{File: file})
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	if problems := proxy.Check(cfg); len(problems) > 0 {
		return nil, problems
	}
	fmt.Printf("%s: ok, %d %s", cfg.File, len(cfg.Upstreams), plural("upstream", len(cfg.Upstreams)))
	if n := len(cfg.Links); n > 0 {
		fmt.Printf(", %d %s", n, plural("link", n))
	}
	fmt.Println()
	return cfg, nil
}

// runCheckStart tries each server, and prints a line for it.
func runCheckStart(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	trials, err := proxy.Try(ctx, cfg, log)
	if err != nil {
		return failed(ctx, err)
	}
	well := true
	for _, t := range trials {
		fmt.Println(trialLine(&t))
		well = well && t.OK()
	}
	if !well {
		return errAnswerIsNo
	}
	return nil
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
