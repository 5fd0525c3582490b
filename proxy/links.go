package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/cluster"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// links are all links to hosts elsewhere. They tell the router which upstreams the hosts announce.
type links struct {
	// Static after construction.
	router   *session.Router
	log      *slog.Logger
	others   *slog.Logger  // for what unauthenticated peers can cause
	hooks    observe.Hooks // it calls those of links and events
	limits   jsonrpc.Limits
	prover   *prover
	replicas func() []cluster.Other // the other ones, in the order in which to ask them; nil for a proxy that is alone
	auto     bool                   // names have a prefix if there are several upstreams

	ctx context.Context // of all links; set by start; guarded by mu
	in  gate            // accepted and dialled links

	mu     sync.Mutex    // guards the fields below and those of all links; held during calls of the router
	all    []*remoteLink // in config order
	local  []config.Upstream
	mixed  bool                   // several upstreams are possible, whatever the hosts announce
	owners map[string]*remoteLink // by upstream
	told   map[string]string      // events of upstreams that are not offered, by link, name and reason
}

// newLinks returns the links that cfg describes. The error is a [config.Problems].
func newLinks(cfg *config.Config, r *session.Router, o Options) (*links, error) {
	ls := &links{
		router: r, log: o.Log, others: o.anonymous.log, hooks: o.Hooks,
		limits: serverLimitsOf(cfg), prover: newProver(cfg, o), auto: cfg.Prefix == "auto",
		owners: make(map[string]*remoteLink), told: make(map[string]string),
	}
	all, err := ls.plan(cfg)
	ls.takeOverLocked(cfg, all)
	return ls, err
}

// plan returns the links of a configuration: existing ones unless they changed, and new ones,
// which have not started. The error is a [config.Problems].
func (ls *links) plan(cfg *config.Config) ([]*remoteLink, error) {
	tokens := newChecker(cfg)
	if tokens.linkTokens(cfg.Links); len(tokens.problems) > 0 {
		return nil, tokens.problems
	}
	ls.mu.Lock()
	running := ls.all
	ls.mu.Unlock()
	var all []*remoteLink
	for _, c := range cfg.Links {
		if i := slices.IndexFunc(running, func(f *remoteLink) bool { return reflect.DeepEqual(f.config, c) }); i >= 0 {
			all = append(all, running[i])
			continue
		}
		f, err := ls.newRemoteLink(c)
		if err != nil {
			return nil, config.Problems{{Source: cfg.File, Key: c.Key + ".tls", Text: err.Error()}}
		}
		all = append(all, f)
	}
	return all, nil
}

func (ls *links) takeOverLocked(cfg *config.Config, all []*remoteLink) {
	ls.all, ls.local = all, cfg.Upstreams
	ls.mixed = len(all) > 0 && len(all)+len(cfg.Upstreams) > 1
}

// newRemoteLink returns a link that has not started. The error is about its TLS files.
func (ls *links) newRemoteLink(c config.Link) (*remoteLink, error) {
	f := &remoteLink{config: c, log: ls.log.With("link", c.Name), hangUp: func() {}}
	f.client = link.Client{
		ID: ls.router.ID, Log: f.log, Limits: ls.limits, Heartbeat: heartbeatOf(c.Heartbeat),
		Announced: func(upstreams []link.Upstream) { ls.announced(f, false, upstreams) },
		Lost:      func(event string, err error) { ls.lost(f, false, event, err) },
		Failed:    func(err error) { ls.failed(f, err) },
	}
	f.replicaLinks = ls.newReplicaLinks(f)
	t, err := clientTLS(c.TLS, c.Dial, f.log)
	if err != nil {
		return nil, err
	}
	f.endpoint = link.Endpoint{URL: c.Dial, TLS: t, Token: secretfile.Token(c.TokenFile)}
	if f.proof, err = ls.prover.link(c); f.proof != nil {
		f.endpoint.Credentials = f.proof
	}
	return f, err
}

