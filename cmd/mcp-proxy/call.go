package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newCall() *cobra.Command {
	var d direct
	cmd := &cobra.Command{
		Use:   "call NAME [URL] [JSON | - | key=value…] [-- CMD ARGS…]",
		Short: "Call one tool and print its content",
		Long: "Starts the server of a tool, calls it once and stops it. Arguments are one JSON object, - for one on stdin, or key=value\n" +
			"each: the tool's inputSchema says which of them are numbers, and an array is key=value for each element; key:=JSON is\n" +
			"taken as it is. Content goes to stdout, progress to stderr. The exit code is 1 if the tool, or the call, failed.",
		Example: "  mcp-proxy call files__read_file path=/data/report.txt\n" +
			"  mcp-proxy call add a=1 b=2 -- npx -y @modelcontextprotocol/server-everything\n" +
			"  mcp-proxy call search '{\"query\": \"x\"}' --url https://example.com/mcp",
		RunE: func(cmd *cobra.Command, args []string) error {
			before, command := cutDash(cmd, args)
			words, err := d.urlAmong(before)
			if err != nil {
				return err
			}
			if len(words) == 0 || words[0] == "" {
				return errors.New("call needs the NAME of a tool: mcp-proxy tools lists them")
			}
			if d.url != "" && len(command) > 0 {
				return errors.New("a URL and a command exclude each other")
			}
			s, err := d.load(command)
			if err != nil {
				return err
			}
			s.cfg = proxy.Narrow(s.cfg, words[0])
			return s.use(cmd.Context(), func(ctx context.Context, p *proxy.Proxy, c *proxy.Client) error {
				return d.runCall(ctx, s.cfg, p, c, words[0], words[1:])
			})
		},
	}
	d.addFlags(cmd)
	return cmd
}

func (d *direct) runCall(ctx context.Context, cfg *config.Config, p *proxy.Proxy, c *proxy.Client, name string, words []string) error {
	o, err := p.Offer(ctx, c, false)
	if err != nil {
		return failed(ctx, err)
	}
	tool, err := find(o, name)
	if err != nil && d.url != "" && !isThere(o, name) {
		tool, err = awaitTool(ctx, p, c, name)
	}
	switch {
	case err == nil:
	case errors.As(err, new(*proxy.AnswerError)) || ctx.Err() != nil:
		return failed(ctx, err)
	case len(o.Missing)+len(cfg.Links) > 0: // the tool may be there: then the call's own error says what is wrong
		tool = &offered{Name: name}
	default:
		return &runError{err}
	}
	args, err := toolArguments(words, tool.InputSchema, os.Stdin)
	if err != nil {
		return err
	}
	params := slices.Concat([]byte(`{"name":`), quote(tool.Name), []byte(`,"arguments":`), args, []byte(`}`)) // the bytes of args stay
	result, err := c.Request(ctx, "tools/call", params, showProgress())
	if err != nil {
		return failed(ctx, err)
	}
	return printResult(result, d.json)
}

// isThere reports whether a proxy at a URL lists tools with the prefix of a name: then the upstream has started.
func isThere(o *proxy.Offer, name string) bool {
	prefix, _, found := strings.Cut(name, "__")
	return found && slices.ContainsFunc(o.Tools, func(raw json.RawMessage) bool {
		var e offered
		_ = json.Unmarshal(raw, &e)
		return strings.HasPrefix(e.Name, prefix+"__")
	})
}

