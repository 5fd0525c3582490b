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
		Short: "Show what is in flight, the oldest first, and what it waits for",
		Long: "Asks a proxy or host of this user on this machine which calls are not answered. Each waits for one of these:\n\n" +
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
	{proxy.ForUpstream, "its server works on it"},
	{proxy.ForStart, "its server starts"},
	{proxy.ForBackOff, "its server has failed, and is not started again yet"},
	{proxy.ForLink, "the link to its host is not up"},
	{proxy.ForLogin, "a person has to log in"},
	{proxy.ForClient, "the client was asked something, and has not answered"},
	{proxy.ForRoom, "it was not sent yet: its server does not read, or has as many calls as it may"},
	{proxy.ForProxy, "the proxy itself works on it"},
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
