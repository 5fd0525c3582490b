package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func main() {
	tuneMemory()
	tuneProcessors()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() { proxy.ReapOrphans(ctx) })
	code := run(ctx, os.Args[1:])
	cancel()
	wg.Wait()
	os.Exit(code)
}

// run runs the program with arguments and returns its exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errAnswerIsNo) { // the command has printed the answer
		return exitError
	}
	if problems, ok := errors.AsType[config.Problems](err); ok {
		for _, p := range problems {
			fmt.Fprintln(stderr, p)
		}
		return exitUsage
	}
	fmt.Fprintln(stderr, "mcp-proxy:", strings.ReplaceAll(err.Error(), "\n", "\n  ")) // a line that a server wrote must not look like ours
	if _, ok := errors.AsType[*runError](err); ok {
		return exitError
	}
	return exitUsage
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "mcp-proxy",
		Short:         "Fans one MCP client out to several MCP servers",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          withoutCommand,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(unknownFlag)
	// cobra would print it with a template. For a program that executes templates, the linker keeps every exported
	// method of every type that it has: 3.8 MB.
	root.Flags().BoolP("version", "v", false, "version for mcp-proxy")
	group(root, "Serve clients:", newServe(), newStdio(), newConnect(), newHost(), newReplay())
	group(root, "Inspect a configuration or a server:", newCheck(), newDoctor(), newTools(), newCall(), newExplain(), newSchema())
	group(root, "Inspect a running proxy:", newStatus(), newTop(), newCalls(), newTap(), newHealthcheck())
	group(root, "Log in to servers:", newLogin(), newLogout())
	root.AddCommand(newVersion())
	strict(root)
	return root
}

// strict makes help and completion, which cobra adds, refuse a word that names no command.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, words []string) error {
				about, rest, err := root.Find(words)
				if err == nil && about.HasSubCommands() {
					err = unknownCommand(about, rest)
				}
				return err
			}
		case "completion":
			c.Args, c.RunE = unknownCommand, withoutCommand
		}
	}
}

// group adds commands under a title in the help.
func group(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return printJSON(proxy.BuildOf())
			}
			return printVersion()
		},
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func printVersion() error {
	if _, err := fmt.Fprintln(stdout, "mcp-proxy", proxy.Version()); err != nil {
		return &runError{err}
	}
	return nil
}
