package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// absolute returns a row that is set against no floor.
func absolute(path, figure, format string, value, limit float64) goal {
	return goal{path: path, figure: figure, here: fmt.Sprintf(format, value), aim: atMost(value, limit, fmt.Sprint(limit))}
}

// lightMemory has what initialized clients take, and what the proxy takes without any and after calls.
func (b programs) lightMemory(o options) (rows []goal, err error) {
	for _, g := range []struct {
		group
		limit float64
	}{
		{group{text: "isolated", tgt: b.webSocket(alone), clients: 500, initialize: true}, 56},
		{group{text: "shared", tgt: b.webSocket(shared), clients: 2000, initialize: true}, 40},
	} {
		var private, resident []float64
		for range max(o.rounds/2, 1) {
			p, r, err := g.grows()
			if err != nil {
				return nil, err
			}
			private, resident = append(private, p), append(resident, r)
		}
		p, r := spread(private), spread(resident)
		row := absolute("an initialized client, "+g.text, "KiB, private", "%.1f", p.middle, g.limit)
		row.here += fmt.Sprintf(" ± %.1f", p.error)
		rows = append(rows, row, absolute("an initialized client, "+g.text, "KiB, resident", "%.1f", r.middle, 0))
	}
	more, err := b.lightLoad(o)
	return append(rows, more...), err
}

// grows returns how much private and resident memory each client of g adds, in KiB.
func (g group) grows() (private, resident float64, err error) {
	s, err := g.tgt.launch(probe{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = s.endAfter(err) }()
	before, err := s.memory()
	if err != nil {
		return 0, 0, err
	}
	if err := s.admit(g); err != nil {
		return 0, 0, err
	}
	after, err := s.memory()
	each := float64(g.clients) * kib
	return (after.private - before.private) / each, (after.resident - before.resident) / each, err
}

// A size is the memory of a proxy in bytes.
type size struct{ private, resident float64 }

// atRest is how long a proxy has nothing to do before its memory is read. It gives back what it does not need
// after two seconds of rest, and looks every two seconds, so after the start it takes four.
const atRest = 5 * time.Second

// memory returns that of the process that clients reach, when it is at rest.
func (s *session) memory() (m size, err error) {
	time.Sleep(atRest)
	private, err := s.procs[0].anon()
	if err != nil {
		return m, err
	}
	resident, err := s.procs[0].rss()
	return size{private, resident}, err
}

// rows returns the lines of m.
func (m size) rows(path string, limit float64) []goal {
	return []goal{
		absolute(path, "MiB, private", "%.1f", m.private/mib, limit),
		absolute(path, "MiB, resident", "%.1f", m.resident/mib, 0),
	}
}

// lightLoad has the memory of proxies without clients, and after many calls.
func (b programs) lightLoad(o options) (rows []goal, err error) {
	idle, err := b.idle()
	if err != nil {
		return nil, err
	}
	rows = append(rows, idle.rows("idle, serve", 2.6)...)
	for _, p := range b.fronts() {
		s, err := p.with.begin(probe{})
		if err != nil {
			return nil, err
		}
		_, err = s.together(5 * time.Second)
		if err == nil {
			_, err = s.oneByOne(big, o.part)
		}
		var after size
		if err == nil {
			after, err = s.memory()
		}
		if err := errors.Join(s.explain(err), s.end()); err != nil {
			return nil, err
		}
		rows = append(rows, after.rows("after load, "+p.name, 20)...)
	}
	return rows, nil
}

// idle returns the memory of a proxy that nobody has reached yet.
func (b programs) idle() (m size, err error) {
	s, err := b.webSocket(alone).launch(probe{})
	if err != nil {
		return m, err
	}
	defer func() { err = s.endAfter(err) }()
	return s.memory()
}

// emptied is how long a crowd has gone when the memory that is left is read.
const emptied = 45 * time.Second

// lightCrowd has the memory that is left of a crowd.
func (b programs) lightCrowd(options) (rows []goal, err error) {
	c := crowd{2000, 1}
	tgt, err := c.target(b)
	if err != nil {
		return nil, err
	}
	s, err := tgt.launch(probe{})
	if err != nil {
		return nil, err
	}
	defer func() { err = s.endAfter(err) }()
	g := &gathering{s: s, members: c}
	if _, err := g.arrive(); err != nil {
		return nil, err
	}
	var v visit
	g.call(&v)
	there, err := s.memory()
	if err != nil {
		return nil, err
	}
	g.leave()
	time.Sleep(emptied)
	left, err := s.memory()
	return append(there.rows("with a crowd of 2,000", 0), left.rows("45 s after it has gone", 40)...), err
}

// waiting is how many calls wait.
const waiting = 10_000

// lightWaiting has calls that are open while nothing comes, over one WebSocket, and over HTTP with a
// connection each.
func (b programs) lightWaiting(options) (rows []goal, err error) {
	const patient = "patient"
	text := fmt.Sprintf(`{%s, "limits": {"inFlight": %d}}`, b.upstream(), 2*waiting)
	if err := os.WriteFile(b.config(patient), []byte(text), 0o600); err != nil {
		return nil, err
	}
	tgt := b.webSocket(patient)
	for _, way := range []struct {
		name  string
		open  func(*process) (*conn, error)
		limit float64
	}{{"websocket", openWebSocket, 3}, {"http", openHTTP, 0}} {
		tgt.open = way.open
		each, err := waits(tgt)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
		rows = append(rows, absolute("a waiting call, "+way.name, fmt.Sprintf("KiB, private, of %d", waiting), "%.2f", each, way.limit))
	}
	return rows, nil
}

// waits returns how much private memory a call takes that is not answered, in KiB.
func waits(tgt target) (each float64, err error) {
	s, err := tgt.launch(probe{})
	if err != nil {
		return 0, err
	}
	defer func() { err = s.endAfter(err) }()
	c, err := tgt.open(s.procs[0])
	if err != nil {
		return 0, err
	}
	if err := s.join(c); err != nil {
		return 0, err
	}
	before, err := s.memory()
	if err != nil {
		return 0, err
	}
	call := c.caller(s.nextID)
	for range waiting {
		at := c
		if w, ok := c.wire.(*httpWire); ok {
			if at, err = c.another(w, 4*kib); err != nil {
				return 0, err
			}
			s.conns = append(s.conns, at)
		}
		call.compose(s.nextID(), "tools/call", called("wait", 0))
		if err := at.send(call.msg, 0, nil); err != nil {
			return 0, err
		}
	}
	if err := call.call(0); err != nil { // the others have come before it
		return 0, err
	}
	after, err := s.memory()
	return (after.private - before.private) / waiting / kib, err
}
