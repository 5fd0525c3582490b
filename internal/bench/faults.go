package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// A cell is what was seen, and how long it took; zero if that does not matter.
type cell struct {
	text  string
	after time.Duration
}

var ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// String writes c for a table, without what differs from run to run.
func (c cell) String() string {
	text := strings.NewReplacer("|", `\|`, "\n", " ", `\n`, "").Replace(c.text)
	text = ports.ReplaceAllString(text, "…")
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

// killed kills the server, and sees what becomes of calls.
func killed(b programs, w way) (cells []cell, err error) {
	return cells, b.try(w, false, func(t *trial) error {
		var calls []call
		servers := map[int]bool{}
		for i := range 8 {
			k, on, err := t.hold(t.s.callers[i].conn, fmt.Sprint("k", i), 60_000)
			if err != nil {
				return err
			}
			calls = append(calls, k)
			servers[on] = true
		}
		at := time.Now()
		for pid := range servers {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && len(servers) == 1 {
				return err // of several, a proxy may have stopped some since
			}
		}
		cells, err = t.aftermath(at, calls)
		return err
	})
}

// exits has the server exit while a call waits.
func exits(b programs, w way) (cells []cell, err error) {
	return cells, b.try(w, false, func(t *trial) error {
		waits, _, err := t.hold(t.s.callers[0].conn, "w", 60_000)
		if err != nil {
			return err
		}
		exit := t.call(t.s.callers[1].conn, "exit", `{"status":3}`)
		cells, err = t.aftermath(exit.begun, []call{exit, waits})
		return err
	})
}

// aftermath sees what calls are told of a server that died at a time, and whether another
// one is answered.
func (t *trial) aftermath(at time.Time, calls []call) ([]cell, error) {
	lost, told := tally(at, calls)
	if t.way.remote() {
		again, err := start(t.at(strings.TrimSuffix(strings.TrimPrefix(t.s.far, "http://"), "/mcp")), true)
		if err != nil {
			return nil, err
		}
		t.s.procs = append(t.s.procs, again)
		if _, err := again.url(); err != nil {
			return nil, err
		}
	}
	next := t.next(t.s.callers[width/2].conn)
	return []cell{lost, {text: told}, next, t.newClient()}, nil
}

// tally says how many of calls got errors, after what time the last one did, and what the
// first one was told.
func tally(at time.Time, calls []call) (lost cell, told string) {
	count := map[string]int{}
	deadline := at.Add(bearable)
	for _, k := range calls {
		r := k.wait(time.Until(deadline))
		switch {
		case r.none:
			count["no answer"]++
		case r.result:
			count["answered"]++
		default:
			count["errors"]++
			lost.after = max(lost.after, r.at.Sub(at))
			if told == "" {
				told = r.text
			}
		}
	}
	var parts []string
	for _, what := range []string{"errors", "answered", "no answer"} {
		if n := count[what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	lost.text = strings.Join(parts, ", ")
	if told == "" {
		told = fmt.Sprintf("nothing within %s", bearable)
	}
	return lost, told
}

// next says whether a call on c is answered.
func (t *trial) next(c *conn) cell {
	k := t.call(c, "pid", "{}")
	r := k.wait(bearable)
	switch {
	case r.result:
		return cell{"works", r.at.Sub(k.begun)}
	case r.none:
		return cell{text: fmt.Sprintf("no answer within %s", bearable)}
	case t.proxy().ended():
		return cell{text: "the proxy has ended"}
	}
	return cell{text: r.text}
}

// newClient says whether a client that connects now is answered.
func (t *trial) newClient() cell {
	if !t.way.several {
		return cell{text: "–"}
	}
	c, err := t.join()
	if err != nil {
		if t.proxy().ended() {
			return cell{text: "the proxy has ended"}
		}
		return cell{text: answer{err: err}.read().text}
	}
	return t.next(c)
}

// join returns the connection of one more client.
func (t *trial) join() (*conn, error) {
	c, err := t.tgt.open(t.proxy())
	if err != nil {
		return nil, err
	}
	c.prefix, c.whole = t.tgt.prefix, true
	done := make(chan error, 1)
	go func() { done <- t.s.join(c) }()
	select {
	case err = <-done:
	case <-time.After(bearable):
		c.w.Close()
		err = errors.Join(errNoAnswer, <-done)
	}
	return c, err
}

// cancels cancels a call.
func cancels(b programs, w way) (cells []cell, err error) {
	return cells, b.try(w, false, func(t *trial) error {
		k, _, err := t.hold(t.s.callers[0].conn, "c", 60_000)
		if err != nil {
			return err
		}
		at := time.Now()
		notice := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, k.id)
		if err := t.s.callers[1].conn.send(notice, 0, nil); err != nil {
			return err
		}
		cells = []cell{t.fate("c", at), {text: "none"}}
		if r := k.wait(500 * time.Millisecond); !r.none {
			cells[1].text = r.text
		}
		return nil
	})
}

// fateful is how long a server may take to hear of something, or to end in peace.
const fateful = 6 * time.Second

// fate says what becomes of the call with tag at the server.
func (t *trial) fate(tag string, at time.Time) cell {
	var e event
	var ok bool
	within(fateful, func() bool {
		e, ok = t.find(0, tag, "cancelled", "abandoned")
		return ok || len(t.running()) == 0
	})
	e, ok = t.find(0, tag, "cancelled", "abandoned") // it may have been its last word
	switch {
	case ok && e.what == "abandoned":
		return cell{"sees its connection closed", time.Since(at)}
	case ok:
		return cell{"is cancelled", time.Since(at)}
	case len(t.running()) == 0:
		return cell{text: "ends with the server"}
	}
	return cell{text: "goes on"}
}

// grave says when the last server ended, within limit.
func (t *trial) grave(at time.Time, limit time.Duration) cell {
	if t.way.remote() {
		if _, ok := t.find(limit, "", "deleted"); ok {
			return cell{text: "its session is deleted"}
		}
		return cell{text: "its session stays"}
	}
	if within(limit, func() bool { return len(t.running()) == 0 }) {
		return cell{"ended", time.Since(at)}
	}
	return cell{text: fmt.Sprintf("runs on after %s", limit)}
}

// obstinacy is how long a stubborn server is watched.
const obstinacy = 12 * time.Second

// leaves has the client leave with a call in flight.
func leaves(b programs, w way) (cells []cell, err error) {
	see := func(t *trial) error {
		if _, _, err := t.hold(t.s.callers[0].conn, "l", 60_000); err != nil {
			return err
		}
		at := time.Now()
		if err := t.leave(t.s.conns...); err != nil {
			return err
		}
		var proxy cell
		var g errgroup.Group
		g.Go(func() error { proxy = t.orphan(at); return nil })
		if cells == nil {
			cells = []cell{{}, {}, {text: "–"}, {}}
			g.Go(func() error { cells[0] = t.fate("l", at); return nil })
			g.Go(func() error { cells[1] = t.grave(at, fateful); return nil })
			g.Wait()
			cells[3] = proxy
			return nil
		}
		cells[2] = t.grave(at, obstinacy)
		return g.Wait()
	}
	if err := b.try(w, false, see); err != nil || w.remote() {
		return cells, err
	}
	return cells, b.try(w, true, see)
}

// orphan says how the proxy that a client started ends when the client has left. A client
// waits for 2 s, sends SIGTERM, waits as long again, and sends SIGKILL.
func (t *trial) orphan(at time.Time) cell {
	p := t.proxy()
	if t.way.several {
		if p.ended() {
			return cell{text: "ended"}
		}
		return cell{text: "stays"}
	}
	for _, step := range []struct {
		sig  syscall.Signal
		text string
	}{{0, "ended"}, {syscall.SIGTERM, "needed SIGTERM"}, {syscall.SIGKILL, "needed SIGKILL"}} {
		p.cmd.Process.Signal(step.sig)
		if within(2*time.Second, p.ended) {
			return cell{step.text, time.Since(at)}
		}
	}
	return cell{text: "runs on"}
}

// terminated sends SIGTERM to the proxy while a call is in flight.
func terminated(b programs, w way) (cells []cell, err error) {
	see := func(t *trial) error {
		k, _, err := t.hold(t.s.callers[0].conn, "t", 1000)
		if err != nil {
			return err
		}
		at := time.Now()
		if err := t.proxy().cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if cells != nil {
			cells[3] = t.grave(at, obstinacy)
			return nil
		}
		r := k.wait(bearable)
		told := cell{text: r.text}
		if r.result {
			told.text = "is answered"
		}
		end := cell{text: fmt.Sprintf("runs on after %s", obstinacy)}
		if within(obstinacy, t.proxy().ended) {
			end = cell{"ended", time.Since(at)}
		}
		cells = []cell{told, end, t.grave(at, fateful), {text: "–"}}
		return nil
	}
	if err := b.try(w, false, see); err != nil || w.remote() {
		return cells, err
	}
	return cells, b.try(w, true, see)
}

// together sees what two clients have to do with each other.
func together(b programs, w way) (cells []cell, err error) {
	return cells, b.try(w, false, func(t *trial) error {
		other, err := t.join()
		if err != nil {
			cells = []cell{{text: "the second client: " + answer{err: err}.read().text}, {}, {}, {}}
			return nil
		}
		first := t.s.callers[0].conn
		cells = []cell{t.servers(first, other), t.sameID(first, other)}
		for _, happens := range []func() error{func() error { return t.leave(first) }, t.killThird} {
			k, _, err := t.hold(other, fmt.Sprint("stays", len(cells)), 500)
			if err != nil {
				cells = append(cells, cell{text: k.outcome().text})
				continue
			}
			if err := happens(); err != nil {
				return err
			}
			cells = append(cells, k.outcome())
		}
		return nil
	})
}

// killThird has one more client come, and kills its server.
func (t *trial) killThird() error {
	third, err := t.join()
	if err != nil {
		return err
	}
	_, pid, err := t.hold(third, "third", 60_000)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// outcome says whether k is answered.
func (k call) outcome() cell {
	if r := k.wait(bearable); !r.result {
		return cell{text: r.text}
	}
	return cell{text: "is answered"}
}

// servers says whether two clients have one.
func (t *trial) servers(a, b *conn) cell {
	one, two := t.call(a, "pid", "{}").wait(bearable), t.call(b, "pid", "{}").wait(bearable)
	switch {
	case !one.result || !two.result:
		return cell{text: one.text + "; " + two.text}
	case one.text == two.text:
		return cell{text: "one for both"}
	}
	return cell{text: "one each"}
}

// sameID says whether each client gets its own answer when both use the same id.
func (t *trial) sameID(a, b *conn) cell {
	const id = 1_000_000
	one := t.callAs(id, a, "wait", `{"tag":"one","ms":200}`)
	two := t.callAs(id, b, "wait", `{"tag":"two","ms":200}`)
	first, second := one.wait(bearable), two.wait(bearable)
	if strings.HasSuffix(first.text, "one") && strings.HasSuffix(second.text, "two") {
		return cell{text: "each gets its own answer"}
	}
	return cell{text: fmt.Sprintf("one gets %q, the other %q", first.text, second.text)}
}
