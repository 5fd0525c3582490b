package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A check holds the arguments of the command.
type check struct {
	file string
	json bool
}

func newCheck() *cobra.Command {
	var c check
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Validate a configuration: one line for each mistake, exit code 2",
		Long: "Validates a configuration and what it names: missing commands, and unusable files of tokens, keys, headers and TLS.\n" +
			"It starts nothing: doctor does that. Each mistake is a line with file and key, and the exit code is 2.",
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
			return c.run()
		},
	}
	addConfigFlag(cmd, &c.file)
	addJSONFlag(cmd, &c.json)
	return cmd
}

func (c *check) run() error {
	found := proxy.Inspect(config.Options{File: c.file})
	if !c.json {
		printInspection(found)
	} else if err := printJSON(found); err != nil {
		return &runError{err}
	}
	if !found.OK {
		return found.Problems
	}
	return nil
}

// printInspection prints the warnings and a summary. The caller returns the problems as errors.
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
