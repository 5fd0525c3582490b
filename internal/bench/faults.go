package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// A cell is what was seen, and how long it took; zero if that does not matter.
type cell struct {
	text  string
	after time.Duration
}

var particular = regexp.MustCompile(`127\.0\.0\.1:\d+|[A-Z0-9]{26}`) // ports, and ids of sessions

// String writes c for a table, without what differs from run to run.
func (c cell) String() string {
	text := strings.NewReplacer("|", `\|`, "\n", " ", `\n`, "").Replace(c.text)
	text = particular.ReplaceAllString(text, "…")
	if len(text) > 130 {
		text = text[:130] + "…"
	}
	if c.after > 0 {
		text += ", " + short(c.after)
	}
	return text
}

// A situation is something that goes wrong.
type situation struct {
	name, text string
	columns    []string
	see        func(b programs, w way) ([]cell, error)
	several    bool // there are several clients
}

var situations = []situation{
	{
		"The server is killed", "Eight calls are in flight. Then comes another one of the same client, and one of a new client. A remote server is started again at once.",
		[]string{"the eight calls", "are told", "the next call", "a new client"}, killed, false,
	},
	{
		"The server exits", "One call makes it exit with status 3 while another one waits.",
		[]string{"the two calls", "are told", "the next call", "a new client"}, exits, false,
	},
	{
		"The client cancels", "It sends `notifications/cancelled` for a call.",
		[]string{"the server", "an answer"}, cancels, false,
	},
	{
		"The client leaves", "A call is in flight. The client closes stdin or its WebSocket, or sends DELETE. A stubborn server takes no notice of a closed stdin and of SIGTERM.",
		[]string{"the call at the server", "its server", "a stubborn server", "the proxy"}, leaves, false,
	},
	{
		"The proxy gets SIGTERM", "A call is in flight that takes one second.",
		[]string{"the call", "the proxy", "its server", "a stubborn server"}, terminated, false,
	},
	{
		"Two clients", "Both have a call in flight with the same id. Then the first one leaves while a call of the second one is in flight. Then a third one comes, and its server is killed while a call of the second one is in flight.",
		[]string{"servers", "the same id", "the first one leaves", "the third one's server is killed"}, together, true,
	},
}

// compareFaults writes a table for each situation.
func (b programs) compareFaults(w io.Writer, ways []way) error {
	found, err := b.faults(ways, 3)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s.\n", time.Now().UTC().Format("2 January 2006"))
	for _, s := range situations {
		fmt.Fprintf(w, "\n### %s\n\n%s\n", s.name, s.text)
		fmt.Fprintf(w, "\n| | | %s |\n|---|---|%s\n", strings.Join(s.columns, " | "), strings.Repeat("---|", len(s.columns)))
		for _, route := range routes {
			for _, way := range ways {
				if cells := found[s.name+way.program+way.route]; way.route == route && cells != nil {
					fmt.Fprintf(w, "| %s | %s ", route, way.program)
					for _, c := range cells {
						fmt.Fprintf(w, "| %s ", c)
					}
					fmt.Fprintln(w, "|")
				}
			}
		}
	}
	return nil
}

// faults returns what is seen in all situations on all ways, by the names of all three. It
// tries a few at a time, for most of them wait.
func (b programs) faults(ways []way, atOnce int) (map[string][]cell, error) {
	type seen struct {
		name  string
		cells []cell
	}
	all := make(chan seen, len(situations)*len(ways))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, s := range situations {
		for _, w := range ways {
			if s.several && !w.several {
				continue
			}
			g.Go(func() error {
				cells, err := s.see(b, w)
				if err != nil {
					return fmt.Errorf("%s: %s, %s: %w", s.name, w.program, w.route, err)
				}
				all <- seen{s.name + w.program + w.route, cells}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	close(all)
	found := map[string][]cell{}
	for s := range all {
		found[s.name] = s.cells
	}
	return found, nil
}
