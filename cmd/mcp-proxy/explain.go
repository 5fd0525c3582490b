package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// An explainer answers what the command explain is asked.
type explainer struct {
	adminFlags
	as string
}

func newExplain() *cobra.Command {
	var x explainer
	cmd := &cobra.Command{
		Use:   "explain EVENT | NAME | URI",
		Short: "Explain an event, or where a tool, prompt or resource is and who may use it",
		Long: "An EVENT is the id in the error of a call, and in the log: a running proxy or host says what happened.\n\n" +
			"For a tool, prompt or resource it shows which upstream has it and by which rule, what hides it, the state of its server, and what the policies say.\n" +
			"--as names the client; without it the answer is for each policy. The running proxy of this user is asked, or that of --admin.\n" +
			"The exit code is 0 if the client may use it, or it depends on the client, 1 if not or if no proxy is running, 2 for bad usage.\n\n" +
			"A CLIENT is anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or jwt:SUBJECT@ISSUER.",
		Example: "  mcp-proxy explain k3v9x2ma\n  mcp-proxy explain files__write\n  mcp-proxy explain --as token:ci files__write\n  mcp-proxy explain file:///data/report.txt",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("explain takes one EVENT, NAME or URI")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if proxy.IsEvent(args[0]) && x.as == "" {
				return show(cmd.Context(), &x.adminFlags, "/events/"+args[0], func(e *proxy.Event) { printEvent(stdout, e, time.Now()) })
			}
			return x.name(cmd.Context(), args[0])
		},
	}
	x.add(cmd)
	cmd.Flags().StringVar(&x.as, "as", "", "the `CLIENT`, such as token:ci or operator")
	return cmd
}

// name says where a name leads, and who may use it.
func (x *explainer) name(ctx context.Context, name string) error {
	path := "/explain/" + url.PathEscape(name)
	if x.as != "" {
		path += "?as=" + url.QueryEscape(x.as)
	}
	c, err := x.client()
	if err != nil {
		return err
	}
	e := new(proxy.Explanation)
	if err := c.getJSON(ctx, path, e); err != nil {
		return err
	}
	if !x.json {
		printExplanation(e)
	} else if err := printJSON(e); err != nil {
		return err
	}
	if !e.Allowed() && e.Answer != proxy.AnswerDepends && e.Kind != proxy.KindUpstream {
		return errAnswerIsNo
	}
	return nil
}

// errAnswerIsNo is the exit code 1 of a question that was answered.
var errAnswerIsNo = errors.New("the answer is no")

func printExplanation(e *proxy.Explanation) {
	fmt.Fprintf(stdout, "%s %s: %s\n", e.Kind, printable(e.Name), e.Answer)
	say := func(what, text string) {
		if text != "" {
			fmt.Fprintf(stdout, "  %-9s %s\n", what, printable(text))
		}
	}
	say("client", e.Client)
	say("why", e.Why)
	for _, r := range e.Rules {
		say("rule", ruling(r))
	}
	say("needs", strings.Join(e.Needs, " "))
	say("missing", strings.Join(e.Missing, " "))
	if e.Matched != e.Name {
		say("matched", e.Matched)
	}
	say("limits", e.Limits)
	sayWhere(e, say)
	for _, n := range e.Notes {
		say("note", n)
	}
}

// sayWhere says where the name leads, and what is there.
func sayWhere(e *proxy.Explanation, say func(what, text string)) {
	if e.Upstream != "" {
		where := "to " + e.Upstream
		if e.Original != e.Name && e.Original != "" {
			where += ", as " + e.Original
		}
		if e.Link != "" {
			where += ", behind the link " + e.Link
		}
		if e.Leads != "" {
			where += ": " + e.Leads
		}
		say("leads", where)
		say("listed", e.Listed)
	} else {
		say("leads", e.Leads)
	}
	for _, s := range e.Servers {
		say("server", serverText(s))
	}
	if e.Upstream != "" && e.Link == "" && len(e.Servers) == 0 {
		say("server", "none is running: starts on the next request")
	}
	if e.Failed.InARow > 0 {
		say("failed", failureText(e.Failed))
	}
}

func failureText(f proxy.Failure) string {
	text := f.Says + " (" + f.Event + ")"
	if !f.Next.IsZero() {
		text += ", no start before " + f.Next.Local().Format(time.TimeOnly)
	}
	return text
}

func serverText(s proxy.Servers) string {
	text := fmt.Sprintf("%d %s, %s era", s.Count, s.State, s.Era)
	if len(s.Speaks) > 0 {
		text += ", speaks " + strings.Join(s.Speaks, " and ")
	}
	return text
}

func ruling(r proxy.Ruling) string {
	text := r.Rule + " (" + r.Who + "): " + r.Answer
	if r.Glob != "" {
		text += ", by " + r.Glob
	}
	if len(r.Needs) > 0 {
		text += ", needs " + strings.Join(r.Needs, " ")
	}
	return text
}
