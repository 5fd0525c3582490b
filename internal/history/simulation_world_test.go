package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/eras"
)

// A simulation is a world in memory, in one synctest bubble. Its Conns pause at random.
type simulation struct {
	*world
	random *rand.Rand // what the world is like
	log    *eventLog

	registers map[string]register
	traits    map[string]traits
	rules     []policy.Rule // nil for none

	mu        sync.Mutex // guards the fields below
	proxy     *memoryProxy
	far       *memoryHost // behind a link
	live      map[string][]*memoryServer
	conns     uint64 // that were opened
	processes int
	versions  map[string]int // of each server's configuration
	removed   string         // the server that it has not, "" for none
}

// simulate makes one history in memory, and returns it with the log.
func simulate(seed uint64, p *plant) (events []Event, logs []byte, left []Anomaly) {
	s := newSimulation(seed, p)
	o := options{seed: seed, clients: 1 + s.random.IntN(3)}
	if s.random.IntN(2) == 0 && p == nil {
		o.faults = s.faults()
	}
	o.phase(context.Background(), s.world, 0, time.Duration(1+s.random.Int64N(5*int64(s.gap))))
	left = s.left()
	s.finish()
	return s.rec.take(), s.log.take(), left
}

func newSimulation(seed uint64, p *plant) *simulation {
	began, last := time.Now(), int64(0)
	clock := func() int64 { // no two events are at the same time
		last = max(last+1, int64(time.Since(began)))
		return last
	}
	s := &simulation{random: rand.New(rand.NewPCG(seed, 1)), log: &eventLog{}, registers: map[string]register{}, traits: map[string]traits{}, live: map[string][]*memoryServer{}, versions: map[string]int{}}
	s.world = &world{seed: seed, rec: &recorder{clock: clock}, plant: p, running: map[string]string{}}
	s.patience, s.giveUp = context.WithCancel(context.Background())
	gap := pick(s.random, []time.Duration{20 * time.Millisecond, 20 * time.Millisecond, 500 * time.Millisecond})
	s.usage = usage{s.kinds(), s.choose(), 2, 8, gap, pick(s.random, []time.Duration{0, 3 * time.Second}), 2 * gap}
	for _, name := range s.servers {
		s.registers[name] = &memoryRegister{values: map[string]int{}}
		s.traits[name] = s.draw(name)
	}
	if s.random.IntN(2) == 0 {
		s.rules = s.deny()
	}
	s.far = s.newHost(isFar)
	s.proxy = s.newProxy()
	return s
}

// traits are how a server is configured.
type traits struct {
	shared, remote bool
	modern, known  bool // its era, and whether that is configured
	lazy           bool
	rest           time.Duration // idleStop
}

// draw returns the traits of a server: those that its name says, and random ones.
func (s *simulation) draw(name string) traits {
	t := traits{shared: strings.HasSuffix(name, "common"), remote: strings.HasSuffix(name, "remote"), modern: strings.HasPrefix(name, "modern")}
	t.known, t.lazy = !t.remote || s.random.IntN(2) == 0, s.random.IntN(2) == 0
	if s.random.IntN(4) == 0 {
		t.rest = time.Duration(1+s.random.IntN(100)) * time.Millisecond
	}
	return t
}

func isFar(name string) bool { return strings.HasPrefix(name, "far") }

// choose returns up to three servers, of which at least one has what clients follow.
func (s *simulation) choose() []string {
	all := slices.Clone(servers)
	s.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	some := all[:s.random.IntN(3)]
	if one := pick(s.random, followed); !slices.Contains(some, one) {
		some = append(some, one)
	}
	return slices.Clone(some)
}

// kinds are ways to be a client in memory, in an order of the seed.
func (s *simulation) kinds() []kind {
	all := []kind{
		{"WebSocket", false, s.dial, []string{"hang up", "vanish"}},
		{"stdio", false, s.dial, []string{halfClose, "vanish"}},
		{"modern WebSocket", true, s.dial, []string{"hang up", "vanish"}},
		{"modern stdio", true, s.dial, []string{halfClose, "vanish"}},
		{"modern HTTP", true, s.dialPosts, []string{"vanish"}},
	}
	s.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// scales are how long the pauses of a Conn are at most.
var scales = []time.Duration{0, 0, 10 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}

// pipe returns both ends of a new Conn: of the proxy, and the other one.
func (s *simulation) pipe() (pausedConn, *jsonrpc.PipeConn, *pauses) {
	s.mu.Lock()
	s.conns++
	random := rand.New(rand.NewPCG(s.seed, s.conns<<32))
	s.mu.Unlock()
	p := &pauses{longest: pick(random, scales), random: random}
	near, other := jsonrpc.Pipe()
	return pausedConn{near, p}, other, p
}

// enter returns the proxy of the moment, which does not end before the caller calls serving.Done.
func (s *simulation) enter() *memoryProxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxy.serving.Add(1)
	return s.proxy
}

