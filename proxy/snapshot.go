package proxy

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// Snapshot returns the current state of the proxy.
func (p *Proxy) Snapshot() Snapshot {
	process := p.operators.process("proxy", p.web.listeners...)
	process.MaxSessions = p.config.Load().Limits.Sessions
	return Snapshot{
		Process: process, Traffic: p.traffic(),
		Upstreams: p.host.snapshot(), Sessions: p.router.Sessions(), Links: p.links.snapshot(),
		Replicas: p.replicas.members(observe.Moves(p.front.Moves())),
	}
}

// Snapshot returns the current state of the host.
func (h *Host) Snapshot() Snapshot {
	var at []net.Listener
	if h.listener != nil {
		at = append(at, h.listener)
	}
	return Snapshot{
		Process: h.operators.process("host", at...), Traffic: h.traffic(),
		Upstreams: h.half.snapshot(), Rejected: h.half.rejections.snapshot(),
	}
}

// process describes this process.
func (o *operators) process(role string, at ...net.Listener) observe.Process {
	p := observe.Process{
		Role: role, Version: Version(), PID: os.Getpid(), Began: o.began,
		File: o.file, Dir: o.dir, Draining: o.draining.Load(),
	}
	for _, l := range at {
		p.Listen = append(p.Listen, l.Addr().String())
	}
	return p
}

// traffic returns the traffic of all upstreams, here and elsewhere.
func (p *Proxy) traffic() []observe.Traffic {
	waiting := p.router.Traffic()
	all := p.host.traffic()
	for i, t := range all {
		now := waiting[t.Upstream]
		all[i].InFlight, all[i].QueuedBytes, all[i].Resting = now.InFlight, now.QueuedBytes, now.Resting
		if t.State == stateIdle && now.Resting > 0 {
			all[i].State = stateResting
		}
	}
	for _, l := range p.links.snapshot() {
		for _, name := range l.Upstreams {
			all = append(all, observe.Traffic{
				Upstream: name, Link: l.Name, InFlight: waiting[name].InFlight, QueuedBytes: waiting[name].QueuedBytes,
				Resting: waiting[name].Resting,
			})
		}
	}
	for i, t := range all {
		all[i].Listed = p.router.Listed(t.Upstream)
	}
	return p.operators.recently(all)
}

func (h *Host) traffic() []observe.Traffic {
	inFlight := make(map[string]int)
	for _, s := range h.half.host.Status() {
		inFlight[s.Upstream] += s.InFlight
	}
	all := h.half.traffic()
	for i, t := range all {
		all[i].InFlight = inFlight[t.Upstream]
		if t.State == stateIdle && h.half.idleStop(t.Upstream) > 0 && h.half.host.HasRun(t.Upstream) {
			all[i].State = stateResting // or its clients have left, which a host cannot tell
		}
	}
	return h.operators.recently(all)
}

// traffic returns the local upstreams with their states and suspended calls.
func (h *hosting) traffic() (all []observe.Traffic) {
	suspended, servers := h.bridge.SuspendedBy(), h.servers()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.configs)) {
		t := observe.Traffic{Upstream: name, Required: h.configs[name].Required, Suspended: suspended[name]}
		if t.State = stateIdle; servers[name] != nil {
			t.State, t.Failed = conditionOf(servers[name])
		}
		all = append(all, t)
	}
	return all
}

// servers returns the status of all servers by upstream.
func (h *hosting) servers() map[string][]upstream.Status {
	byName := make(map[string][]upstream.Status)
	for _, s := range h.host.Status() {
		byName[s.Upstream] = append(byName[s.Upstream], s)
	}
	return byName
}

// recently adds the figures of the last minute.
func (o *operators) recently(all []observe.Traffic) []observe.Traffic {
	for i := range all {
		o.recent.Fill(&all[i])
	}
	return all
}

// mostCalls bounds a list of calls.
const mostCalls = 1000

// Calls returns the requests of clients in flight.
func (p *Proxy) Calls() Calls {
	now := Calls{Now: time.Now()}
	now.Calls, now.LeftOut = p.router.Calls(mostCalls)
	far := make(map[string]bool) // upstreams at hosts elsewhere
	for _, l := range p.links.snapshot() {
		for _, name := range l.Upstreams {
			far[name] = true
		}
	}
	here := p.host.waits()
	for i := range now.Calls {
		if c := &now.Calls[i]; !far[c.Upstream] {
			here.refine(c)
		}
	}
	here.queue(now.Calls)
	return now
}

