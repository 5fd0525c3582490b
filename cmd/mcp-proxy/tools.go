package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newTools() *cobra.Command {
	var d direct
	var all, refresh bool
	cmd := &cobra.Command{
		Use:   "tools [URL | -- CMD ARGS…]",
		Short: "List the tools that a configuration, a command or a URL offers",
		Long: "Lists what clients see of the servers of a configuration, of one command or of one URL. It starts a command, and servers whose lists no earlier run\n" +
			"has kept, and stops them. With --refresh it asks all servers again.\n" +
			"Arguments with a question mark may be left out. The exit code is 1 if a server is missing.",
		Example: "  mcp-proxy tools\n" +
			"  mcp-proxy tools -- npx -y @modelcontextprotocol/server-everything\n" +
			"  mcp-proxy tools --refresh\n" +
			"  mcp-proxy tools https://example.com/mcp --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := d.loadArgs(cmd, args)
			if err != nil {
				return err
			}
			for _, l := range s.cfg.Links {
				if l.Accept {
					fmt.Fprintf(stderr, "mcp-proxy: link %s is left out: its host dials serve, and nothing listens here\n", l.Name)
				}
			}
			return s.use(cmd.Context(), func(ctx context.Context, p *proxy.Proxy, c *proxy.Client) error {
				if refresh {
					p.Refresh(ctx)
				}
				return runTools(ctx, p, c, all, d.json)
			})
		},
	}
	d.addFlags(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "list prompts, resources, templates of resources and skills, too")
	cmd.Flags().BoolVar(&refresh, "refresh", false, "ask the servers of a configuration again")
	return cmd
}

func runTools(ctx context.Context, p *proxy.Proxy, c *proxy.Client, all, asJSON bool) error {
	o, err := p.Offer(ctx, c, all)
	if err != nil {
		return failed(ctx, err)
	}
	err = printAnswer(o, asJSON, func() { printOffer(o, all) })
	if err == nil && len(o.Missing) > 0 {
		return errAnswerIsNo
	}
	return err
}

// An offered is one element of a list: a tool, a prompt, a resource, a template or a skill.
type offered struct {
	Name, Title, Description string
	URI, URITemplate         string
	InputSchema              json.RawMessage
	Frontmatter              struct{ Name, Description string } // of a skill
	Arguments                []struct {
		Name     string
		Required bool
	}
}

// printOffer prints tables, and to stderr which servers are missing.
func printOffer(o *proxy.Offer, all bool) {
	if len(o.Tools) == 0 {
		fmt.Fprintln(stderr, "no tools")
	}
	printList("TOOL\tARGUMENTS\tDESCRIPTION", o.Tools, false, func(e offered) (string, string) { return e.Name, signature(e.InputSchema) })
	if all {
		printList("PROMPT\tARGUMENTS\tDESCRIPTION", o.Prompts, true, func(e offered) (string, string) { return e.Name, e.promptArguments() })
		printList("RESOURCE\tNAME\tDESCRIPTION", o.Resources, true, func(e offered) (string, string) { return e.URI, e.Name })
		printList("TEMPLATE\tNAME\tDESCRIPTION", o.Templates, true, func(e offered) (string, string) { return e.URITemplate, e.Name })
		printList("SKILL\tNAME\tDESCRIPTION", o.Skills, true, func(e offered) (string, string) { return e.URI, e.Frontmatter.Name })
	}
	for _, m := range o.Missing {
		fmt.Fprintf(stderr, "mcp-proxy: %s %s\n", m.Name, printable(m.Why))
	}
}

// mostArguments bounds the width of the second column, in characters.
const mostArguments = 40

func printList(head string, elements []json.RawMessage, apart bool, columns func(offered) (first, second string)) {
	if len(elements) == 0 {
		return
	}
	if apart {
		fmt.Fprintln(stdout)
	}
	list := rows{head: head}
	for _, raw := range elements {
		var e offered
		_ = json.Unmarshal(raw, &e) // members of a wrong type stay empty
		first, second := columns(e)
		list.add(first, oneLine(second, mostArguments), cmp.Or(e.Description, e.Frontmatter.Description, e.Title))
	}
	list.write(stdout, stdout.width())
}

// signature returns the arguments of a tool: "path head?".
func signature(schema json.RawMessage) string {
	var s struct {
		Properties json.RawMessage
		Required   []string
	}
	_ = json.Unmarshal(schema, &s)
	var words []string
	for _, name := range keysOf(s.Properties) {
		if !slices.Contains(s.Required, name) {
			name += "?"
		}
		words = append(words, name)
	}
	return strings.Join(words, " ")
}

func (e *offered) promptArguments() string {
	var words []string
	for _, a := range e.Arguments {
		if !a.Required {
			a.Name += "?"
		}
		words = append(words, a.Name)
	}
	return strings.Join(words, " ")
}

// keysOf returns the keys of a JSON object in their order.
func keysOf(object json.RawMessage) (keys []string) {
	d := json.NewDecoder(strings.NewReader(string(object)))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			break
		}
		keys = append(keys, name)
	}
	return keys
}
