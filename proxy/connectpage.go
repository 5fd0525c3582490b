package proxy

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

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

func proofsOf(cfg *config.Config) []observe.Proof {
	all := []observe.Proof{}
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
func availabilityOf(servers []upstream.Status) map[string]observe.Availability {
	ranks := []observe.Availability{"", observe.Failing, observe.Starting, observe.Running}
	all := make(map[string]observe.Availability)
	for _, s := range servers {
		now := observe.Availability("")
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
