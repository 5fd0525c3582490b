package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newExplain() *cobra.Command {
	var file, claims string
	var asJSON bool
	var q proxy.Question
	cmd := &cobra.Command{
		Use:   "explain (--as CLIENT | --claims FILE) NAME|URI",
		Short: "Say what a client may do with a tool, a prompt or a resource, and why",
		Long: "Decides by the policies of a configuration alone, as a proxy with it would, and says which rule has decided and why.\n" +
			"Nothing is started or asked. The exit code is 0 if the client may use it, 1 if not, 2 for bad usage or configuration.\n\n" +
			"A CLIENT is anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or jwt:SUBJECT@ISSUER.\n" +
			"The claims are the payload of a JWT, as JSON; - reads them from standard input.",
		Example: "  mcp-proxy explain --as token:ci files__write\n  mcp-proxy explain --claims payload.json file:///data/report.txt",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return errors.New("explain takes one NAME or URI")
			case q.As == "" && claims == "":
				return errors.New("explain needs to know who asks: --as CLIENT or --claims FILE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Name = args[0]
			if claims != "" {
				var err error
				if q.Claims, err = readClaims(claims); err != nil {
					return err
				}
			}
			return runExplain(file, q, asJSON)
		},
	}
	addConfigFlag(cmd, &file)
	cmd.Flags().StringVar(&q.As, "as", "", "who asks: token:ci, operator, …")
	cmd.Flags().StringVar(&claims, "claims", "", "file with the payload of a JWT, which says who asks")
	cmd.Flags().StringVar(&q.Kind, "kind", "", "tool, prompt or resource (default: a URI is a resource, a name a tool)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
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

func runExplain(file string, q proxy.Question, asJSON bool) error {
	cfg, warnings, err := config.Load(config.Options{File: file})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	e, err := proxy.Explain(cfg, q)
	if err != nil {
		return err
	}
	if asJSON {
		text, err := json.MarshalIndent(e, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(text))
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
