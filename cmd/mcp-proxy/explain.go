package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newExplain() *cobra.Command {
	var ask adminFlags
	var as string
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
			if !proxy.IsEvent(args[0]) || as != "" {
				return explainName(cmd.Context(), &ask, args[0], as, nil)
			}
			err := show(cmd.Context(), &ask, "/events/"+args[0], func(e *proxy.Event) { printEvent(stdout, e, time.Now()) })
			if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusNotFound { // some names could be ids: database
				return explainName(cmd.Context(), &ask, args[0], as, err)
			}
			return err
		},
	}
	ask.add(cmd)
	cmd.Flags().StringVar(&as, "as", "", "the `CLIENT`, such as token:ci or operator")
	return cmd
}

// explainName prints which upstream has a name, and which clients may use it, or whether the client as may. noEvent
// is the error for a name that is that of no upstream and in no list; nil to explain why.
func explainName(ctx context.Context, ask *adminFlags, name, as string, noEvent error) error {
	path := "/explain/" + url.PathEscape(name)
	if as != "" {
		path += "?as=" + url.QueryEscape(as)
	}
	c, err := ask.client()
	if err != nil {
		return err
	}
	e := new(proxy.Explanation)
	err = c.getJSON(ctx, path, e)
	if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusBadRequest { // bad usage: name or as is wrong
		return r
	}
	if err != nil {
		return err
	}
	if noEvent != nil && e.Listed != "yes" && e.Kind != proxy.KindUpstream {
		return fmt.Errorf("%w; and no upstream is known to list a tool or prompt %s", noEvent, name)
	}
	err = printAnswer(e, ask.json, func() { printExplanation(e) })
	if err == nil && !e.Allowed() && e.Answer != proxy.AnswerDepends && e.Kind != proxy.KindUpstream {
		return errAnswerIsNo
	}
	return err
}

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

// sayWhere says which upstream has the name, and the state of its servers.
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

// An eventPrinter prints an event for people.
type eventPrinter struct {
	*proxy.Event
	now time.Time
	out *tabwriter.Writer
}

