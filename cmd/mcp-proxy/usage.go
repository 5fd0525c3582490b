package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// withoutCommand is what the program does without a command.
func withoutCommand(cmd *cobra.Command, _ []string) error {
	if wantsVersion(cmd) {
		return printVersion()
	}
	cmd.SetOut(stderr)
	cmd.Usage()
	return errors.New("a command is needed")
}

func wantsVersion(cmd *cobra.Command) bool {
	wants, _ := cmd.Flags().GetBool("version")
	return wants
}

// unknownCommand returns an error for arguments that name no command.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || wantsVersion(cmd) {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	help := strings.Replace(cmd.CommandPath(), "mcp-proxy", "mcp-proxy help", 1)
	return fmt.Errorf("unknown command %q%s", args[0], cmp.Or(config.DidYouMean(args[0], names), "; "+help+" lists all"))
}

// unknownFlag adds a hint to the error of a flag that could not be parsed. If flags follow a
// misspelt command, cobra reports the first of them: then the error is about the command.
func unknownFlag(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); !cmd.HasParent() && len(words) > 0 {
		return unknownCommand(cmd, words)
	}
	if word := commandWord(cmd); word != "" { // in serve npx -y x, -y is a flag of npx
		return behindDash(cmd, word)
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	switch {
	case !ok:
		return err
	case !cmd.HasParent():
		return fmt.Errorf("%w: a command comes first", err)
	}
	word := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" { // -listen
		word = letters
	}
	if word == "url" && cmd.Flags().Lookup("admin") != nil {
		return fmt.Errorf("%w: %s asks a process that runs here; --admin chooses which", err, cmd.Name())
	}
	if hint := wishes[word]; hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := config.Nearest(word, names); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

// wishes are hints for flags of other proxies: how to get the same here.
var wishes = map[string]string{
	"stdio":            "a server on stdio goes behind --, as in mcp-proxy serve -- npx -y some-server",
	"sse":              "mcp-proxy connect URL finds out by itself whether a server speaks SSE",
	"streamableHttp":   "mcp-proxy connect URL finds out by itself what a server speaks",
	"outputTransport":  "serve has Streamable HTTP at /mcp, WebSocket at /ws and SSE at /sse, all at once",
	"transport":        "serve has Streamable HTTP at /mcp, WebSocket at /ws and SSE at /sse, all at once",
	"stateless":        "it is not needed: clients of 2026-07-28 have no sessions, and older ones get what they ask for",
	"stateful":         "it is not needed: clients of 2026-07-28 have no sessions, and older ones get what they ask for",
	"host":             "use --listen HOST:PORT",
	"sse-port":         "use --port",
	"sse-host":         "use --listen HOST:PORT",
	"allow-origin":     "use --cors ORIGIN",
	"url":              "connect has the URL as an argument; serve has --server NAME=URL",
	"named-server":     "use --server NAME='COMMAND'",
	"pass-environment": "it is not needed: a command behind -- gets the whole environment; in a file that is inheritEnv: [all]",
	"oauth2Bearer":     "use --token-file FILE for clients; for a server, connect has --header 'Authorization: Bearer ${TOKEN}'",
	"healthEndpoint":   "/healthz is always there, and operators have /livez and /readyz",
	"ssePath":          "the path is /sse",
	"baseUrl":          "use --public-url URL",
	"sessionTimeout":   "use sessionIdle in a configuration, or MCP_PROXY_SESSION_IDLE=5m",
	"logLevel":         "use --log-level",
	"debug":            "use --log-level debug",
	"verbose":          "use --log-level debug",
}

// commandBehindDash returns an error if there are arguments before "--".
func commandBehindDash(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case len(args) == 0 || dash == 0:
		return nil
	case looksLikeConfig(args[0]):
		return fmt.Errorf("unexpected argument %q; did you mean --config %s?", args[0], args[0])
	case isURL(args[0]) && cmd.Name() == "stdio":
		return fmt.Errorf("unexpected argument %q: a URL goes in --server NAME=URL, or use mcp-proxy connect URL", args[0])
	case isURL(args[0]):
		return fmt.Errorf("unexpected argument %q: a URL goes in --server NAME=URL", args[0])
	}
	return behindDash(cmd, args[0])
}

// cutDash splits arguments at "--"; command is nil without one.
func cutDash(cmd *cobra.Command, args []string) (before, command []string) {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		return args[:dash], args[dash:]
	}
	return args, nil
}

func behindDash(cmd *cobra.Command, word string) error {
	return fmt.Errorf("unexpected argument %q: a command goes behind --, as in mcp-proxy %s -- %s", word, cmd.Name(), word)
}

// commandWord returns the first argument of cmd if it looks like the program to start, with its "--" left
// out; else "".
func commandWord(cmd *cobra.Command) string {
	words := cmd.Flags().Args()
	if cmd.Name() == "call" && len(words) > 0 {
		words = words[1:] // the name of a tool
	}
	if !strings.Contains(cmd.Use, "-- CMD") || len(words) == 0 || isURL(words[0]) || looksLikeConfig(words[0]) || strings.ContainsAny(words[0], "={") {
		return ""
	}
	return words[0]
}

func looksLikeConfig(word string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json", ".toml"}, filepath.Ext(word))
}

// oneURL checks the arguments of connect.
func oneURL(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return errors.New("connect needs a URL, as in mcp-proxy connect https://example.com/mcp")
	case len(args) > 1:
		return fmt.Errorf("connect takes one URL, not %d arguments", len(args))
	}
	return nil
}

func oneFile(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("replay needs one recording, as in mcp-proxy replay recordings/files.ndjson")
	}
	return nil
}

// Exit codes. Anything else that fails is 1.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // bad usage or configuration
)

// A runError is a failure with a valid usage and configuration: the exit code is 1.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }

func (e *runError) Unwrap() error { return e.err }

// errAnswerIsNo makes the exit code 1 after a command has printed a negative answer.
var errAnswerIsNo = errors.New("the answer is no")

// isURL reports whether an argument is a URL, and not a name, key=value or JSON.
func isURL(word string) bool {
	scheme, _, found := strings.Cut(word, "://")
	return found && scheme != "" && !strings.ContainsAny(scheme, "={ ")
}

// failed returns the error of a command that could not finish: "interrupted" if a signal has ended ctx.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &runError{errors.New("interrupted")}
	}
	return &runError{err}
}

// failedBy returns an error of New or NewHost: problems of the configuration as they are, others as a runError.
func failedBy(err error) error {
	if _, ok := errors.AsType[config.Problems](err); ok {
		return err
	}
	return &runError{err}
}

// cannotListen adds advice to the error of listening at an address.
func cannotListen(err error) error {
	const windows = syscall.Errno(10048) // WSAEADDRINUSE
	where := "with --listen"
	if e, ok := errors.AsType[*proxy.ListenError](err); ok {
		where = "in " + e.Key
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windows):
		return fmt.Errorf("%w: another program listens there; stop that one, or choose another address %s", err, where)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: the directory of the socket must exist", err)
	}
	return err
}
