package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// A fleet is three replicas in front of one remote server, and the ids of sessions there. The
// replica that is restarted is the first one.
type fleet struct {
	b        programs
	s        *session // its processes are the replicas, and then the server
	argv     [3][]string
	sessions []string // session i began at replica i%3
}

// movers is how many clients call at a time.
const movers = 32

// replicate begins n sessions on three replicas.
func (b programs) replicate(n int) (f *fleet, err error) {
	n = max(n, 3)
	f = &fleet{b: b, s: &session{}, sessions: make([]string, n)}
	defer func() {
		if err != nil {
			err = f.s.endAfter(err)
		}
	}()
	far, err := start([]string{b.echo, "http"}, true)
	if err != nil {
		return nil, err
	}
	f.s.procs = []*process{far}
	url, err := far.url()
	if err != nil {
		return nil, err
	}
	upstream := fmt.Sprintf(`"upstreams": {"echo": {"url": %q, "era": "legacy", "session": "shared"}}, "limits": {"sessions": %d}`, url, 2*n)
	names := []string{"replica-0", "replica-1", "replica-2"}
	if err := b.writeReplicas(upstream, names...); err != nil {
		return nil, err
	}
	for i, name := range names {
		f.argv[i] = b.serve(name)
		p, err := start(f.argv[i], true)
		if err != nil {
			return nil, err
		}
		f.s.procs = slices.Insert(f.s.procs, i, p)
	}
	return f, f.open()
}

// open begins the sessions, once the replicas know each other.
func (f *fleet) open() error {
	if err := f.each(3, func(i int, c *caller, w *httpWire) error {
		if err := errors.Join(c.initialize(), c.initialized()); err != nil {
			return err
		}
		var known error
		for at := range 3 {
			host, err := f.s.procs[at].address()
			known = errors.Join(known, err, passesOn(host, w))
		}
		f.sessions[i] = w.session
		return known
	}); err != nil {
		return err
	}
	return f.each(len(f.sessions), func(i int, c *caller, w *httpWire) error {
		if i < 3 {
			return nil
		}
		err := errors.Join(c.initialize(), c.initialized())
		f.sessions[i] = w.session
		return err
	})
}

// each calls do for n sessions, several at a time, each with a client at the replica where the session began.
// Session i begins if it has no id yet.
func (f *fleet) each(n int, do func(i int, c *caller, w *httpWire) error) error {
	var g errgroup.Group
	for first := range movers {
		g.Go(func() error {
			var conns [3]*conn
			for i := first; i < n; i += movers {
				c, err := f.at(&conns, i%3)
				if err != nil {
					return err
				}
				w := c.wire.(*httpWire)
				w.session = f.sessions[i]
				if err := do(i, c.caller(f.s.nextID), w); err != nil {
					return fmt.Errorf("session %d: %w", i, err)
				}
			}
			for _, c := range conns {
				if c != nil {
					c.w.Close()
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// at returns a connection to a replica.
func (f *fleet) at(conns *[3]*conn, replica int) (*conn, error) {
	if conns[replica] != nil {
		return conns[replica], nil
	}
	c, err := openHTTP(f.s.procs[replica])
	conns[replica] = c
	return c, err
}

// memory returns the private memory of each replica, in MiB.
func (f *fleet) memory() (text string, err error) {
	time.Sleep(settle)
	var sizes []string
	for _, p := range f.s.procs[:3] {
		size, bad := p.anon()
		sizes, err = append(sizes, fmt.Sprintf("%.0f", size/mib)), errors.Join(err, bad)
	}
	return strings.Join(sizes, ", ") + " MiB", err
}

// moving prints what becomes of n sessions when one of three replicas is restarted: it stops as an operator
// stops it, the sessions move, it starts again, and each session calls at the replica where it began, without
// an initialize.
func moving(w io.Writer, b programs, n int) (err error) {
	f, err := b.replicate(n)
	if err != nil {
		return err
	}
	defer func() { err = f.s.endAfter(err) }()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%d sessions on three replicas, of which the first is restarted\t\taim\t\n", n)
	sizes := func(when string) error {
		text, err := f.memory()
		fmt.Fprintf(t, "private memory %s\t%s\t\t\n", when, text)
		return err
	}
	if err := sizes("of each before"); err != nil {
		return err
	}
	took, err := f.restart()
	if err != nil {
		return err
	}
	taken, err := f.taken()
	if err != nil {
		return err
	}
	fmt.Fprintf(t, "from the signal to its end\t%s\t%s\t\n", milli(took), atMost(took.Seconds(), grace.Seconds(), grace.String()))
	fmt.Fprintf(t, "sessions that the others took\t%d\t%s\t\n", taken, all(taken, (n+2)/3))
	if err := sizes("when it has started again"); err != nil {
		return err
	}
	begin := time.Now()
	if err := f.each(n, func(_ int, c *caller, _ *httpWire) error { return c.call(0) }); err != nil {
		return err
	}
	fmt.Fprintf(t, "sessions that work without an initialize\t%d\t%s\t\n", n, all(n, n))
	fmt.Fprintf(t, "their calls, %d at a time, in\t%s\t\t\n", movers, milli(time.Since(begin)))
	if err := sizes("after these calls"); err != nil {
		return err
	}
	return t.Flush()
}

// restart stops the first replica, and starts it again. It returns how long the end took.
func (f *fleet) restart() (took time.Duration, err error) {
	begin := time.Now()
	if err := f.s.procs[0].stop(); err != nil {
		return 0, err
	}
	took = time.Since(begin)
	if f.s.procs[0], err = start(f.argv[0], true); err != nil {
		return took, err
	}
	host, err := f.s.procs[0].address()
	if err != nil {
		return took, err
	}
	return took, passesOn(host, &httpWire{session: f.sessions[1]})
}

// taken returns how many sessions have moved to the replicas that stayed.
func (f *fleet) taken() (sum int, err error) {
	for i := 1; i < 3; i++ {
		n, bad := metric(f.b.file(fmt.Sprintf("replica-%d.sock", i)), `mcp_proxy_replica_sessions_total{outcome="taken"}`)
		sum, err = sum+int(n), errors.Join(err, bad)
	}
	return sum, err
}
