package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newCalls() *cobra.Command {
	var ask adminFlags
	cmd := &cobra.Command{
		Use:   "calls",
		Short: "Show the calls in flight, oldest first, and what each waits for",
		Long: "Asks a proxy or host of this user on this machine for its unanswered calls. Each waits for one of these:\n\n" +
			waitHelp() + "\n" +
			"A host knows the requests that its servers have not answered, but not whose they are.",
		Example: "  mcp-proxy calls\n  mcp-proxy calls --json | jq '.calls[] | select(.waitsFor == \"client\")'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), &ask, "/calls", printCalls)
		},
	}
	ask.add(cmd)
	return cmd
}

// waitWords say what the words mean that calls wait for.
var waitWords = []struct {
	wait  proxy.Wait
	means string
}{
	{proxy.ForUpstream, "its server is working on it"},
	{proxy.ForStart, "its server is starting"},
	{proxy.ForBackOff, "its server failed and waits for its restart"},
	{proxy.ForLink, "the link to its host is down"},
	{proxy.ForLogin, "a login is needed"},
	{proxy.ForClient, "the client has not answered a question of the server"},
	{proxy.ForRoom, "it is not sent yet: its server does not read, or maxConcurrent is reached"},
	{proxy.ForProxy, "the proxy is working on it"},
}

func waitHelp() string {
	var b strings.Builder
	for _, w := range waitWords {
		fmt.Fprintf(&b, "  %-9s %s\n", w.wait, w.means)
	}
	return b.String()
}

func printCalls(now *proxy.Calls) {
	if len(now.Calls) == 0 {
		fmt.Fprintln(stdout, "nothing is in flight")
		return
	}
	callRows(now).write(stdout, stdout.width())
}

func callRows(now *proxy.Calls) *rows {
	r := &rows{head: "AGE\tWAITS FOR\tUPSTREAM\tCALL\tCLIENT\tSESSION\tPRINCIPAL\tDETAIL", more: now.LeftOut}
	for _, c := range now.Calls {
		r.add(roughly(now.Now.Sub(c.Began)), c.WaitsFor, c.Upstream, strings.TrimSpace(c.Method+" "+c.Tool), cmp.Or(c.Client, "?"), c.Session, c.Principal, c.Detail)
	}
	return r
}