// printEvent prints what is known about an event, one fact a line.
func printEvent(w io.Writer, e *proxy.Event, now time.Time) {
	s := &eventPrinter{e, now, tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	fmt.Fprintf(w, "%s  %s\n", e.ID, printable(e.What))
	s.say("when", s.when(e.Time))
	s.say("what", s.about())
	s.say("ran", s.ran())
	s.say("cause", s.cause())
	s.list("stderr", e.Stderr)
	s.say("behind it", strings.Join(e.Upstreams, ", "))
	s.inFlight()
	s.told()
	s.next()
	var before []string
	for _, b := range e.Before {
		before = append(before, fmt.Sprintf("%s  %s  %s", b.ID, s.clock(b.Time), b.What))
	}
	s.list("before", before)
	if e.Trimmed {
		s.say("note", "stderr and lists were discarded to make room for newer events")
	}
	s.rest()
	_ = s.out.Flush() // a closed pipe is no error
}

// say prints a line, unless its text is empty.
func (s *eventPrinter) say(what, text string) {
	if text != "" {
		fmt.Fprintf(s.out, "  %s\t%s\n", what, printable(text))
	}
}

// list prints lines under one heading.
func (s *eventPrinter) list(what string, lines []string) {
	for _, line := range lines {
		s.say(what, line)
		what = ""
	}
}

// when returns a time, and how long ago it was.
func (s *eventPrinter) when(t time.Time) string {
	return fmt.Sprintf("%s, %s ago", t.Local().Format(time.DateTime), roughly(s.now.Sub(t)))
}

// clock returns a time of day, with the date if it is not that of the event.
func (s *eventPrinter) clock(t time.Time) string {
	if t, at := t.Local(), s.Time.Local(); t.YearDay() == at.YearDay() && t.Year() == at.Year() {
		return t.Format(time.TimeOnly)
	}
	return t.Local().Format(time.DateTime)
}

// about returns what happened, and details of the server.
func (s *eventPrinter) about() string {
	words := map[proxy.EventKind]string{
		proxy.ServerEnded:     "the server of " + s.Upstream + " ended unexpectedly",
		proxy.ServerNotBegun:  s.Upstream + " did not start, or was not reached",
		proxy.RequestsFailed:  "requests to " + s.Upstream + " failed",
		proxy.LoginRefused:    s.Upstream + " refused our requests",
		proxy.ClientTooSlow:   "a client of " + s.Upstream + ", which others also use, did not read its messages",
		proxy.LinkEnded:       "a link between a proxy and a host was lost",
		proxy.StoppedInUse:    "the server of " + s.Upstream + " was stopped on purpose while requests waited for it",
		proxy.NotOffered:      "a host announces " + s.Upstream + ", but its proxy does not offer it to clients",
		proxy.ReplicaJoined:   "another replica was found",
		proxy.ReplicaLeft:     "another replica said that it leaves, and has ended",
		proxy.ReplicaDied:     "another replica did not answer any more, and was declared dead",
		proxy.ReplicaLost:     "this replica could not reach another one, which was not declared dead",
		proxy.SessionsMoved:   "another replica leaves, and its sessions were moved here: their servers begin anew with the next request",
		proxy.SessionsAdopted: "another replica has died, and its sessions were continued here: their servers have begun anew",
		proxy.SessionsYielded: "sessions ended here: while this replica could not be reached, or stood still, another one has continued them",
		proxy.SessionsLost:    "clients named sessions of a replica that is gone, and nobody has them: they initialize again",
		proxy.HeardOf:         "the errors of " + cmp.Or(s.Upstream, "an upstream") + " name it; this process did not see it",
	}[s.Kind]
	var more []string
	if s.Session != "" {
		more = append(more, "session "+s.Session)
	}
	if s.Era != "" {
		more = append(more, s.Era+" era")
	}
	if s.PID > 0 {
		more = append(more, fmt.Sprint("pid ", s.PID))
	}
	if s.Streams > 1 {
		more = append(more, fmt.Sprint(s.Streams, " sessions at once"))
	}
	if s.Sessions > 0 {
		more = append(more, count(s.Sessions, "session"))
	}
	if s.Requests > 0 {
		more = append(more, count(s.Requests, "request"))
	}
	if len(more) == 0 {
		return words
	}
	return words + " (" + strings.Join(more, ", ") + ")"
}

func (s *eventPrinter) ran() string {
	if s.Began.IsZero() {
		return ""
	}
	if s.Kind == proxy.ServerNotBegun {
		return "never: it tried for " + roughly(s.Time.Sub(s.Began))
	}
	return fmt.Sprintf("for %s, since %s", roughly(s.Time.Sub(s.Began)), s.clock(s.Began))
}

func (s *eventPrinter) cause() string {
	text := s.Cause
	switch {
	case s.ExitStatus != nil && !strings.Contains(text, "exit status"):
		text += fmt.Sprint(" (exit status ", *s.ExitStatus, ")")
	case s.Signal != "" && !strings.Contains(text, "signal"):
		text += " (signal: " + s.Signal + ")"
	}
	if s.Error != "" && s.Error != s.Cause {
		text += ": " + s.Error
	}
	return text
}

func (s *eventPrinter) inFlight() {
	switch s.Kind {
	case proxy.ServerNotBegun, proxy.LoginRefused, proxy.ReplicaJoined, proxy.ReplicaLeft, proxy.ReplicaLost, proxy.ReplicaDied, proxy.HeardOf,
		proxy.SessionsMoved, proxy.SessionsAdopted, proxy.SessionsYielded, proxy.SessionsLost:
		if s.InFlight == 0 {
			return
		}
	}
	s.say("in flight", count(s.InFlight, "request"))
	var lines []string
	for _, c := range s.Calls {
		line := strings.Join(strings.Fields(fmt.Sprint(c.Session, " ", c.Client, " ", c.Method, " ", c.Tool)), " ")
		lines = append(lines, line+", for "+roughly(time.Duration(c.AgeMs)*time.Millisecond))
	}
	s.list("", withMore(lines, s.CallsLeftOut))
}

func (s *eventPrinter) told() {
	var lines []string
	for _, t := range s.Told {
		who := strings.Join(strings.Fields(fmt.Sprint("session ", t.Session, " ", t.Client, " ", t.Principal)), " ")
		lines = append(lines, who+": "+count(t.Errors, "error"))
	}
	s.list("told", withMore(lines, s.ToldLeftOut))
}

// next says what the event leads to: a restart, or when one is allowed.
func (s *eventPrinter) next() {
	var parts []string
	if s.Failures > 1 {
		parts = append(parts, fmt.Sprint(s.Failures, " failures in a row"))
	}
	if s.State == "crash loop" {
		parts = append(parts, "in a crash loop")
	}
	switch {
	case !s.Started.IsZero():
		parts = append(parts, "last started at "+s.clock(s.Started))
	case s.Next.After(s.Time):
		parts = append(parts, "no restart before "+s.clock(s.Next))
	case s.Kind == proxy.ServerEnded || s.Kind == proxy.ServerNotBegun:
		parts = append(parts, "restarts on the next request")
	}
	s.say("next", strings.Join(parts, ", "))
}

// rest says where to ask for more.
func (s *eventPrinter) rest() {
	if s.Host {
		s.say("more", "the host behind the link "+s.Link+" saw it: ask there with mcp-proxy explain "+s.ID)
	}
}
