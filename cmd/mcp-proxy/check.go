package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newCheck() *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Validate a configuration: one line for each mistake, exit code 2",
		Long: "Validates a configuration and what it names: missing commands, and unusable files of tokens, keys, headers and TLS.\n" +
			"It starts nothing: doctor does that. Each mistake is a line with file and key, and the exit code is 2.",
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
			return runCheck(file, asJSON)
		},
	}
	addConfigFlag(cmd, &file)
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func runCheck(file string, asJSON bool) error {
	found := proxy.Inspect(config.Options{File: file})
	err := printAnswer(found, asJSON, func() { printInspection(found) })
	if err == nil && !found.OK {
		return found.Problems
	}
	return err
}

// printInspection prints the warnings and a summary. The problems are the error of runCheck, which main prints.
func printInspection(found *proxy.Inspection) {
	for _, w := range found.Warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	if !found.OK {
		return
	}
	text := fmt.Sprintf("%s: ok, %s", found.File, count(len(found.Upstreams), "upstream"))
	if n := len(found.Links); n > 0 {
		text += ", " + count(n, "link")
	}
	fmt.Fprintln(stdout, text)
}

func newDoctor() *cobra.Command {
	var d direct
	cmd := &cobra.Command{
		Use:   "doctor [URL | -- CMD ARGS…]",
		Short: "Start each server once and report problems",
		Long: "Starts each server of a configuration, two at a time, or one command, or connects to one URL; asks for its\n" +
			"lists, and stops it. One that takes long is started once more, alone. It prints how long that took, how much it offers, and problems, with what to do\n" +
			"about it. The exit code is 1 if something must be fixed.",
		Example: "  mcp-proxy doctor --config mcp-proxy.yaml\n" +
			"  mcp-proxy doctor -- npx -y @modelcontextprotocol/server-everything",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := d.loadArgs(cmd, args)
			if err != nil {
				return err
			}
			return runDoctor(cmd.Context(), s, d.json)
		},
	}
	d.addFlags(cmd)
	return cmd
}

func runDoctor(ctx context.Context, s *start, asJSON bool) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	found, err := proxy.Diagnose(ctx, s.cfg, proxy.Options{Log: s.log, CacheDir: cacheDir()})
	if err != nil {
		return failed(ctx, err)
	}
	if now := runningReplica(ctx, s.cfg); now != nil {
		found.Running(now)
	}
	err = printAnswer(found, asJSON, func() { printDiagnosis(found) })
	if err == nil && found.Ill() {
		return errAnswerIsNo
	}
	return err
}

// runningReplica returns the state of a proxy of this user that runs with a configuration of replicas; nil for none.
func runningReplica(ctx context.Context, cfg *config.Config) *proxy.Snapshot {
	dir, err := adminDir()
	if err != nil || cfg.Cluster.KeyFile == "" || cfg.File == "" {
		return nil
	}
	file, err := os.Stat(cfg.File)
	if err != nil {
		return nil
	}
	for _, p := range processesIn(dir) {
		now := new(proxy.Snapshot)
		if onSocket(p.socket).getJSON(ctx, "/status", now) != nil || len(now.Replicas) == 0 {
			continue
		}
		at := now.Process.File
		if !filepath.IsAbs(at) {
			at = filepath.Join(now.Process.Dir, at)
		}
		if its, err := os.Stat(at); err == nil && os.SameFile(file, its) {
			return now
		}
	}
	return nil
}

func printDiagnosis(d *proxy.Diagnosis) {
	list := rows{head: "UPSTREAM\tBY\tSPEAKS\tSTART\tLISTS\tTOOLS\tPROMPTS\tRESOURCES"}
	for i := range d.Upstreams {
		if t := &d.Upstreams[i]; t.OK() {
			list.add(t.Upstream, t.Transport, speaks(t), latency(t.StartMs), latency(t.ListMs),
				fmt.Sprintf("%d (%s)", t.Tools.Count, size(t.Tools.Bytes)), t.Prompts.Count, t.Resources.Count+t.Templates.Count)
		} else if t.Upstream != "" { // else it is a link that is down
			list.add(t.Upstream, t.Transport, speaks(t), "failed")
		}
	}
	list.write(stdout, stdout.width())
	for _, f := range d.Findings {
		printFinding(f)
		if f.Code == "failed" {
			printStderr(d, f.Upstream)
		}
	}
	if len(d.Findings) == 0 {
		fmt.Fprintln(stdout, "\nNo problems found.")
	}
}

// speaks returns the eras and the version of an upstream: "legacy 2025-11-25".
func speaks(t *proxy.Trial) string {
	return strings.TrimSpace(strings.Join(t.Speaks, "+") + " " + t.Version)
}

func printFinding(f proxy.Finding) {
	name := ""
	if f.Upstream != "" {
		name = f.Upstream + ": "
	}
	fmt.Fprintf(stdout, "\n%s: %s%s\n  %s.\n", f.Level, name, printable(f.What), f.Do)
}

// printStderr prints the last lines of stderr of an upstream that failed.
func printStderr(d *proxy.Diagnosis, upstream string) {
	for i := range d.Upstreams {
		if t := &d.Upstreams[i]; t.Upstream == upstream {
			for _, line := range t.Stderr {
				fmt.Fprintln(stdout, "  | "+printable(line))
			}
		}
	}
}

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration",
		Long:    "Prints the JSON Schema of the configuration, with which editors complete and check it.",
		Example: "  mcp-proxy schema > mcp-proxy.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := stdout.Write(config.Schema()); err != nil {
				return &runError{err}
			}
			return nil
		},
	}
}
