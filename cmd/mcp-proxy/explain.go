package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
		Use:   "explain EVENT | (--as CLIENT | --claims FILE) NAME|URI",
		Short: "Tell the story of an event, or say what a client may do with a tool, a prompt or a resource, and why",
		Long: "An EVENT is the id in the error of a call, and in the log: a running proxy or host says what happened.\n\n" +
			"Of a tool, prompt or resource it decides by the policies of a configuration alone, as a proxy with it would, and says which rule has decided and why.\n" +
			"Nothing is started or asked. The exit code is 0 if the client may use it, 1 if not, 2 for bad usage or configuration.\n\n" +
			"A CLIENT is anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or jwt:SUBJECT@ISSUER.\n" +
			"The claims are the payload of a JWT, as JSON; - reads them from standard input.",
		Example: "  mcp-proxy explain k3v9x2ma\n  mcp-proxy explain --as token:ci files__write\n  mcp-proxy explain --claims payload.json file:///data/report.txt",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return errors.New("explain takes one EVENT, NAME or URI")
			case x.isEvent(args[0]):
			case x.q.As == "" && x.claims == "":
				return errors.New("explain needs to know who asks: --as CLIENT or --claims FILE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if x.isEvent(args[0]) {
				return x.event(cmd.Context(), args[0])
			}
			x.q.Name = args[0]
			return x.name()
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
	tellStory(os.Stdout, &e, time.Now())
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

// name says what a client may do with what has a name.
func (x *explainer) name() error {
	if x.claims != "" {
		var err error
		if x.q.Claims, err = readClaims(x.claims); err != nil {
			return err
		}
	}
	cfg, warnings, err := config.Load(config.Options{File: x.file})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	e, err := proxy.Explain(cfg, x.q)
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
	if !e.Allowed() {
		return errAnswerIsNo
	}
	return nil
}

// errAnswerIsNo is the exit code 1 of a question that was answered.
var errAnswerIsNo = errors.New("the answer is no")

func printExplanation(e *proxy.Explanation) {
	fmt.Printf("%s %s: %s\n", e.Kind, e.Name, e.Answer)
	say := func(what, text string) {
		if text != "" {
			fmt.Printf("  %-9s %s\n", what, text)
		}
	}
	say("client", e.Client)
	say("why", e.Why)
	say("needs", strings.Join(e.Needs, " "))
	say("missing", strings.Join(e.Missing, " "))
	if e.Matched != e.Name {
		say("matched", e.Matched)
	}
	say("limits", e.Limits)
	for _, n := range e.Notes {
		say("note", n)
	}
}