// dial connects a client.
func (s *simulation) dial(_ *world, _ func() string, to receiver) (wire, error) {
	p := s.enter()
	defer p.serving.Done()
	who := &identity.Identity{Principal: tokenOf(principalOf(to.(*client).name))}
	near, other, pauses := s.pipe()
	p.serving.Go(func() { _ = p.router.Serve(p.ctx, who, "", near) })
	return newMemoryWire(newPartyConn(other, pauses), to), nil
}

// A memoryProxy is a router with a host in the same process.
type memoryProxy struct {
	router  *session.Router
	near    *memoryHost
	ctx     context.Context // of its sessions
	end     context.CancelFunc
	serving sync.WaitGroup

	mu         sync.Mutex // guards the field below
	principals map[string]*memoryPrincipal
}

func (s *simulation) newProxy() *memoryProxy {
	p := &memoryProxy{principals: map[string]*memoryPrincipal{}, near: s.newHost(func(name string) bool { return !isFar(name) })}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.router = &session.Router{
		Upstreams: s.configured(), ID: fmt.Sprint(s.processes), Log: slog.New(s.log), Policies: s.policies(),
		Dial: func(_ context.Context, name, key string, era mcp.Era) (jsonrpc.Conn, error) {
			h := p.near
			if isFar(name) {
				s.mu.Lock()
				h = s.far
				s.mu.Unlock()
			}
			return h.attach(s, name, key, era), nil
		},
	}
	p.router.Several.Store(true)
	return p
}

// configured returns the upstreams as the router knows them. It needs mu once the nemesis runs, as what calls it.
func (s *simulation) configured() (all []session.Upstream) {
	for i, name := range s.servers {
		if name == s.removed {
			continue
		}
		t := s.traits[name]
		u := session.Upstream{Name: name, Prefix: &s.servers[i], Shared: t.shared || t.remote, Lazy: t.lazy, IdleStop: t.rest, Digest: fmt.Sprint(name, s.versions[name])}
		if isFar(name) {
			u.Link = "link"
		}
		all = append(all, u)
	}
	return all
}

// expire ends the Conns of principals, which nobody uses.
func (p *memoryProxy) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, c := range p.principals {
		c.stop()
		delete(p.principals, name)
	}
}

// stop drains a proxy and ends it.
func (p *memoryProxy) stop(drain time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	p.router.Shutdown(ctx)
	p.end()
	p.serving.Wait()
	p.near.stop()
}

// A memoryHost has servers in memory.
type memoryHost struct {
	has       func(name string) bool // which servers
	host      *upstream.Host
	bridge    *eras.Bridge
	forced    context.Context
	force     context.CancelFunc
	attaching sync.WaitGroup

	mu      sync.Mutex
	streams map[*jsonrpc.PipeConn]struct{}
	lost    *jsonrpc.ClosedError // while there is no way to it
}

func (s *simulation) newHost(has func(name string) bool) *memoryHost {
	h := &memoryHost{has: has, streams: map[*jsonrpc.PipeConn]struct{}{}}
	h.forced, h.force = context.WithCancel(context.Background())
	h.host = &upstream.Host{Log: slog.New(s.log)}
	h.bridge = &eras.Bridge{Open: h.host.Open, SuspendFor: 5 * time.Second, Log: slog.New(s.log),
		Relates: func(name string) bool { return s.traits[name].remote }, IdleOf: func(name string) time.Duration { return s.traits[name].rest }}
	h.host.Bridge = h.bridge
	h.host.Upstreams = s.upstreams(has)
	return h
}

// upstreams are those of a host.
func (s *simulation) upstreams(has func(name string) bool) map[string]upstream.Upstream {
	all := map[string]upstream.Upstream{}
	for _, u := range s.configured() {
		if has(u.Name) {
			all[u.Name] = s.upstream(u.Name)
		}
	}
	return all
}

