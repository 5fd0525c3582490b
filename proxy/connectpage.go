package proxy

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/page"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// connectData is where the page at / has its data from.
const connectData = "/connect.json"

// A connectPage is the page at / of serve: how clients connect, and to what. Who may not connect
// gets a page that asks for the token. A nil one has no path.
type connectPage struct {
	proxy *Proxy
	guard *frontend.Guard
	url   string // as configured
}

// newConnectPage returns the page of a proxy. There is none where any Host is allowed: then a page
// of anybody, under a name that leads here, could read it.
func newConnectPage(cfg *config.Config, p *Proxy) *connectPage {
	if slices.Contains(cfg.AllowedHosts, "*") {
		return nil
	}
	return &connectPage{p, &p.front.Guard, cfg.PublicURL}
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

// has reports whether r is for the page.
func (h *connectPage) has(r *http.Request) bool {
	if h == nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	return r.URL.Path == connectData || page.Connect.Has(r.URL.Path)
}

// ServeHTTP implements [http.Handler]. What belongs to the page is the same for everybody, and
// needs no token. The page itself does, and what it shows.
func (h *connectPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, why, ok := h.guard.OwnPage(w, r)
	switch path := r.URL.Path; {
	case !ok:
	case path != "/" && path != connectData:
		page.Connect.Serve(w, r, http.StatusOK)
	case why != nil && path == "/" && why.Status == http.StatusUnauthorized && page.Wanted(r):
		page.Connect.Serve(w, r, http.StatusUnauthorized)
	case why != nil:
		h.guard.Refuse(w, r, why)
	case path == "/":
		page.Connect.Serve(w, r, http.StatusOK)
	default:
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(h.tell(who, r)) // that the browser went is its business
	}
}

// tell returns what a client may know.
func (h *connectPage) tell(who *identity.Identity, r *http.Request) observe.ConnectInfo {
	told := observe.ConnectInfo{URL: h.url, Proof: proofsOf(h.proxy.config.Load())}
	told.Upstreams = []observe.Offered{}
	told.Operators = h.proxy.operators.pages(r.Host)
	grant, states := h.proxy.router.Policies.For(who), availabilityOf(h.proxy.host.host.Status())
	for _, u := range h.proxy.links.offered() {
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
