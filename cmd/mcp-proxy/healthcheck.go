package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// probePause is between the probes of healthcheck --wait.
const probePause = 200 * time.Millisecond

// A healthcheck asks one process whether all is well.
type healthcheck struct {
	adminFlags
	live bool          // whether it runs is enough
	wait time.Duration // for it to be ready
}

func newHealthcheck() *cobra.Command {
	var h healthcheck
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a running proxy or host whether it is ready: exit code 0 or 1",
		Long: "Asks a proxy or host of this user on this machine, or in this container, for its readiness, as a probe does at /readyz.\n" +
			"It prints one line. The exit code is 0 if it is ready, and 1 if it is not or does not answer.",
		Example: "  mcp-proxy healthcheck\n  mcp-proxy healthcheck --wait 30s\n  mcp-proxy healthcheck --admin unix:///run/mcp/admin.sock",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return h.run(cmd.Context()) },
	}
	h.add(cmd)
	cmd.Flags().BoolVar(&h.live, "live", false, "ask only whether it runs (/livez)")
	cmd.Flags().DurationVar(&h.wait, "wait", 0, "keep asking for this long until it is ready, even while none is running")
	return cmd
}

// run prints the answer on one line, or as JSON.
func (h *healthcheck) run(ctx context.Context) error {
	now, err := h.await(ctx)
	if err != nil {
		return err
	}
	if h.json {
		_ = printJSON(now) // the exit code is what counts
	} else {
		fmt.Fprintln(stdout, strings.Join(now.Says, "; "))
	}
	if !now.OK {
		return errAnswerIsNo
	}
	return nil
}

// await asks until the answer is yes or the time is up. It returns the last answer.
func (h *healthcheck) await(ctx context.Context) (proxy.Health, error) {
	now, err := h.ask(ctx)
	ctx, cancel := context.WithTimeout(ctx, h.wait)
	defer cancel()
	for !now.OK {
		select {
		case <-time.After(probePause):
		case <-ctx.Done():
			return now, err
		}
		next, nextErr := h.ask(ctx)
		if ctx.Err() == nil || next.OK { // else the answer is only that the time is up
			now, err = next, nextErr
		}
	}
	return now, err
}

// ask asks once.
func (h *healthcheck) ask(ctx context.Context) (now proxy.Health, err error) {
	c, err := h.client()
	if err != nil {
		return now, err
	}
	path := "/readyz"
	if h.live {
		path = "/livez"
	}
	status, body, err := c.get(ctx, path)
	if err != nil {
		return now, &runError{err}
	}
	return proxy.Health{OK: status == http.StatusOK, Says: strings.Split(strings.TrimSpace(body), "\n")}, nil
}