// start starts the links, which run until ctx ends. The caller then waits for ls.in.
func (ls *links) start(ctx context.Context) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.ctx = ctx
	for _, f := range ls.all {
		ls.startLocked(f)
	}
}

// startLocked starts a link: it dials the host, or lets the host dial. Before start it does nothing.
func (ls *links) startLocked(f *remoteLink) {
	if ls.ctx == nil {
		return
	}
	f.ctx, f.hangUp = context.WithCancel(ls.ctx)
	f.among, f.part = context.WithCancel(f.ctx)
	switch {
	case f.config.Dial != "":
		ls.in.run(f.keepUp)
	case ls.replicas != nil:
		ls.in.run(func() { ls.seek(f) })
	}
}

// failed records a failed attempt to bring a link up.
func (ls *links) failed(f *remoteLink, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	before := f.endLocked().Words()
	f.failed = dialFailure(err)
	if !f.known && f.endLocked().Words() != before && f.ctx.Err() == nil {
		ls.router.Update(ls.setLocked())
	}
}

// accepting returns the links of hosts that dial us.
func (ls *links) accepting() (all []*remoteLink) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, f := range ls.all {
		if f.config.Accept {
			all = append(all, f)
		}
	}
	return all
}

// ServeHTTP serves /link, which hosts dial. The token selects the link.
func (ls *links) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accepting := ls.accepting()
	var tokens []func() (string, error)
	for _, f := range accepting {
		tokens = append(tokens, f.endpoint.Token)
	}
	if len(accepting) == 0 {
		http.NotFound(w, r) // a reload has just removed the last one
		return
	}
	if !ls.in.enter() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	defer ls.in.leave()
	carrier, which, err := link.Upgrade(w, r, tokens...)
	if err != nil {
		ls.refused(r, err)
		return
	}
	f := accepting[which]
	before := ls.losses(f)
	err = f.client.Serve(f.ctx, carrier)
	if f.ctx.Err() == nil && ls.losses(f) == before { // it never came up
		ls.others.Warn("link failed", "link", f.config.Name, "peer", r.RemoteAddr, "err", err)
	}
}

// refused logs a refused request for a link.
func (ls *links) refused(r *http.Request, err error) {
	ls.others.Warn("link refused", "peer", r.RemoteAddr, "err", err)
}

// owner returns the link to the host of an upstream, nil if it runs here or is unknown.
func (ls *links) owner(upstream string) *remoteLink {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.owners[upstream]
}

// leadsTo returns the name of the link to the host of an upstream, "" for none.
func (ls *links) leadsTo(upstream string) string {
	if f := ls.owner(upstream); f != nil {
		return f.config.Name
	}
	return ""
}

// snapshot returns the links as they are now.
func (ls *links) snapshot() []observe.Link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var all []observe.Link
	for _, f := range ls.all {
		all = append(all, ls.observedLocked(f))
	}
	return all
}

// offered returns all upstreams, those that run here first, whose state is "".
func (ls *links) offered() (all []observe.Offered) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, u := range ls.local {
		all = append(all, observe.Offered{Name: u.Name})
	}
	for _, f := range ls.all {
		state := observe.Elsewhere
		if f.down {
			state = observe.Away
		}
		for _, u := range f.announced {
			if ls.owners[u.Name] == f {
				all = append(all, observe.Offered{Name: u.Name, State: state})
			}
		}
	}
	return all
}

func (ls *links) observedLocked(f *remoteLink) observe.Link {
	l := observe.Link{
		Name: f.config.Name, Required: f.config.Required, Up: f.known && !f.down, Lost: f.lost,
		Upstreams: slices.Sorted(slices.Values(ls.ownedLocked(f))), Rejected: f.rejected,
	}
	if l.Up {
		l.Through = f.via
	}
	switch {
	case l.Up:
	case f.known && f.failed != nil: // why it does not come back says more than that it was lost
		l.Why = f.failed.Words()
	default:
		l.Why = f.endLocked().Words()
	}
	return l
}

