package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newStatus() *cobra.Command {
	var ask adminFlags
	var servers bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the upstreams, clients and links of a running proxy or host",
		Long: "Asks a proxy or host of this user on this machine what it does now. Rates, errors and latencies are those of the last minute.\n" +
			"The exit code is 1 if nobody answers.",
		Example: "  mcp-proxy status\n  mcp-proxy status --servers\n  mcp-proxy status --admin 127.0.0.1:9090 --admin-token-file token --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), &ask, "/status", func(now *proxy.Snapshot) { printStatus(stdout, now, servers, time.Now()) })
		},
	}
	ask.add(cmd)
	cmd.Flags().BoolVar(&servers, "servers", false, "show each process, or session with a remote server, too")
	return cmd
}

// mostClients bounds the clients that are printed. The JSON has all.
const mostClients = 50

func printStatus(to io.Writer, now *proxy.Snapshot, servers bool, at time.Time) {
	wide := stdout.width()
	fmt.Fprintln(to, oneLine(processLine(now.Process, at), wide))
	clients := clientRows(now, at)
	clients.atMost(mostClients)
	tables := []*rows{upstreamRows(now, at), clients, linkRows(now), replicaRows(now), rejectedRows(now)}
	if servers {
		tables = slices.Insert(tables, 1, serverRows(now, at))
	}
	for _, t := range tables {
		if len(t.lines) > 0 {
			fmt.Fprintln(to)
			t.write(to, wide)
		}
	}
}

func processLine(p proxy.Process, at time.Time) string {
	line := fmt.Sprintf("%s %s, pid %d, up %s", p.Role, p.Version, p.PID, roughly(at.Sub(p.Began)))
	if p.Draining {
		line += ", shutting down"
	}
	return line
}

func upstreamRows(now *proxy.Snapshot, at time.Time) *rows {
	r := &rows{head: "UPSTREAM\tWHERE\tSTATE\tSERVERS\tIN FLIGHT\tPER S\tERRORS\tP50\tP99\tNOTE"}
	for _, t := range now.Traffic {
		state, running := t.State, fmt.Sprint(serversOf(now, t.Upstream))
		if t.Link != "" {
			state, running = linkState(now, t.Link), ""
		}
		errors := ""
		if t.Requests > 0 {
			errors = fmt.Sprint(t.Errors)
		}
		r.add(t.Upstream, cmp.Or(t.Link, "here"), state, running, t.InFlight, perSecond(t.PerSecond), errors, latency(t.P50), latency(t.P99), note(t, at))
	}
	return r
}

