package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A crowd is WebSocket clients that come all at once, to a proxy with so many
// upstreams that are shared by all.
type crowd struct{ clients, upstreams int }

// Crowds of a full run, and of a quick one.
var (
	largest = []crowd{{250, 20}, {10_000, 1}}
	small   = []crowd{{50, 4}}
)

func (c crowd) String() string { return fmt.Sprintf("%dx%d", c.clients, c.upstreams) }

// parseCrowd is the inverse of String.
func parseCrowd(text string) (c crowd, err error) {
	if _, err := fmt.Sscanf(text, "%dx%d", &c.clients, &c.upstreams); err != nil || c.String() != text || min(c.clients, c.upstreams) < 1 {
		return c, errors.New("want CLIENTSxUPSTREAMS")
	}
	return c, nil
}

// A visit is how a crowd has fared. Memory, descriptors and processor time are the
// proxy's.
type visit struct {
	initialized int           // clients
	arrival     time.Duration // until all of them were
	arrivalCPU  time.Duration
	each        float64 // bytes, for each client and upstream

	calls, answered int
	p50, p99        time.Duration // of a call
	calling         time.Duration // all of the calls
	callingCPU      time.Duration

	left  float64 // bytes, when they have gone
	files int     // descriptors, likewise

	again time.Duration // the arrival of as many others
	exit  time.Duration // from the signal to the end of the proxy, with all of them there
}

const (
	// patience is how long a crowd waits for all answers before it leaves.
	patience = time.Minute

	// dialers is how many clients connect at a time.
	dialers = 128
)

// visit lets c come, call and go, and come again to see the proxy end.
func (c crowd) visit(b programs, pr probe) (v visit, err error) {
	tgt, err := c.target(b)
	if err != nil {
		return v, err
	}
	s, err := tgt.launch(pr)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(s.explain(err), s.end()) }()

	before, err := c.empty(s)
	if err != nil {
		return v, err
	}
	g := &gathering{s: s, members: c}
	if err := errors.Join(g.come(&v), pr.collect(tgt), g.stay(&v, before)); err != nil {
		return v, err
	}
	g.leave()
	if err := v.remains(s, before); err != nil {
		return v, err
	}
	return v, (&gathering{s: s, members: c}).end(&v)
}

// A house is what the proxy takes without clients, once the servers have started.
type house struct {
	memory float64
	files  int
}

func (c crowd) empty(s *session) (h house, err error) {
	first := &gathering{s: s, members: crowd{1, c.upstreams}} // starts them
	if _, err := first.arrive(); err != nil {
		return h, err
	}
	first.leave()
	sizes, err := s.rss()
	if err != nil {
		return h, err
	}
	files, err := s.procs[0].files()
	return house{sizes[0], files}, err
}

// come has all arrive.
func (g *gathering) come(v *visit) (err error) {
	before := g.s.usage().cpu
	v.arrival, err = g.arrive()
	v.arrivalCPU = g.s.usage().cpu - before
	v.initialized = len(g.callers)
	return err
}

// stay has all idle, and then call.
func (g *gathering) stay(v *visit, before house) error {
	sizes, err := g.s.rss()
	if err != nil {
		return err
	}
	v.each = (sizes[0] - before.memory) / float64(g.members.clients*g.members.upstreams)
	cpu := g.s.usage().cpu
	g.call(v)
	v.callingCPU = g.s.usage().cpu - cpu
	return nil
}

// end has all arrive and the proxy end.
func (g *gathering) end(v *visit) (err error) {
	if v.again, err = g.arrive(); err != nil {
		return err
	}
	begin := time.Now()
	err = g.s.procs[0].stop()
	v.exit = time.Since(begin)
	g.leave()
	g.s.procs = nil
	return err
}

// remains notes what the proxy keeps of a crowd that has gone.
func (v *visit) remains(s *session, before house) error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		now, err := s.procs[0].files()
		if err != nil {
			return err
		}
		if v.files = now - before.files; v.files <= 0 || time.Now().After(end) {
			break
		}
	}
	sizes, err := s.rss()
	if err != nil {
		return err
	}
	v.left = sizes[0] - before.memory
	return nil
}

