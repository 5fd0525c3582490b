package proxy

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// A front is the front end for clients on HTTP, with /link besides, while hosts may
// dial us.
type front struct {
	*frontend.HTTP
	links       *links
	proofs      *proofs
	connectPage *ops.ConnectPage // nil: there is none

	once    sync.Once
	keys    gate        // of proofs
	leaving atomic.Bool // each response is the last on its connection
}

// newFront returns the front end to the sessions of a router. The error says that nobody
// may listen so.
func newFront(cfg *config.Config, router *session.Router, known func(who *identity.Identity, upstream string) bool, ls *links, o Options) (*front, error) {
	f := &front{links: ls, proofs: newProofs(cfg, o.Log)}
	f.HTTP = &frontend.HTTP{
		Serve:          router.Serve,
		ServePrincipal: router.ServePrincipal,
		Admit:          admitOf(router.Policies, o.anonymous.log),
		Known:          known,
		Guard: frontend.Guard{
			AllowedHosts: allowedHosts(cfg), AllowedOrigins: cfg.AllowedOrigins,
			Listen: cfg.Listen, Insecure: cfg.Insecure,
		},
		Limits:      limitsOf(cfg),
		Sessions:    cfg.Limits.Sessions,
		SessionIdle: cfg.SessionIdle,
		SessionGone: cfg.SessionGone,
		Traces:      router.Hooks.Follower != nil,
		Log:         o.Log,
	}
	if tell := router.Hooks.Refused; tell != nil {
		f.Guard.Refused = func(why *identity.Refusal) { tell(why.Reason()) }
	}
	f.Guard.Clients = f.proofs.current
	return f, f.Guard.Check() // config has refused that; nobody may come past it
}

// mayListen reports whether the addresses at which we listen are safe with other proofs.
func (f *front) mayListen(next proofPlan) error {
	g := f.Guard
	g.Clients = auth.NewCurrent(next.clients)
	return g.Check()
}

// allowedHosts are those of the configuration, and the name by which clients reach us.
func allowedHosts(cfg *config.Config) []string {
	public, err := url.Parse(cfg.PublicURL)
	if err != nil || public.Hostname() == "" {
		return cfg.AllowedHosts
	}
	return append(slices.Clip(cfg.AllowedHosts), public.Hostname())
}

// start looks after what clients prove themselves with until ctx ends. Whoever ends it
// waits for f.keys.
func (f *front) start(ctx context.Context) {
	f.once.Do(func() { f.keys.run(func() { f.proofs.current.Run(ctx) }) })
}

// leave drains, and sends clients away behind what they are answered: to another proxy, if
// there are several.
func (f *front) leave() {
	f.leaving.Store(true)
	f.Drain()
}

// ServeHTTP implements [http.Handler].
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.leaving.Load() {
		w.Header().Set("Connection", "close")
	}
	switch {
	case f.connectPage.Has(r):
		f.connectPage.ServeHTTP(w, r)
		return
	case r.URL.Path != "/link" || len(f.links.accepting()) == 0:
		f.HTTP.ServeHTTP(w, r)
		return
	}
	if err := f.Guard.Admit(w, r); err != nil {
		f.links.refused(r, err)
		return
	}
	f.links.ServeHTTP(w, r)
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
