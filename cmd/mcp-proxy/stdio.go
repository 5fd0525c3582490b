package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newStdio() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "stdio [-- CMD ARGS…]",
		Short: "Serve one client on stdin and stdout",
		Example: "  mcp-proxy stdio --config mcp-proxy.yaml\n" +
			"  mcp-proxy stdio -- npx -y @modelcontextprotocol/server-everything",
		Args: commandBehindDash,
		RunE: o.with(func(ctx context.Context, s *start) error { return runStdio(ctx, "stdio", s) }),
	}
	o.addFlags(cmd)
	o.addCommandFlags(cmd.Flags())
	return cmd
}

func newConnect() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "connect URL",
		Short: "Serve one client on stdin and stdout from one remote server",
		Long:  "Connects a client on stdin and stdout to a remote server: http(s):// (Streamable HTTP, or HTTP+SSE where that is all\nthere is) or ws(s)://.",
		Example: "  mcp-proxy connect https://example.com/mcp --header 'Authorization: Bearer ${TOKEN}'\n" +
			"  mcp-proxy connect ws://127.0.0.1:8080/ws",
		Args: oneURL,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.from.URL = args[0]
			s, err := o.load(nil)
			if err != nil {
				return err
			}
			return runStdio(cmd.Context(), "connect", s)
		},
	}
	o.addLogFlags(cmd)
	cmd.Flags().StringArrayVarP(&o.from.Headers, "header", "H", nil, `"Name: value" to send with each request, ${NAME} expanded; may be repeated`)
	return cmd
}

func newReplay() *cobra.Command {
	var upstream string
	cmd := &cobra.Command{
		Use:     "replay FILE",
		Short:   "Serve one client on stdin and stdout from a recording",
		Long:    "Answers as the server did that 'mcp-proxy tap --record FILE' has recorded.",
		Example: "  mcp-proxy stdio -- mcp-proxy replay recordings/files.ndjson",
		Args:    oneFile,
		RunE: func(_ *cobra.Command, args []string) error {
			out, wait, err := stdout.pipe()
			if err == nil {
				err = proxy.Replay(args[0], upstream, os.Stdin, out)
				_ = out.Close() // so that wait returns
				wait()
			}
			if err != nil {
				return &runError{err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&upstream, "upstream", "", "which upstream of the recording, if it has several")
	return cmd
}

// runStdio serves the client on stdin and stdout until it leaves. Programs that start MCP servers
// close stdin, send SIGTERM 2 s later and SIGKILL after 2 s more: after a signal, everything
// ends within 1.5 s.
func runStdio(ctx context.Context, command string, s *start) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	p, err := proxy.New(s.cfg, proxy.Options{Log: s.log, Stdio: true, CacheDir: cacheDir(), AdminSocket: adminSocket(command, s.log), AskLogin: askIn(s.log)})
	if err != nil {
		return failedBy(err)
	}
	if !s.cfg.OperatorMay() {
		s.log.Warn("no policy matches the operator, which is the client on stdio, so it may do nothing: add one with {who: operator}")
	}
	out, wait, err := stdout.pipe()
	if err != nil {
		return &runError{err}
	}
	end := p.ServeStdio(ctx, os.Stdin, out)
	wait()
	_ = p.Shutdown(ctx) // an end that a signal forces is no failure
	if broken := brokenFile(end); broken != nil {
		return &runError{broken}
	}
	return stdout.printed()
}

// brokenFile returns the error of stdin or stdout that ended a session, as of a full disk; nil if the client has left.
func brokenFile(end error) error {
	e, ok := errors.AsType[*fs.PathError](end)
	if !ok || errors.Is(e, fs.ErrClosed) || slices.ContainsFunc(clientLeft, func(left error) bool { return errors.Is(e, left) }) {
		return nil
	}
	return e
}