// target is a proxy with c's upstreams. Its limits are the defaults if these allow
// so many clients.
func (c crowd) target(b programs) (target, error) {
	var upstreams []string
	for i := range c.upstreams {
		upstreams = append(upstreams, fmt.Sprintf(`"%s": {"command": %q, "era": "legacy", "session": "shared"}`, c.upstream(i), b.echo))
	}
	limits := ""
	if c.clients > 250 {
		limits = fmt.Sprintf(`, "limits": {"sessions": %d}`, 3*c.clients)
	}
	text := fmt.Sprintf(`{"upstreams": {%s}%s}`, strings.Join(upstreams, ", "), limits)
	name := "crowd-" + c.String()
	return b.webSocket(name), os.WriteFile(b.config(name), []byte(text), 0o600)
}

func (crowd) upstream(i int) string { return fmt.Sprintf("u%d", i) }

// tool is the name of the tool of upstream i.
func (c crowd) tool(i int) string {
	if c.upstreams == 1 {
		return "echo"
	}
	return c.upstream(i) + "__echo"
}

// A gathering is the clients of a crowd that have come to a proxy.
type gathering struct {
	s       *session
	members crowd

	mu      sync.Mutex // guards the fields below
	conns   []*conn
	callers []*caller // initialized
	readers sync.WaitGroup
}

// arrive connects all members and then initializes all at once. It returns when
// each has its answer, or lost patience.
func (g *gathering) arrive() (time.Duration, error) {
	begin := time.Now()
	var dialing errgroup.Group
	dialing.SetLimit(dialers)
	for range g.members.clients {
		dialing.Go(g.connect)
	}
	if err := dialing.Wait(); err != nil {
		return 0, err
	}
	defer g.impatient()()
	var opening sync.WaitGroup
	for _, c := range g.conns {
		opening.Go(func() { g.initialize(c) })
	}
	opening.Wait()
	return time.Since(begin), nil
}

func (g *gathering) connect() error {
	addr, err := g.s.procs[0].address()
	if err != nil {
		return err
	}
	c, err := dialWebSocket(addr, "/ws", 4<<10)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, c)
	c.several = true // they leave while they wait
	g.readers.Go(func() {
		c.readLoop()
		c.w.Close() // a proxy that says goodbye waits for it
	})
	return nil
}

func (g *gathering) initialize(c *conn) {
	client := c.caller(g.s.nextID)
	if client.initialize() != nil || client.initialized() != nil {
		return // it is missing among callers
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.callers = append(g.callers, client)
}

// impatient has all leave after some time, unless stop is called.
func (g *gathering) impatient() (stop func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	unhook := context.AfterFunc(ctx, g.hangUp)
	return func() bool { defer cancel(); return unhook() }
}

func (g *gathering) hangUp() {
	for _, c := range g.conns {
		c.w.Close() // readLoop tells whoever waits
	}
}

// leave disconnects all.
func (g *gathering) leave() {
	g.hangUp()
	g.readers.Wait()
}

// call has all clients call at the same time each upstream's tool once.
func (g *gathering) call(v *visit) {
	defer g.impatient()()
	var mu sync.Mutex
	var times []time.Duration
	begin := time.Now()
	var calling sync.WaitGroup
	for n, client := range g.callers {
		calling.Go(func() {
			for i := range g.members.upstreams {
				sent := time.Now()
				if client.callTool(g.members.tool((n+i)%g.members.upstreams), 0) != nil {
					continue
				}
				mu.Lock()
				times = append(times, time.Since(sent))
				mu.Unlock()
			}
		})
	}
	calling.Wait()
	slices.Sort(times)
	v.calling = time.Since(begin)
	v.calls, v.answered = g.members.clients*g.members.upstreams, len(times)
	v.p50, v.p99 = quantile(times, 0.50), quantile(times, 0.99)
}

// visits prints how each of crowds has fared.
func visits(w io.Writer, b programs, crowds []crowd, pr profiler) error {
	for _, c := range crowds {
		v, err := c.visit(b, pr.probe("crowd-"+c.String()))
		if v.arrival > 0 { // it tells much, even if the proxy did not bear it to the end
			fmt.Fprintln(w)
			err = errors.Join(err, printVisit(w, c, v))
		}
		if err != nil {
			return fmt.Errorf("crowd of %s: %w", c, err)
		}
	}
	return nil
}