// Calls returns the requests in flight at the servers of the host.
func (h *Host) Calls() Calls {
	now := Calls{Now: time.Now(), Calls: h.half.host.Calls()}
	slices.SortFunc(now.Calls, func(a, b observe.OpenRequest) int { return a.Began.Compare(b.Began) })
	h.half.waits().queue(now.Calls)
	if n := len(now.Calls) - mostCalls; n > 0 {
		now.Calls, now.LeftOut = now.Calls[:mostCalls], n
	}
	return now
}

// waitReasons say why requests wait for local upstreams, beyond what sessions know. The keys are upstreams.
type waitReasons struct {
	servers map[string][]upstream.Status
	queued  map[string]int  // requests to a remote server that wait for the answers to others
	asking  map[string]bool // a person is being asked to log in
}

func (h *hosting) waits() waitReasons {
	w := waitReasons{servers: h.servers(), queued: make(map[string]int), asking: make(map[string]bool)}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, r := range h.remotes {
		if r == nil {
			continue
		}
		w.queued[name] = r.Waiting()
		asks, ok := r.Credentials.(interface{ Asks() bool })
		w.asking[name] = ok && asks.Asks()
	}
	return w
}

// refine sets why a request waits for a local upstream. The link that its session may name is the one in memory.
func (w waitReasons) refine(c *observe.OpenRequest) {
	switch c.WaitsFor {
	case observe.ForLink:
		c.WaitsFor = observe.ForStart
	case observe.ForStart, observe.ForUpstream:
	default:
		return
	}
	if w.asking[c.Upstream] {
		c.WaitsFor, c.Detail = observe.ForLogin, "a login is needed"
		return
	}
	s := w.server(c)
	switch {
	case s == nil:
	case s.State == upstream.StateStarting:
		c.WaitsFor = observe.ForStart
	case c.WaitsFor == observe.ForStart && time.Now().Before(s.Next):
		c.WaitsFor, c.Detail = observe.ForBackOff, "not before "+s.Next.Format(time.RFC3339)+" after "+s.Cause
	}
}

// server returns the server that works on a request: the session's own, or the only one; nil if unknown.
func (w waitReasons) server(c *observe.OpenRequest) *upstream.Status {
	all := w.servers[c.Upstream]
	for i, s := range all {
		if s.Key[:min(len(s.Key), len(c.Session))] == c.Session && string(s.Era) == c.Era {
			return &all[i]
		}
	}
	if len(all) == 1 {
		return &all[0]
	}
	return nil
}

// queue marks the youngest requests to a remote server as waiting for the older ones, because they are served in
// order. The requests are sorted, the oldest first.
func (w waitReasons) queue(calls []observe.OpenRequest) {
	for i := range slices.Backward(calls) {
		if c := &calls[i]; c.WaitsFor == observe.ForUpstream && w.queued[c.Upstream] > 0 {
			w.queued[c.Upstream]--
			c.WaitsFor, c.Detail = observe.ForRoom, "maxConcurrent is reached"
		}
	}
}

// Explain says where a name or a URI leads now, what its upstream lists, what the upstream's servers do, and
// what a client may do with it: the client that as names, or for "" a client of each policy. It sends no requests.
// The error is about as.
func (p *Proxy) Explain(name, as string) (*Explanation, error) {
	cfg := p.config.Load()
	policies, err := policiesOf(cfg) // a reload may have replaced those of the router
	if err != nil {
		return nil, err
	}
	x := ops.Explainer{Config: cfg, Policies: policies, Resolve: p.router.Resolve, Now: p.Snapshot()}
	return x.Explain(name, as)
}

// Explain says which upstream of the host a name belongs to, and what its servers do. A host knows no clients, so
// as must be "".
func (h *Host) Explain(name, as string) (*Explanation, error) {
	called := func(tool string) (*config.Upstream, string) { return named(h.half.runs(), tool) }
	return ops.ExplainHost(name, as, h.Snapshot(), called)
}

const (
	stateFailed  = "failed"
	stateResting = "resting" // it was stopped because it was idle
	stateIdle    = "idle"
)

