package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// tapFilters are flags, and members of the query.
var tapFilters = []struct{ name, usage string }{
	{"upstream", "messages of an upstream that match `GLOB`, and errors about one"},
	{"client", "clients that call themselves so: `GLOB`"},
	{"session", "one session: its `ID` in the log"},
	{"method", "messages of methods that match `GLOB`, and their responses"},
	{"tool", "calls of tools that match `GLOB`, and their responses"},
}

func newTap() *cobra.Command {
	var ask adminFlags
	var record string
	cmd := &cobra.Command{
		Use:   "tap",
		Short: "Show messages as they pass through a running proxy or host",
		Long: "Shows each message that passes between clients and the proxy, and between the proxy and its servers: one line for each, on a\n" +
			"terminal for people, else as JSON. It shows the content of messages only with --payloads or --record. These\n" +
			"need admin.payloads: true in the configuration of the process, and its Unix socket. A tap delays no call: messages that find no room are\n" +
			"left out, and counted. Ctrl-C ends it.\n\n" +
			"A recording has the whole content, secrets too, for mcp-proxy replay FILE. It ends with an error rather than miss a message.",
		Example: "  mcp-proxy tap --upstream files --errors\n  mcp-proxy tap --tool 'files__*' --json | jq .tookMs\n  mcp-proxy tap --record session.ndjson",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runTap(cmd, &ask, record) },
	}
	ask.add(cmd)
	for _, f := range tapFilters {
		cmd.Flags().String(f.name, "", f.usage)
	}
	cmd.Flags().Bool("errors", false, "only responses that are errors, or results of tools that say so")
	cmd.Flags().Bool("payloads", false, "show what is in messages, without what looks like a secret")
	cmd.Flags().StringVar(&record, "record", "", "write all messages as they are to a new `FILE`")
	return cmd
}

func runTap(cmd *cobra.Command, ask *adminFlags, record string) error {
	for _, other := range []string{"errors", "method", "tool", "payloads"} {
		if record != "" && cmd.Flags().Changed(other) {
			return fmt.Errorf("--record writes all messages and excludes --%s", other)
		}
	}
	c, err := ask.client()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it by force
	if record != "" {
		return c.record(ctx, tapPath(cmd.Flags()), record)
	}
	resp, err := c.stream(ctx, tapPath(cmd.Flags()))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if name, _ := cmd.Flags().GetString("upstream"); name != "" && !strings.ContainsAny(name, `*?[\`) {
		c.warnUnknown(ctx, name)
	}
	if stdout.isTerminal() && !ask.json {
		err = printMessages(stdout, resp.Body)
	} else {
		_, err = io.Copy(stdout, resp.Body)
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return &runError{err}
}

// warnUnknown tells if the process has no upstream of that name. It may get one later.
func (c *adminClient) warnUnknown(ctx context.Context, name string) {
	var now proxy.Snapshot
	if c.getJSON(ctx, "/status", &now) != nil {
		return
	}
	var names []string
	for _, t := range now.Traffic {
		names = append(names, t.Upstream)
	}
	if !slices.Contains(names, name) {
		fmt.Fprintf(stderr, "there is no upstream %q now%s\n", name, config.DidYouMean(name, names))
	}
}

// tapPath is the path with the query that the flags make.
func tapPath(flags *pflag.FlagSet) string {
	query := url.Values{}
	for _, f := range tapFilters {
		if value, _ := flags.GetString(f.name); value != "" {
			query.Set(f.name, value)
		}
	}
	for _, name := range []string{"errors", "payloads"} {
		if on, _ := flags.GetBool(name); on {
			query.Set(name, "1")
		}
	}
	if record, _ := flags.GetString("record"); record != "" {
		query.Set("record", "1")
	}
	return "/tap?" + query.Encode()
}

// stream requests a path, and returns the answer if its status is 200. The caller closes its
// body.
func (c *adminClient) stream(ctx context.Context, path string) (*http.Response, error) {
	resp, err := c.open(ctx, path)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, errAnswerIsNo
	case err != nil:
		return nil, &runError{err}
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	plain, _, _ := strings.Cut(path, "?")
	err = c.refused(plain, resp.StatusCode, string(text))
	if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusBadRequest { // bad usage: a glob is wrong
		return nil, err
	}
	return nil, &runError{err}
}

// lastWords bounds how long the process may take to send the rest of a recording after Ctrl-C.
const lastWords = 10 * time.Second

// record writes a recording to a new file. When signalled is done it half-closes the connection: then the
// process sends what has passed before, and whether that was all.
func (c *adminClient) record(signalled context.Context, path, name string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var conn atomic.Value // net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn.Store(i.Conn) }})
	resp, err := c.stream(ctx, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &runError{fmt.Errorf("--record: %w", err)}
	}
	fmt.Fprintf(stderr, "recording to %s until Ctrl-C\n", name)
	defer context.AfterFunc(signalled, func() {
		if half, ok := conn.Load().(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // fails if the connection has ended
		}
		time.AfterFunc(lastWords, cancel)
	})()
	messages, err := writeRecording(file, resp.Body)
	if err = errors.Join(err, file.Close()); err != nil {
		return &runError{fmt.Errorf("%s is incomplete: %w", name, err)}
	}
	fmt.Fprintf(stderr, "%d messages are in %s, with their whole content: keep it safe\n", messages, name)
	return nil
}

// writeRecording copies a recording line by line, and returns the number of its messages. It fails if
// the recording does not end with the line of a complete one.
func writeRecording(to io.Writer, from io.Reader) (messages int, err error) {
	in, out := bufio.NewReaderSize(from, 64<<10), bufio.NewWriterSize(to, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0, errors.Join(out.Flush(), fmt.Errorf("the process is gone: %w", err))
		}
		if _, err := out.Write(line); err != nil {
			return 0, err
		}
		if bytes.HasPrefix(line, []byte(`{"end":`)) {
			return recordingEnd(line, out.Flush())
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return 0, err
			}
		}
	}
}

func recordingEnd(line []byte, err error) (messages int, _ error) {
	var end proxy.RecordingEnd
	if err := errors.Join(err, json.Unmarshal(line, &end)); err != nil {
		return 0, err
	}
	if !end.End {
		return 0, errors.New(end.Error)
	}
	return end.Messages, nil
}
