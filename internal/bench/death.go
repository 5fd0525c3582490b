package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

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
			if err := kill(pid); err != nil && len(servers) == 1 {
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
	lost, first := tally(at, calls)
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
	return []cell{lost, {text: first}, next, t.newClient()}, nil
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
		if n := count[what]; n == 1 {
			parts = append(parts, "1 "+strings.TrimSuffix(what, "s"))
		} else if n > 1 {
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
	case t.over():
		return cell{text: "the proxy has ended"}
	}
	return cell{text: r.text}
}

// over reports whether the proxy has ended, or does so in a moment: its connections end first.
func (t *trial) over() bool { return within(300*time.Millisecond, t.proxy().ended) }

// newClient says whether a client that connects now is answered.
func (t *trial) newClient() cell {
	if !t.way.several {
		return cell{text: "–"}
	}
	c, err := t.join()
	if err != nil {
		if t.over() {
			return cell{text: "the proxy has ended"}
		}
		return cell{text: told(err)}
	}
	return t.next(c)
}

// join returns the connection of one more client.
func (t *trial) join() (*conn, error) {
	c, err := t.tgt.open(t.proxy())
	if err != nil {
		return nil, err
	}
	c.prefix, c.whole, c.several = t.tgt.prefix, true, true
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