func perSecond(rate float64) string {
	switch {
	case rate == 0:
		return ""
	case rate < 10:
		return fmt.Sprintf("%.2f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

// serversOf returns the number of servers of an upstream that runs here, without spare processes.
func serversOf(now *proxy.Snapshot, upstream string) (n int) {
	for _, u := range now.Upstreams {
		if u.Name == upstream && u.State != "spare" {
			n++
		}
	}
	return n
}

// note returns the last column of an upstream: queued bytes, suspended calls, clients for which it rests, the age
// of its lists, and its failure.
func note(t proxy.Traffic, at time.Time) string {
	var notes []string
	if t.QueuedBytes > 0 {
		notes = append(notes, size(t.QueuedBytes)+" wait to be sent")
	}
	if t.Suspended > 0 {
		notes = append(notes, fmt.Sprintf("%d suspended", t.Suspended))
	}
	if t.Resting > 0 && t.State != "resting" {
		notes = append(notes, fmt.Sprintf("rests for %d", t.Resting))
	}
	if !t.Listed.IsZero() {
		notes = append(notes, "lists are "+roughly(at.Sub(t.Listed))+" old")
	}
	if f := t.Failed; f.InARow > 0 {
		text := f.Says + " (" + f.Event + ")"
		if f.InARow > 1 {
			text += fmt.Sprintf(", failed %d times", f.InARow)
		}
		if wait := f.Next.Sub(at); wait > 0 {
			text += ", no start for " + roughly(wait)
		}
		notes = append(notes, text)
	}
	return strings.Join(notes, "; ")
}

func linkState(now *proxy.Snapshot, link string) string {
	for _, l := range now.Links {
		if l.Name == link && l.Up {
			return "link up"
		}
	}
	return "link lost"
}

func serverRows(now *proxy.Snapshot, at time.Time) *rows {
	r := &rows{head: "SERVER OF\tSESSION\tERA\tSTATE\tPID\tFOR\tIN FLIGHT\tUNUSABLE\tUNATTRIBUTED\tSTDERR"}
	for _, u := range now.Upstreams {
		pid, lasts, says := "", "", ""
		if u.PID > 0 {
			pid = fmt.Sprint(u.PID)
		}
		if !u.Started.IsZero() {
			lasts = roughly(at.Sub(u.Started))
		}
		if n := len(u.Stderr); n > 0 {
			says = u.Stderr[n-1]
		}
		r.add(u.Name, u.Session, u.Era, u.State, pid, lasts, u.InFlight, u.Unusable, u.Unattributed, says)
	}
	return r
}

func clientRows(now *proxy.Snapshot, at time.Time) *rows {
	r := &rows{head: "CLIENT\tSESSION\tPRINCIPAL\tTRANSPORT\tERA\tFOR\tIN FLIGHT\tLISTENS\tNOTE"}
	for _, s := range now.Sessions {
		note := ""
		if s.QueuedBytes > 0 {
			note = size(s.QueuedBytes) + " wait to be sent"
		}
		if s.Resumed != "" {
			note = strings.TrimPrefix(note+"; "+s.Resumed+" from another replica", "; ")
		}
		r.add(cmp.Or(s.Client, "?"), s.ID, s.Principal, s.Transport, cmp.Or(s.Era, "?"), roughly(at.Sub(s.Began)), s.InFlight, s.Listens, note)
	}
	return r
}

func linkRows(now *proxy.Snapshot) *rows {
	r := &rows{head: "LINK\tSTATE\tLOST\tUPSTREAMS\tNOTE"}
	for _, l := range now.Links {
		state := "down"
		if l.Up {
			state = "up"
		}
		note := l.Why
		if l.Through != "" {
			note = "through replica " + l.Through
		}
		r.add(l.Name, state, l.Lost, strings.Join(l.Upstreams, ", "), note)
	}
	return r
}

func replicaRows(now *proxy.Snapshot) *rows {
	r := &rows{head: "REPLICA\tSTATE\tADDRESS\tVERSION\tSESSIONS\tNOTE"}
	for _, m := range now.Replicas {
		var notes []string
		if m.Self {
			notes = append(notes, "this one")
		}
		if m.Moves != nil {
			notes = append(notes, movesNotes(*m.Moves)...)
		}
		if m.Linked {
			notes = append(notes, "linked")
		}
		if m.Unreachable {
			notes = append(notes, "cannot be reached")
		}
		if m.Differs {
			notes = append(notes, "its configuration differs")
		}
		r.add(m.Instance, m.State, m.Address, m.Version, m.Sessions, strings.Join(notes, "; "))
	}
	return r
}

// movesNotes returns what became of sessions that came from other replicas, or that others have.
func movesNotes(m proxy.Moves) (notes []string) {
	for _, n := range []struct {
		sessions int
		what     string
	}{
		{m.Taken, "has taken %d sessions of others"}, {m.Adopted, "has adopted %d sessions of others"},
		{m.Waiting, "%d of them not used since"}, {m.Yielded, "others have continued %d of its sessions"},
	} {
		if n.sessions > 0 {
			notes = append(notes, fmt.Sprintf(n.what, n.sessions))
		}
	}
	return notes
}

// rejectedRows lists the upstreams of hosts that are not offered to clients: to a proxy those of its links, to a
// host its own.
func rejectedRows(now *proxy.Snapshot) *rows {
	r := &rows{head: "NOT OFFERED\tLINK\tEVENT\tWHY"}
	for _, l := range now.Links {
		for _, u := range l.Rejected {
			r.add(u.Upstream, l.Name, u.Event, u.Why)
		}
	}
	for _, u := range now.Rejected {
		r.add(u.Upstream, "", u.Event, u.Why)
	}
	return r
}

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

// waitWords explain the words for what a call waits for.
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

// probePause is the time between the probes of healthcheck --wait.
const probePause = 200 * time.Millisecond

func newHealthcheck() *cobra.Command {
	var ask adminFlags
	var live bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a running proxy or host whether it is ready: exit code 0 or 1",
		Long: "Asks a proxy or host of this user on this machine, or in this container, for its readiness, as a probe does at /readyz.\n" +
			"It prints one line. The exit code is 0 if it is ready, and 1 if it is not or does not answer.",
		Example: "  mcp-proxy healthcheck\n  mcp-proxy healthcheck --wait 30s\n  mcp-proxy healthcheck --admin unix:///run/mcp/admin.sock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/readyz"
			if live {
				path = "/livez"
			}
			return runHealthcheck(cmd.Context(), &ask, path, wait)
		},
	}
	ask.add(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether it runs (/livez)")
	cmd.Flags().DurationVar(&wait, "wait", 0, "keep asking for this long until it is ready, even while none is running")
	return cmd
}

// runHealthcheck prints the answer on one line, or as JSON.
func runHealthcheck(ctx context.Context, ask *adminFlags, path string, wait time.Duration) error {
	now, err := awaitHealth(ctx, ask, path, wait)
	if nobody, ok := errors.AsType[*runError](err); ok && ask.json {
		_ = printJSON(proxy.Health{Says: []string{nobody.Error()}}) // the exit code matters
	}
	if err != nil {
		return err
	}
	err = printAnswer(now, ask.json, func() { fmt.Fprintln(stdout, strings.Join(now.Says, "; ")) })
	if err == nil && !now.OK {
		return errAnswerIsNo
	}
	return err
}

// awaitHealth asks until the answer is yes or the time is up, and returns the last answer.
func awaitHealth(ctx context.Context, ask *adminFlags, path string, wait time.Duration) (proxy.Health, error) {
	now, err := askHealth(ctx, ask, path)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for !now.OK {
		select {
		case <-time.After(probePause):
		case <-ctx.Done():
			return now, err
		}
		next, nextErr := askHealth(ctx, ask, path)
		if ctx.Err() == nil || next.OK { // else the error is only that the time is up
			now, err = next, nextErr
		}
	}
	return now, err
}

func askHealth(ctx context.Context, ask *adminFlags, path string) (now proxy.Health, err error) {
	c, err := ask.client()
	if err != nil {
		return now, err
	}
	status, body, err := c.get(ctx, path)
	if err != nil {
		return now, &runError{err}
	}
	return proxy.Health{OK: status == http.StatusOK, Says: strings.Split(strings.TrimSpace(body), "\n")}, nil
}
