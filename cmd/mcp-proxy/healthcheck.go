package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newHealthcheck() *cobra.Command {
	var at adminFlags
	var live bool
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a running proxy or host whether it is ready: exit code 0 or 1",
		Long: "Asks a proxy or host of this user on this machine, or in this container, for its readiness, as a probe does at /readyz.\n" +
			"It prints one line. The exit code is 0 if it is ready, and 1 if it is not or does not answer.",
		Example: "  mcp-proxy healthcheck\n  mcp-proxy healthcheck --admin unix:///run/mcp/admin.sock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/readyz"
			if live {
				path = "/livez"
			}
			return runHealthcheck(cmd.Context(), at, path)
		},
	}
	at.add(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether it runs (/livez)")
	return cmd
}

// runHealthcheck prints the answer on one line, or as JSON.
func runHealthcheck(ctx context.Context, at adminFlags, path string) error {
	c, err := at.client()
	if err != nil {
		return err
	}
	status, body, err := c.get(ctx, path)
	if err != nil {
		return &runError{err}
	}
	now := proxy.Health{OK: status == http.StatusOK, Says: strings.Split(strings.TrimSpace(body), "\n")}
	if at.json {
		_ = printJSON(now) // the exit code is what counts
	} else {
		fmt.Fprintln(stdout, strings.Join(now.Says, "; "))
	}
	if !now.OK {
		return errAnswerIsNo
	}
	return nil
}