// awaitTool waits for a tool that a server at a URL does not list yet. The server may be a proxy, whose list
// leaves out upstreams that are starting. A proxy holds a request for such an upstream until it has started, so a
// probe tells when that is; meanwhile awaitTool asks for the list again and again.
func awaitTool(ctx context.Context, p *proxy.Proxy, c *proxy.Client, name string) (*offered, error) {
	probing, enough := context.WithTimeout(ctx, mostWait)
	defer enough()
	probed := probe(probing, c, name)
	look := time.NewTicker(lookEach)
	defer look.Stop()
	for waited, left := false, mostLooks; ; waited = true {
		select {
		case err := <-probed:
			if err != nil {
				return nil, err
			}
			probed = nil
		case <-look.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		o, err := p.Offer(ctx, c, false)
		if err != nil {
			return nil, err
		}
		tool, err := find(o, name)
		if probed == nil { // it has started, but the proxy may not have its list yet
			left--
		}
		if err == nil || probed == nil && (!waited || left < 0) {
			return tool, err
		}
		if !waited {
			fmt.Fprintf(stderr, "mcp-proxy: %s is not listed yet: its server is still starting\n", printable(name))
		}
	}
}

// probe requests a prompt with the name of a tool, which only waits for its server. The channel gets one value:
// the error of a server that cannot be reached, else nil, also if there is no such prompt.
func probe(ctx context.Context, c *proxy.Client, name string) <-chan error {
	probed := make(chan error, 1) // the send never blocks, even if nobody receives
	go func() {
		_, err := c.Request(ctx, "prompts/get", slices.Concat([]byte(`{"name":`), quote(name), []byte(`}`)), nil)
		answer, answered := errors.AsType[*proxy.AnswerError](err)
		if answered && !answer.Closed() || errors.Is(err, context.DeadlineExceeded) {
			err = nil
		}
		probed <- err
	}()
	return probed
}

const (
	// lookEach is the time between requests for the list while a tool is missing.
	lookEach = 500 * time.Millisecond

	// mostLooks bounds these requests after the server has started.
	mostLooks = 4

	// mostWait bounds how long the server may take to start.
	mostWait = 2 * time.Minute
)

// find returns the tool with a name. Its error suggests a similar one.
func find(o *proxy.Offer, name string) (*offered, error) {
	var names []string
	for _, raw := range o.Tools {
		var e offered
		_ = json.Unmarshal(raw, &e)
		if e.Name == name {
			return &e, nil
		}
		names = append(names, e.Name)
	}
	if bare := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, "__"+name) }); bare >= 0 {
		return nil, fmt.Errorf("there is no tool %q; did you mean %s?", name, printable(names[bare]))
	}
	return nil, fmt.Errorf("there is no tool %q%s", name, config.DidYouMean(name, names))
}

// progressPause is the minimum time between two lines about progress.
const progressPause = 100 * time.Millisecond

// showProgress returns a function that prints progress to stderr, but not every step of a fast server. It must not be
// called concurrently.
func showProgress() func(proxy.Progress) {
	var last time.Time
	return func(p proxy.Progress) {
		if time.Since(last) < progressPause && (p.Total == 0 || p.Progress < p.Total) {
			return
		}
		last = time.Now()
		text := ""
		if p.Progress >= 0 { // else the server only starts
			text = fmt.Sprintf(" %g", p.Progress)
		}
		if p.Total > 0 {
			text += fmt.Sprintf("/%g", p.Total)
		}
		fmt.Fprintln(stderr, strings.TrimSpace("progress:"+text+" "+oneLine(p.Message, 200)))
	}
}

// A block is one element of the content of a result.
type block struct {
	Type, Text, Data, MimeType, URI, Name string
	Resource                              struct{ URI, Text, Blob, MimeType string }
}

// printResult prints the result of a tool. Its error is errAnswerIsNo if the result is an error.
func printResult(result json.RawMessage, asJSON bool) error {
	var r struct {
		Content           []block
		StructuredContent json.RawMessage
		IsError           bool
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return &runError{fmt.Errorf("the server's answer is not a result of a tool: %w", err)}
	}
	var err error
	switch {
	case asJSON:
		err = printJSON(result)
	case len(r.Content) == 0 && r.StructuredContent != nil:
		err = printJSON(r.StructuredContent)
	default:
		out := stdout.exact()
		for _, b := range r.Content {
			if _, err := fmt.Fprintln(out, strings.TrimSuffix(b.plain(), "\n")); err != nil {
				return &runError{err}
			}
		}
	}
	if err == nil && r.IsError {
		return errAnswerIsNo
	}
	return err
}

// plain returns a block as text, or a description of a block that is not text.
func (b *block) plain() string {
	r := b.Resource
	switch b.Type {
	case "text":
		return b.Text
	case "image", "audio":
		return fmt.Sprintf("[%s %s, %d bytes: --json has it]", b.Type, b.MimeType, len(b.Data)*3/4)
	case "resource_link":
		return fmt.Sprintf("[resource %s %s]", b.URI, b.Name)
	case "resource":
		if r.Text != "" || r.Blob == "" {
			return r.Text
		}
		return fmt.Sprintf("[resource %s %s, %d bytes: --json has it]", r.URI, r.MimeType, len(r.Blob)*3/4)
	}
	return fmt.Sprintf("[%s: --json has it]", b.Type)
}
