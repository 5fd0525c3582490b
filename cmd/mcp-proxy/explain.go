package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// An explainer answers what the command explain is asked.
type explainer struct {
	adminFlags
	file   string // configuration
	claims string // file with a payload
	q      proxy.Question
}

func newExplain() *cobra.Command {
	var x explainer
	cmd := &cobra.Command{
		Use:   "explain EVENT | NAME | URI",
		Short: "Tell the story of an event, or where a tool, a prompt or a resource is and who may use it",
		Long: "An EVENT is the id in the error of a call, and in the log: a running proxy or host says what happened.\n\n" +
			"Of a tool, prompt or resource it says where the name leads, by which rule, what hides it, what its server does, and what the policies say.\n" +
			"--as or --claims say who asks; else it tells what each policy says. The running proxy of this user is asked, or that of --admin.\n" +
			"With --config or --claims, or if none runs, the configuration alone decides, and nothing is asked.\n" +
			"The exit code is 0 if the client may use it, or it depends on the client, 1 if not, 2 for bad usage or configuration.\n\n" +
			"A CLIENT is anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or jwt:SUBJECT@ISSUER.\n" +
			"The claims are the payload of a JWT, as JSON; - reads them from standard input.",
		Example: "  mcp-proxy explain k3v9x2ma\n  mcp-proxy explain files__write\n  mcp-proxy explain --as token:ci files__write\n  mcp-proxy explain --claims payload.json file:///data/report.txt",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1 || args[0] == "":
				return errors.New("explain takes one EVENT, NAME or URI")
			case x.at != "" && x.file+x.claims != "":
				return errors.New("--admin asks a running proxy; --config and --claims ask none")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if x.isEvent(args[0]) {
				return x.event(cmd.Context(), args[0])
			}
			x.q.Name = args[0]
			return x.name(cmd.Context())
		},
	}
	addConfigFlag(cmd, &x.file)
	x.add(cmd)
	cmd.Flags().StringVar(&x.q.As, "as", "", "who asks: token:ci, operator, …")
	cmd.Flags().StringVar(&x.claims, "claims", "", "file with the payload of a JWT, which says who asks")
	cmd.Flags().StringVar(&x.q.Kind, "kind", "", "tool, prompt or resource (default: a URI is a resource, a name a tool)")
	return cmd
}

// isEvent reports whether a word is the id of an event: nothing says that it is a name.
func (x *explainer) isEvent(word string) bool {
	return proxy.IsEvent(word) && x.q.As+x.q.Kind+x.claims+x.file == ""
}

// event tells the story of one.
func (x *explainer) event(ctx context.Context, id string) error {
	c, err := x.client()
	if err != nil {
		return err
	}
	var text json.RawMessage
	if err := c.getJSON(ctx, "/events/"+id, &text); err != nil {
		return err
	}
	if x.json {
		return printJSON(text)
	}
	var e proxy.Event
	if err := json.Unmarshal(text, &e); err != nil {
		return &runError{err}
	}
	tellStory(stdout, &e, time.Now())
	return nil
}

func readClaims(file string) (json.RawMessage, error) {
	if file == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, maxClaims))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--claims: %w", err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxClaims))
}

const maxClaims = 1 << 20

// name says where a name leads, and who may use it.
func (x *explainer) name(ctx context.Context) error {
	e, err := x.explanation(ctx)
	if err != nil {
		return err
	}
	if x.json {
		if err := printJSON(e); err != nil {
			return err
		}
	} else {
		printExplanation(e)
	}
	if !e.Allowed() && e.Answer != proxy.AnswerDepends && e.Kind != proxy.KindUpstream {
		return errAnswerIsNo
	}
	return nil
}

// explanation is that of the running proxy, if there is one and nothing else is to be read.
func (x *explainer) explanation(ctx context.Context) (*proxy.Explanation, error) {
	if x.file+x.claims != "" {
		return x.configured()
	}
	c, err := x.client()
	if err != nil && x.at == "" && !errors.Is(err, errSeveral) { // none runs
		e, bad := x.configured()
		if bad == nil {
			e.Notes = append(e.Notes, "no running proxy was asked: "+err.Error())
		}
		return e, bad
	}
	if err != nil {
		return nil, err
	}
	who := url.Values{}
	for key, value := range map[string]string{"kind": x.q.Kind, "as": x.q.As} {
		if value != "" {
			who.Set(key, value)
		}
	}
	e := new(proxy.Explanation)
	return e, c.getJSON(ctx, "/explain/"+url.PathEscape(x.q.Name)+"?"+who.Encode(), e)
}

// configured is what the configuration alone says.
func (x *explainer) configured() (*proxy.Explanation, error) {
	if x.claims != "" {
		var err error
		if x.q.Claims, err = readClaims(x.claims); err != nil {
			return nil, err
		}
	}
	cfg, warnings, err := config.Load(config.Options{File: x.file})
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	return proxy.Explain(cfg, x.q)
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
	if e.Running {
		sayWhere(e, say)
	}
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
		say("server", "none runs: one is started when it is needed")
	}
	if e.Failed.InARow > 0 {
		say("failed", failureText(e.Failed))
	}
}

func failureText(f proxy.Failure) string {
	text := f.Says + " (" + f.Event + ")"
	if !f.Next.IsZero() {
		text += ", not started before " + f.Next.Local().Format(time.TimeOnly)
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
