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
	}
}

// Snapshot returns the current state of the host.
func (h *Host) Snapshot() Snapshot {
	var at []net.Listener
	if h.listener != nil {
		at = append(at, h.listener)
	}
	return Snapshot{Process: h.operators.process("host", at...), Traffic: h.traffic(), Upstreams: h.half.snapshot(), Rejected: h.half.rejections.snapshot()}
}

// process describes this process.
func (o *operators) process(role string, at ...net.Listener) observe.Process {
	p := observe.Process{Role: role, Version: Version(), PID: os.Getpid(), Began: o.began, File: o.file, Dir: o.dir, Draining: o.draining.Load()}
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
		all[i].InFlight, all[i].QueuedBytes = waiting[t.Upstream].InFlight, waiting[t.Upstream].QueuedBytes
	}
	for _, l := range p.links.snapshot() {
		for _, name := range l.Upstreams {
			all = append(all, observe.Traffic{
				Upstream: name, Link: l.Name, InFlight: waiting[name].InFlight, QueuedBytes: waiting[name].QueuedBytes,
			})
		}
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
	}
	return h.operators.recently(all)
}

// traffic returns the upstreams that are configured here, with their states and suspended calls.
func (h *hosting) traffic() (all []observe.Traffic) {
	suspended, conditions := h.bridge.SuspendedBy(), conditionsOf(h.host.Status())
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.configs)) {
		c := conditions[name]
		all = append(all, observe.Traffic{Upstream: name, Required: h.configs[name].Required, State: cmp.Or(c.state, stateIdle), Failed: c.failed, Suspended: suspended[name]})
	}
	return all
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

// Calls returns the calls that clients wait for.
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

// Calls returns the requests that the servers of the host have not answered.
func (h *Host) Calls() Calls {
	now := Calls{Now: time.Now(), Calls: h.half.host.Calls()}
	slices.SortFunc(now.Calls, func(a, b observe.OpenRequest) int { return a.Began.Compare(b.Began) })
	h.half.waits().queue(now.Calls)
	if n := len(now.Calls) - mostCalls; n > 0 {
		now.Calls, now.LeftOut = now.Calls[:mostCalls], n
	}
	return now
}

// waitReasons are why calls to upstreams that run here may wait, beyond what sessions know.
type waitReasons struct {
	servers map[string][]upstream.Status // by upstream
	queued  map[string]int               // requests to a remote one that wait for others to be answered
	asking  map[string]bool              // a person is being asked to log in
}

func (h *hosting) waits() waitReasons {
	w := waitReasons{servers: make(map[string][]upstream.Status), queued: make(map[string]int), asking: make(map[string]bool)}
	for _, s := range h.host.Status() {
		w.servers[s.Upstream] = append(w.servers[s.Upstream], s)
	}
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

// refine sets why a call waits for an upstream here. Its session may name a link: the one in memory.
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

// server returns the server that works on a call: the session's own, or the only one; nil if unknown.
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

// queue marks the youngest calls to a remote server as waiting for the others, which are served in order. The
// calls are sorted, oldest first.
func (w waitReasons) queue(calls []observe.OpenRequest) {
	for i := range slices.Backward(calls) {
		if c := &calls[i]; c.WaitsFor == observe.ForUpstream && w.queued[c.Upstream] > 0 {
			w.queued[c.Upstream]--
			c.WaitsFor, c.Detail = observe.ForRoom, "maxConcurrent is reached"
		}
	}
}

// Explain says where a name or a URI leads now, what its upstream lists, what the servers of that do,
// and what the client may do that as names, or each policy if it is "". It starts and asks nothing.
func (p *Proxy) Explain(name, as string) (*Explanation, error) {
	cfg := p.config.Load()
	policies, err := policiesOf(cfg) // not the router's, which may be those of another configuration by now
	if err != nil {
		return nil, err
	}
	x := ops.Explainer{Config: cfg, Policies: policies, Resolve: p.router.Resolve, Now: p.Snapshot()}
	return x.Explain(name, as)
}

// Explain says which upstream of the host a name is for, and what its servers do. A host knows no
// clients: as is "".
func (h *Host) Explain(name, as string) (*Explanation, error) {
	return ops.ExplainHost(name, as, h.Snapshot(), func(tool string) (*config.Upstream, string) { return named(h.half.runs(), tool) })
}

// A condition is the state of an upstream, from all its servers.
type condition struct {
	state  string
	failed observe.Failure
}

const (
	stateFailed = "failed"
	stateIdle   = "idle"
)

// conditionsOf returns the conditions of upstreams by name.
func conditionsOf(all []upstream.Status) map[string]condition {
	byName := make(map[string][]upstream.Status)
	for _, s := range all {
		byName[s.Upstream] = append(byName[s.Upstream], s)
	}
	conditions := make(map[string]condition)
	for name, servers := range byName {
		conditions[name] = conditionOf(servers)
	}
	return conditions
}

// conditionOf returns the condition of the worst server, which says most to operators.
func conditionOf(servers []upstream.Status) condition {
	var c condition
	worst := slices.MaxFunc(servers, func(a, b upstream.Status) int {
		return cmp.Or(cmp.Compare(min(a.Failed, 1), min(b.Failed, 1)), cmp.Compare(a.Failures, b.Failures), cmp.Compare(a.Failed, b.Failed))
	})
	if worst.Failed > 0 {
		c.failed = observe.Failure{Cause: worst.Cause, Says: worst.Says, Event: worst.Event, InARow: worst.Failures, Next: worst.Next}
	}
	for _, state := range []upstream.State{upstream.StateCrashLoop, upstream.StateWaiting, upstream.StateStarting, upstream.StateRunning, upstream.StateStopping} {
		if slices.ContainsFunc(servers, func(s upstream.Status) bool { return s.State == state && (s.Lives() || s.Failed > 0) }) {
			c.state = string(state)
			return c
		}
	}
	if c.state = stateIdle; worst.Failed > 0 {
		c.state = stateFailed
	}
	return c
}

// newConnectPage returns the page at / of serve. There is none where any Host is allowed: then a page
// of anybody, under a name that leads here, could read it.
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

// connectInfo returns what a client may know that has reached us at publicURL.
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

// availabilityOf says what upstreams are at, by name: that of their servers which is best for
// a client.
func availabilityOf(servers []upstream.Status) map[string]string {
	ranks := []string{"", observe.Failing, observe.Starting, observe.Running}
	all := make(map[string]string)
	for _, s := range servers {
		now := ""
		switch {
		case s.State == upstream.StateRunning:
			now = observe.Running
		case s.State == upstream.StateStarting:
			now = observe.Starting
		case s.Failed > 0:
			now = observe.Failing
		}
		if slices.Index(ranks, now) > slices.Index(ranks, all[s.Upstream]) {
			all[s.Upstream] = now
		}
	}
	return all
}

// pages are the URLs of the page for operators, for somebody who has reached us at a host. It
// is on TCP only if there is a token, without which it could show nothing.
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
		address := at.AddrPort()
		if name := (&url.URL{Host: host}).Hostname(); address.Addr().IsUnspecified() && name != "" {
			all = append(all, "http://"+net.JoinHostPort(name, strconv.Itoa(at.Port))+"/")
			continue
		}
		all = append(all, "http://"+address.String()+"/")
	}
	return all
}

// snapshot returns the servers that run.
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
			PID: s.PID, Started: s.Started, InFlight: s.InFlight, Unusable: s.Unusable, Unattributed: s.Unattributed, Stderr: s.Stderr,
		})
	}
	return all
}
