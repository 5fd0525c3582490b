package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newCheck() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Validate a configuration: one line for each mistake, exit code 2",
		Long: "Validates a configuration and what it names: commands that are not there, and files of tokens, keys, headers and TLS that\n" +
			"cannot be used. Nothing is started. Each mistake is a line with file and key, and the exit code is 2.",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return errors.New("check takes one FILE")
			case len(args) == 1 && file != "":
				return errors.New("check takes FILE or --config FILE, not both")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				file = args[0]
			}
			return runCheck(file)
		},
	}
	addConfigFlag(cmd, &file)
	return cmd
}

func runCheck(file string) error {
	cfg, warnings, err := config.Load(config.Options{File: file})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	if problems := proxy.Check(cfg); len(problems) > 0 {
		return problems
	}
	fmt.Printf("%s: ok, %d %s", cfg.File, len(cfg.Upstreams), plural("upstream", len(cfg.Upstreams)))
	if n := len(cfg.Links); n > 0 {
		fmt.Printf(", %d %s", n, plural("link", n))
	}
	fmt.Println()
	return nil
}

func plural(noun string, n int) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