// upstream describes a server to its host.
func (s *simulation) upstream(name string) upstream.Upstream {
	t := s.traits[name]
	begin := func(ctx context.Context) (jsonrpc.Conn, error) { return s.begin(ctx, name) }
	u := upstream.Upstream{Shared: t.shared, Relates: t.remote, IdleStop: t.rest, Era: mcp.Legacy, Dial: begin, DialModern: begin}
	switch {
	case !t.known:
		u.Era, u.Probe = "", func(context.Context) (bool, error) {
			time.Sleep(time.Millisecond)
			return t.modern, nil
		}
	case t.modern:
		u.Era = mcp.Modern
	}
	return u
}

// begin begins a connection to a server. All connections to a remote one are to one process.
func (s *simulation) begin(ctx context.Context, name string) (jsonrpc.Conn, error) {
	near, other, pauses := s.pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	var of *server
	if all := s.live[name]; s.traits[name].remote && len(all) > 0 {
		of = all[0].serves.server
	} else {
		s.processes++
		of = &server{name: name, modern: s.traits[name].modern, register: s.registers[name], fault: s.plant.server(), tasks: map[string]*task{},
			journal: &journal{fmt.Sprintf("%s/%d", name, s.processes), s.rec.add}}
		of.journal.add(Started, "", "")
	}
	m := newMemoryServer(of, s.traits[name].remote, newPartyConn(other, pauses))
	s.live[name] = append(s.live[name], m)
	context.AfterFunc(ctx, func() { near.Close() })
	go func() {
		m.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.live[name] = slices.DeleteFunc(s.live[name], func(other *memoryServer) bool { return other == m })
	}()
	return near, nil
}

// attach opens a stream to a host.
func (h *memoryHost) attach(s *simulation, name, key string, era mcp.Era) jsonrpc.Conn {
	near, far, pauses := s.pipe()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost != nil {
		_ = far.CloseCause(&jsonrpc.ClosedError{Cause: h.lost.Cause, Event: h.lost.Event})
		return near
	}
	h.streams[far] = struct{}{}
	h.attaching.Add(1)
	go h.host.Attach(h.forced, name, key, era, pausedConn{far, pauses}, func(error) {
		defer h.attaching.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.streams, far)
	})
	return near
}

// cut ends all streams, as the loss of a link does, and refuses others.
func (h *memoryHost) cut(end *jsonrpc.ClosedError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = end
	for far := range h.streams {
		_ = far.CloseCause(end)
	}
}

// heal takes streams again.
func (h *memoryHost) heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = nil
}

// stop ends a host.
func (h *memoryHost) stop() {
	h.cut(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true})
	h.bridge.Stop(h.forced)
	h.host.Stop(h.forced)
	h.attaching.Wait()
	h.force()
}

// left returns what the proxy holds though all clients have left.
func (s *simulation) left() (all []Anomaly) {
	time.Sleep(10 * time.Second) // of grace for servers, and for calls that wait for a client of a principal
	calls, _ := s.proxy.router.Calls(10)
	s.proxy.expire()
	time.Sleep(time.Second)
	for what, n := range map[string]int{"sessions": len(s.proxy.router.Sessions()), "requests": len(calls),
		"requests at hosts": len(s.proxy.near.host.Calls()) + len(s.far.host.Calls()),
		"suspended calls":   s.proxy.near.bridge.Suspended() + s.far.bridge.Suspended()} {
		if n > 0 {
			all = append(all, Anomaly{Rule: 8, What: fmt.Sprintf("%d %s are left when all clients have gone", n, what)})
		}
	}
	return all
}

// finish ends everything. It leaves time to our servers: in a bubble there is none after its end.
func (s *simulation) finish() {
	s.proxy.stop(0) // nothing is open
	s.far.stop()
	time.Sleep(10 * time.Second)
}

// An eventLog keeps the ids of events in a log.
type eventLog struct {
	mu   sync.Mutex
	text []byte
}

func (l *eventLog) take() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

func (l *eventLog) add(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(append(l.text, event...), '\n')
}

// Enabled, Handle and WithGroup, with WithAttrs, implement [slog.Handler].
func (l *eventLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelDebug }

func (l *eventLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		l.keep(a)
		return true
	})
	return nil
}

func (l *eventLog) keep(a slog.Attr) {
	if a.Key == "event" {
		l.add(a.Value.String())
	}
}

// WithAttrs keeps the event at once: a line follows.
func (l *eventLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		l.keep(a)
	}
	return l
}

func (l *eventLog) WithGroup(string) slog.Handler { return l }
