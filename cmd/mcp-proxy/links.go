package main

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A farLink is a link to a host elsewhere, and what that host has announced.
type farLink struct {
	config   config.Link
	log      *slog.Logger
	client   link.Client
	endpoint link.Endpoint // to dial; zero if the host dials us

	// Guarded by links.mu.
	routes []proxy.Upstream // as announced last; kept while the link is lost
	known  bool             // something was announced
	down   bool             // lost since
	failed bool             // did not come up
	lost   int              // how often it was lost
}

// links are all links to hosts elsewhere. They keep the proxy's set of upstreams
// true to what the hosts announce.
type links struct {
	// Static after construction.
	proxy *proxy.Proxy
	log   *slog.Logger
	all   []*farLink // in config order

	ctx context.Context // of the links; done: none is accepted any more
	wg  sync.WaitGroup  // links that were accepted

	mu     sync.Mutex // guards the fields below, and those of all links; held while the proxy is told
	local  []config.Upstream
	owners map[string]*farLink
	told   map[string]bool // upstreams that were left out and logged
	closed bool            // wg takes no more
}

// newLinks returns the links that cfg describes. Its error is a
// [config.Problems].
func newLinks(cfg *config.Config, p *proxy.Proxy, log *slog.Logger) (*links, error) {
	ls := &links{local: cfg.Upstreams, proxy: p, log: log, owners: make(map[string]*farLink), told: make(map[string]bool)}
	tokens := checker{file: cfg.File}
	if tokens.linkTokens(cfg.Links); len(tokens.problems) > 0 {
		return nil, tokens.problems
	}
	for _, c := range cfg.Links {
		f, err := ls.newFarLink(c, limitsOf(cfg))
		if err != nil {
			return nil, config.Problems{{Source: cfg.File, Key: c.Key + ".tls", Text: err.Error()}}
		}
		ls.all = append(ls.all, f)
	}
	return ls, nil
}

// newFarLink returns one link. The error is about its TLS files.
func (ls *links) newFarLink(c config.Link, limits jsonrpc.Limits) (*farLink, error) {
	f := &farLink{config: c, log: ls.log.With("link", c.Name)}
	f.client = link.Client{
		ID: ls.proxy.ID, Log: f.log, Limits: limits, Heartbeat: heartbeatOf(c.Heartbeat),
		Announced: func(upstreams []link.Upstream) { ls.announced(f, upstreams) },
		Lost:      func(err error) { ls.lost(f, err) },
		Failed:    func(error) { ls.failed(f) },
	}
	t, err := clientTLS(c.TLS)
	f.endpoint = link.Endpoint{URL: c.Dial, TLS: t, Token: tokenFrom(c.TokenFile)}
	return f, err
}

// dial is how the link comes up that is dialled from here.
func (f *farLink) dial() dialFunc {
	return dialFunc(f.endpoint.Dial).hinting("the host refuses our token: that in " + f.config.Key + ".tokenFile must be the one in --token-file of the host")
}

// heartbeatOf is the heartbeat of links that ask so often.
func heartbeatOf(every time.Duration) link.Heartbeat {
	return link.Heartbeat{Every: every, Dead: 3 * every}
}

// start keeps the links up that are dialled from here, until ctx ends; wg has
// their goroutines.
func (ls *links) start(ctx context.Context, wg *sync.WaitGroup) {
	ls.ctx = ctx
	for _, f := range ls.all {
		if f.config.Dial != "" {
			wg.Go(func() { _ = f.client.Redial(ctx, f.dial()) }) // it ends with ctx
		}
	}
}

// failed notes that a link did not come up.
func (ls *links) failed(f *farLink) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	first := !f.failed
	if f.failed = true; first && !f.known {
		ls.unreachableLocked()
	}
}

// unreachableLocked says so if all upstreams that are not known yet are behind
// links that did not come up: there is no use in waiting for them.
func (ls *links) unreachableLocked() {
	failed := false
	for _, f := range ls.all {
		if !f.known && !f.failed {
			return
		}
		failed = failed || !f.known
	}
	if failed {
		ls.proxy.Unreachable()
	}
}

// accepting reports whether hosts may dial us.
func (ls *links) accepting() bool {
	return slices.ContainsFunc(ls.all, func(f *farLink) bool { return f.config.Accept })
}