// conditionOf returns the state of an upstream with these servers, of which there is at least one, and the last failure
// of the server with the most failures.
func conditionOf(servers []upstream.Status) (state string, failed observe.Failure) {
	worst := slices.MaxFunc(servers, func(a, b upstream.Status) int {
		return cmp.Or(cmp.Compare(min(a.Failed, 1), min(b.Failed, 1)),
			cmp.Compare(a.Failures, b.Failures), cmp.Compare(a.Failed, b.Failed))
	})
	if worst.Failed > 0 {
		failed = observe.Failure{
			Cause: worst.Cause, Says: worst.Says, Event: worst.Event, InARow: worst.Failures, Next: worst.Next,
		}
	}
	counts := slices.DeleteFunc(slices.Clone(servers), func(s upstream.Status) bool { return !s.Lives() && s.Failed == 0 })
	for _, state := range []upstream.State{
		upstream.StateCrashLoop, upstream.StateWaiting, upstream.StateStarting, upstream.StateRunning, upstream.StateStopping,
	} {
		if slices.ContainsFunc(counts, func(s upstream.Status) bool { return s.State == state }) {
			return string(state), failed
		}
	}
	if worst.Failed > 0 {
		return stateFailed, failed
	}
	return stateIdle, failed
}

// newConnectPage returns the page at / of serve. It is nil if any Host is allowed, because then a page of another
// site, under a name that leads here, could read it.
func newConnectPage(cfg *config.Config, p *Proxy) *ops.ConnectPage {
	if slices.Contains(cfg.AllowedHosts, "*") {
		return nil
	}
	return &ops.ConnectPage{Guard: &p.front.Guard, Tell: func(who *identity.Identity, r *http.Request) observe.ConnectInfo {
		return p.connectInfo(who, r, cfg.PublicURL)
	}}
}

func proofsOf(cfg *config.Config) []string {
	all := []string{}
	if cfg.TokenFile != "" || len(cfg.Auth.Tokens) > 0 {
		all = append(all, observe.ByToken)
	}
	if len(cfg.Auth.JWT) > 0 {
		all = append(all, observe.ByLogin)
	}
	if cfg.TLS.ClientCA != "" {
		all = append(all, observe.ByCertificate)
	}
	return all
}

// connectInfo returns what a client may know before it connects.
func (p *Proxy) connectInfo(who *identity.Identity, r *http.Request, publicURL string) observe.ConnectInfo {
	told := observe.ConnectInfo{URL: publicURL, Proof: proofsOf(p.config.Load())}
	told.Upstreams = []observe.Offered{}
	told.Operators = p.operators.pages(r.Host)
	grant, states := p.router.Policies.For(who), availabilityOf(p.host.host.Status())
	for _, u := range p.links.offered() {
		if !grant.Sees(u.Name) {
			continue
		}
		if u.State == "" {
			u.State = states[u.Name]
		}
		if u.State == "" {
			u.State = observe.Idle
		}
		told.Upstreams = append(told.Upstreams, u)
	}
	return told
}

// pages returns the URLs of the page for operators, for a browser that used that host. Without a token there are none,
// because on TCP the page could show nothing.
func (o *operators) pages(host string) []string {
	all := []string{}
	if o.server.Token == nil {
		return all
	}
	for _, l := range o.web.listeners {
		at, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			continue
		}
		address := at.AddrPort().String()
		if name := (&url.URL{Host: host}).Hostname(); at.AddrPort().Addr().IsUnspecified() && name != "" {
			address = net.JoinHostPort(name, strconv.Itoa(at.Port))
		}
		all = append(all, "http://"+address+"/")
	}
	return all
}

// snapshot returns the running servers, and then the spare processes.
func (h *hosting) snapshot() []observe.Upstream {
	var all []observe.Upstream
	for _, s := range h.host.Status() {
		if !s.Lives() {
			continue
		}
		var speaks []string
		for _, era := range s.Speaks {
			speaks = append(speaks, string(era))
		}
		all = append(all, observe.Upstream{
			Name: s.Upstream, Session: s.Key[:min(len(s.Key), 8)], Era: string(s.Era), Speaks: speaks,
			State: string(s.State), Failures: s.Failures,
			PID: s.PID, Started: s.Started, InFlight: s.InFlight,
			Unusable: s.Unusable, Unattributed: s.Unattributed, Stderr: s.Stderr,
		})
	}
	for _, s := range h.host.Spares() {
		all = append(all, observe.Upstream{Name: s.Upstream, State: observe.Spare, PID: s.PID, Started: s.Started, Stderr: s.Stderr})
	}
	return all
}