// required returns a check for each link that readiness waits for.
func (ls *links) required() (all []ops.Check) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, f := range ls.all {
		if f.config.Required {
			all = append(all, ops.Check{Name: "link " + f.config.Name, Among: "links", Why: ls.observedLocked(f).Why})
		}
	}
	return all
}

// lost records and reports the end of a link that was up, or was that through another replica.
func (ls *links) lost(f *remoteLink, through bool, event string, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !f.usesLocked(through) || through && f.down {
		return
	}
	f.down = true
	f.endLoanLocked()
	ls.endedLocked(f, event, err)
	select {
	case f.ended <- struct{}{}:
	default:
	}
}

// endedLocked reports the end of the link that was used. Redial logs the ends of dialled links. One through a replica
// that leaves is no loss: nothing was in flight.
func (ls *links) endedLocked(f *remoteLink, event string, err error) {
	f.lost++
	over := f.wayCtxLocked().Err() != nil
	switch {
	case !f.config.Accept || over:
	case errors.Is(err, errLeaves):
		f.logLocked().Info("link ended", "err", err)
		over = true
	default:
		f.logLocked().Warn("link lost", "event", event, "err", err)
	}
	if tell := ls.hooks.Happened; tell != nil && !over {
		e := linkEvent(event, "the link "+f.config.Name+f.throughLocked()+" was lost", err, f.since)
		e.Link, e.Upstreams = f.config.Name, slices.Sorted(slices.Values(ls.ownedLocked(f)))
		tell(e)
	}
	if ls.hooks.LinkLost != nil {
		end := observe.End{Took: time.Since(f.since), Outcome: observe.OK}
		if !over {
			end.Outcome, end.Cause, end.Event = observe.Closed, jsonrpc.KindLinkLost.String(), event
		}
		ls.hooks.LinkLost(ls.observedLocked(f), end)
	}
}

func (ls *links) losses(f *remoteLink) int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return f.lost
}

// adopt applies the upstreams of cfg and the links that plan has returned: it ends removed links
// and starts new ones. The others continue.
func (ls *links) adopt(cfg *config.Config, all []*remoteLink) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	before := ls.all
	ls.takeOverLocked(cfg, all)
	clear(ls.told)                   // the log repeats what the reload did not fix
	ls.router.Update(ls.setLocked()) // first, so that calls end because of the reload and not of a lost link
	for _, f := range before {
		if !slices.Contains(all, f) {
			f.hangUp()
		}
	}
	for _, f := range all {
		if !slices.Contains(before, f) {
			ls.startLocked(f)
		}
	}
}

// announced applies what a host announces, which may be unchanged, on its own link or through another replica.
func (ls *links) announced(f *remoteLink, through bool, upstreams []link.Upstream) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	via := f.via
	if !ls.chooseLocked(f, through) {
		return
	}
	if !through {
		ls.lendLocked(f, upstreams)
	}
	var all []announced
	for _, u := range upstreams {
		route, err := routeFrom(u)
		route.Link = f.config.Name
		if route.Digest != "" { // so that no host has the lists of another one
			route.Digest = ls.router.Catalog.Store.Digest([]byte(f.config.Name + " " + route.Digest))
		}
		all = append(all, announced{route, err})
	}
	up := f.down || !f.known || f.via != via
	back := f.down || f.known // the host may have changed without a visible difference
	f.announced, f.known, f.down, f.failed = all, true, false, nil
	ls.router.Update(ls.setLocked())
	if up {
		f.since = time.Now()
	}
	if up && through {
		f.logLocked().Info("link up through another replica")
	}
	if up && ls.hooks.LinkUp != nil {
		ls.hooks.LinkUp(ls.observedLocked(f))
	}
	if back {
		ls.router.Returned(ls.ownedLocked(f)...)
	}
}
