package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// Exit codes. Anything else that fails is 1.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // bad usage or configuration
)

func main() {
	tuneMemory()
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
	if problems, ok := errors.AsType[config.Problems](err); ok {
		for _, p := range problems {
			fmt.Fprintln(os.Stderr, p)
		}
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "mcp-proxy:", err)
	if _, ok := errors.AsType[*runError](err); ok {
		return exitError
	}
	return exitUsage
}

// A runError is a failure after usage and configuration were found good.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// options are what the flags of most commands say.
type options struct {
	config    string
	listen    []string
	logFormat string
	logLevel  string
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "mcp-proxy",
		Short:         "Fans one MCP client out to several MCP servers",
		Version:       proxy.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          commandNeeded,
	}
	root.SetFlagErrorFunc(unknownFlag)
	root.SetVersionTemplate("mcp-proxy {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newServe(), newStdio(), newConnect(), newHost(), newCheck(), newVersion())
	return root
}

func newServe() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "serve [-- CMD ARGS…]",
		Short: "Serve clients over Streamable HTTP, WebSocket and SSE",
		Long: "Serves clients at /mcp (Streamable HTTP), /ws (WebSocket) and /sse (the transport of 2024-11-05);\n" +
			"/mcp/NAME and /ws/NAME are one upstream, its names bare. SIGINT and SIGTERM drain, a second one ends at once; SIGHUP\n" +
			"takes over the upstreams and links of the configuration anew.",
		Example: "  mcp-proxy serve --config mcp-proxy.yaml\n" +
			"  mcp-proxy serve --listen 127.0.0.1:9000 -- npx -y @modelcontextprotocol/server-everything",
		Args: commandBehindDash,
		RunE: o.with(runServe),
	}
	o.addFlags(cmd)
	cmd.Flags().StringSliceVar(&o.listen, "listen", nil, "address to listen at: HOST:PORT or unix:///path; may be repeated")
	return cmd
}

func newStdio() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "stdio [-- CMD ARGS…]",
		Short: "Serve one client on stdin and stdout",
		Example: "  mcp-proxy stdio --config mcp-proxy.yaml\n" +
			"  mcp-proxy stdio -- npx -y @modelcontextprotocol/server-everything",
		Args: commandBehindDash,
		RunE: o.with(runStdio),
	}
	o.addFlags(cmd)
	return cmd
}

func newConnect() *cobra.Command {
	var o options
	var headers []string
	cmd := &cobra.Command{
		Use:   "connect URL",
		Short: "Serve one client on stdin and stdout from one remote server",
		Long:  "Connects a client on stdin and stdout to a remote server: http(s):// (Streamable HTTP, or HTTP+SSE where that is all\nthere is) or ws(s)://.",
		Example: "  mcp-proxy connect https://example.com/mcp --header 'Authorization: Bearer ${TOKEN}'\n" +
			"  mcp-proxy connect ws://127.0.0.1:8080/ws",
		Args: oneURL,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, log, err := o.load(nil, config.Options{URL: args[0], Headers: headers})
			if err != nil {
				return err
			}
			return runStdio(cmd.Context(), cfg, nil, log)
		},
	}
	o.addLogFlags(cmd)
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, `"Name: value" to send with each request, ${NAME} expanded; may be repeated`)
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(*cobra.Command, []string) { fmt.Println("mcp-proxy", proxy.Version()) },
	}
}

func (o *options) addFlags(cmd *cobra.Command) {
	addConfigFlag(cmd, &o.config)
	o.addLogFlags(cmd)
}

func (o *options) addLogFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
}

func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration file, YAML, JSON or TOML (default: mcp-proxy.yaml in the working directory, then in the user's configuration directory)")
}

// with is a command that runs f with the configuration, what reads it again, and a
// log.
func (o *options) with(f func(context.Context, *config.Config, reload, *slog.Logger) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, again, log, err := o.load(args, config.Options{Listen: o.listen})
		if err != nil {
			return err
		}
		return f(cmd.Context(), cfg, again, log)
	}
}

// load reads the configuration from the flags and what else from says, and sets up
// the log. Arguments are the command behind "--".
func (o *options) load(args []string, from config.Options) (*config.Config, reload, *slog.Logger, error) {
	log, err := newLogger(os.Stderr, o.logFormat, o.logLevel)
	if err != nil {
		return nil, nil, nil, err
	}
	from.File, from.Command = o.config, args
	read := func() (*config.Config, error) {
		cfg, warnings, err := config.Load(from)
		if err != nil {
			return nil, err
		}
		for _, w := range warnings {
			log.Warn("configuration", "warning", w)
		}
		return cfg, nil
	}
	cfg, err := read()
	return cfg, read, log, err
}

func plural(noun string, n int) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