// ServeHTTP is /link, where hosts dial in. The token tells whose link it is.
func (ls *links) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var accepting []*farLink
	var tokens []func() (string, error)
	for _, f := range ls.all {
		if f.config.Accept {
			accepting = append(accepting, f)
			tokens = append(tokens, f.endpoint.Token)
		}
	}
	if !ls.enter() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	defer ls.wg.Done()
	carrier, which, err := link.Upgrade(w, r, tokens...)
	if err != nil {
		ls.log.Warn("link refused", "peer", r.RemoteAddr, "err", err)
		return
	}
	f := accepting[which]
	before := ls.losses(f)
	err = f.client.Serve(ls.ctx, carrier)
	if ls.ctx.Err() == nil && ls.losses(f) == before { // it never was one
		f.log.Warn("link failed", "peer", r.RemoteAddr, "err", err)
	}
}

// enter counts an accepted link in, unless wait was called.
func (ls *links) enter() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.closed {
		ls.wg.Add(1)
	}
	return !ls.closed
}

// wait waits for the accepted links and lets no more come.
func (ls *links) wait() {
	ls.mu.Lock()
	ls.closed = true
	ls.mu.Unlock()
	ls.wg.Wait()
}

// owner returns the link to the host of an upstream, nil for one that runs here
// or that nobody knows.
func (ls *links) owner(upstream string) *farLink {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.owners[upstream]
}

// lost notes that a link that was up has ended. Redial logs the end of its own.
func (ls *links) lost(f *farLink, err error) {
	if f.config.Accept && ls.ctx.Err() == nil {
		f.log.Warn("link lost", "err", err)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	f.down = true
	f.lost++
}

func (ls *links) losses(f *farLink) int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return f.lost
}

// adopt takes over what runs here.
func (ls *links) adopt(local []config.Upstream) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.local = local
	ls.proxy.Update(ls.setLocked())
	ls.unreachableLocked()
}

// announced takes over what a host announces, which may be the same as before.
func (ls *links) announced(f *farLink, upstreams []link.Upstream) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var routes []proxy.Upstream
	for _, u := range upstreams {
		route, err := routeFrom(u)
		if err != nil {
			ls.leaveOutLocked(f, u.Name, "err", err)
			continue
		}
		routes = append(routes, route)
	}
	back := f.down || f.known // a change at the host may be one that does not show here
	f.routes, f.known, f.down = routes, true, false
	set, complete := ls.setLocked()
	ls.proxy.Update(set, complete)
	ls.unreachableLocked()
	if back {
		ls.proxy.Returned(ls.ownedLocked(f)...)
	}
}

// setLocked returns all upstreams, those that run here first, then those of each
// link in config order, and whether that is all. Of two with one name the first
// counts.
func (ls *links) setLocked() (set []proxy.Upstream, complete bool) {
	taken := make(map[string]string) // names to where they are from
	for _, u := range ls.local {
		set = append(set, routeOf(u))
		taken[u.Name] = u.Key
	}
	clear(ls.owners)
	complete = true
	for _, f := range ls.all {
		complete = complete && f.known
		for _, u := range f.routes {
			if by, ok := taken[u.Name]; ok {
				ls.leaveOutLocked(f, u.Name, "announced_by", f.config.Key, "taken_by", by)
				continue
			}
			taken[u.Name] = f.config.Key
			ls.owners[u.Name] = f
			set = append(set, u)
		}
	}
	return set, complete
}

// leaveOutLocked logs, once, that an upstream cannot be used and why.
func (ls *links) leaveOutLocked(f *farLink, name string, why ...any) {
	if key := name + " " + f.config.Key; !ls.told[key] && len(ls.told) < maxTold {
		ls.told[key] = true
		f.log.Error("announced upstream left out", append([]any{"upstream", name}, why...)...)
	}
}

// maxTold bounds how many upstreams that cannot be used are told of.
const maxTold = 1000

// ownedLocked returns the names of the upstreams behind a link.
func (ls *links) ownedLocked(f *farLink) []string {
	var names []string
	for name, owner := range ls.owners {
		if owner == f {
			names = append(names, name)
		}
	}
	return names
}
