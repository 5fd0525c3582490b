package frontend

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Guard decides which HTTP requests reach a handler, and identifies their clients. It is the same
// for Streamable HTTP, HTTP+SSE and WebSockets, so their handlers do not repeat these checks.
//
// A web page must not reach a proxy on the machine of its reader. If the attacker's own name
// resolves to 127.0.0.1, that name is in Host. An ordinary cross-site request has the site in
// Origin, or at least has Sec-Fetch-Site if it loads an image or follows a link. The Guard checks
// all of them on every request. The zero Guard allows loopback names, and needs no credentials.
type Guard struct {
	// Clients identifies clients. Nil needs no credentials: a client on a Unix socket is a user of
	// this system, any other client is identity.Nobody.
	Clients Identifier

	// AllowedHosts are allowed besides loopback names and the addresses in Listen: a name for any
	// port, a name:port for that port, "*" for all.
	AllowedHosts []string

	// AllowedOrigins are allowed besides loopback origins: scheme://host[:port], or "*" for all.
	// Their pages may also read responses (CORS).
	AllowedOrigins []string

	Listen   []string // where the server listens: HOST:PORT or unix:///path
	Insecure bool     // Listen may go beyond loopback without Clients

	Refused func(*identity.Refusal) // called for each request that is refused for its sender; nil: not called

	forwards func(upstream string) []identity.Header // as in HTTP; nil: none
}

// ErrExposed is returned by [Guard.Check] for a proxy that anybody on the network could use.
var ErrExposed = errors.New("listening beyond loopback needs client authentication, or insecure: true")

// Check reports whether it is safe to listen at g.Listen. Call it before listening.
func (g *Guard) Check() error {
	if g.clients().Asks() || g.Insecure {
		return nil
	}
	for _, addr := range g.Listen {
		if !isUnix(addr) && !isLoopback(hostOnly(addr)) {
			return ErrExposed
		}
	}
	return nil
}

// A caller is the sender of a request, and the upstream in its path, "" for all.
type caller struct {
	who       *identity.Identity
	upstream  string
	forwarded *jsonrpc.Forwarded // headers for upstreams; nil for none
	user      string             // digest of those that say who the user is; "" for none
}

// sent sets the sender of a message, and the headers that came with it.
func (c caller) sent(m *jsonrpc.Message) { m.From, m.Forwarded = c.who, c.forwarded }

// connKey returns the key of the connection that modern requests share.
func (c caller) connKey() connKey { return connKey{c.who.Principal, c.upstream, c.user} }

// A connKey is a principal and the upstream in a path, "" for all. Users that headers tell apart
// have different ones.
type connKey struct {
	principal identity.Principal
	upstream  string
	user      string
}

// identify checks a request and identifies its client. If ok is false, identify has answered the
// request: 403 for a foreign Host or Origin, 400 for a duplicate header, the refusal of Clients, or
// 204 for a CORS preflight, which has no token. from is nil unless another replica passed the
// request on; that one has checked Host, and may have identified the client.
func (g *Guard) identify(w http.ResponseWriter, r *http.Request, from *origin) (who *identity.Identity, ok bool) {
	if from == nil && g.Admit(w, r) != nil {
		return nil, false
	}
	if !g.checkOrigin(w, r) {
		refuse(w, http.StatusForbidden, "Origin is not allowed")
		return nil, false
	}
	if r.Method == http.MethodOptions {
		writeStatus(w, http.StatusNoContent)
		return nil, false
	}
	if who = from.client(); who != nil && g.accepts(who) {
		return who, true
	}
	who, why := g.clients().Identify(r)
	if why != nil {
		g.Refuse(w, r, why)
	}
	return who, why == nil
}

// accepts reports whether a client that another replica has identified by its connection needs no other
// proof here: the configurations of both may differ for a while.
func (g *Guard) accepts(who *identity.Identity) bool {
	good := g.clients().Good(who)
	return good == nil || good.Err() == nil
}

// Admit is the part of g for handlers that check Origin and token themselves. If r is refused, it
// returns why and has answered r: 403 for a foreign Host, 400 for a duplicate header.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request) error {
	if !g.hostAllowed(r) {
		refuse(w, http.StatusForbidden, "Host is not allowed")
		return errHost
	}
	for _, name := range onceOnly {
		if len(r.Header[name]) > 1 {
			refuse(w, http.StatusBadRequest, name+" comes twice")
			return errTwice
		}
	}
	return nil
}

// OwnPage checks a request for one of our own pages, or from one, and identifies its client. If ok
// is false it has answered the request: other sites may neither show nor send it, whatever
// AllowedOrigins says, and there is no CORS header. Otherwise exactly one of who and why is nil,
// and the header already has the challenge for why.
func (g *Guard) OwnPage(w http.ResponseWriter, r *http.Request) (who *identity.Identity, why *identity.Refusal, ok bool) {
	if g.Admit(w, r) != nil {
		return nil, nil, false
	}
	if FromOtherSite(r) {
		refuse(w, http.StatusForbidden, "Origin is not allowed: open this page by its own address")
		return nil, nil, false
	}
	who, why = g.clients().Identify(r)
	if why != nil {
		if challenge := g.clients().Challenge(r, why); challenge != "" {
			w.Header().Set("WWW-Authenticate", challenge)
		}
	}
	return who, why, true
}

// onceOnly are headers that must not be repeated. Otherwise one component could check the first
// value and another use the last one. net/http rejects a second Host, and HTTP.route a second
// version.
var onceOnly = []string{"Origin", "Authorization", headerSession}

// Errors of Admit.
var (
	errHost  = errors.New("its Host is not allowed")
	errTwice = errors.New("one of its headers comes twice")
)

func (g *Guard) hostAllowed(r *http.Request) bool {
	host := hostOnly(r.Host)
	if isLoopback(host) {
		return true
	}
	matches := func(allowed string) bool {
		return allowed == "*" || strings.EqualFold(strings.Trim(allowed, "[]"), host) || strings.EqualFold(allowed, r.Host)
	}
	if slices.ContainsFunc(g.AllowedHosts, matches) {
		return true
	}
	if host == "" {
		return false
	}
	listens := func(addr string) bool { return !isUnix(addr) && strings.EqualFold(hostOnly(addr), host) }
	return slices.ContainsFunc(g.Listen, listens) || isLocalAddr(r, host)
}

// Names reports whether Host is an address or a listed name. A name that only "*" allows may belong
// to any web page.
func (g *Guard) Names(r *http.Request) bool {
	if _, err := netip.ParseAddr(hostOnly(r.Host)); err == nil {
		return true
	}
	any := func(allowed string) bool { return allowed == "*" }
	listed := &Guard{AllowedHosts: slices.DeleteFunc(slices.Clone(g.AllowedHosts), any), Listen: g.Listen}
	return listed.hostAllowed(r)
}

// isLocalAddr reports whether host is the address on which the connection came in, for a proxy that
// listens at 0.0.0.0. An attacker's name that resolves to that address would itself be in Host. On a
// Unix socket any host is, but for browsers, which only a forwarded port leads there.
func isLocalAddr(r *http.Request, host string) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch local := local.(type) {
	case *net.UnixAddr:
		return field(r.Header, "Sec-Fetch-Site") == "" && field(r.Header, "Origin") == ""
	case *net.TCPAddr:
		ip, err := netip.ParseAddr(host)
		return err == nil && ip.Unmap() == local.AddrPort().Addr().Unmap().WithZone("")
	}
	return false
}

const (
	corsMethods = "GET, POST, DELETE"
	corsHeaders = "Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"
	corsMaxAge  = "7200" // seconds
	corsExposed = "Mcp-Session-Id, Retry-After, WWW-Authenticate"
)

// checkOrigin reports whether r's Origin is allowed, and adds the CORS headers if it is. Only
// browsers send an Origin. They omit it for images, links and the like; then Sec-Fetch-Site tells
// that another site sends the request. Older browsers send neither.
func (g *Guard) checkOrigin(w http.ResponseWriter, r *http.Request) bool {
	origin := field(r.Header, "Origin")
	if origin == "" {
		return !FromOtherSite(r)
	}
	w.Header().Add("Vary", "Origin")
	listed := func(allowed string) bool { return allowed == "*" || strings.EqualFold(allowed, origin) }
	if !isLocalOrigin(origin) && !slices.ContainsFunc(g.AllowedOrigins, listed) {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", corsExposed)
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", corsMethods)
		h.Set("Access-Control-Allow-Headers", corsHeaders+g.corsForwarded()+corsParams(r))
		h.Set("Access-Control-Max-Age", corsMaxAge)
	}
	return true
}

// isLocalOrigin reports whether origin is a page of a server on this machine.
func isLocalOrigin(origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && isLoopback(u.Hostname())
}

// corsForwarded returns the headers that upstreams get, as a suffix of corsHeaders.
func (g *Guard) corsForwarded() string {
	var b strings.Builder
	if g.forwards != nil {
		for _, f := range g.forwards("") {
			b.WriteString(", " + f.Name)
		}
	}
	return b.String()
}

// corsParams returns the Mcp-Param headers that a preflight asks for, as a suffix of corsHeaders.
// The schemas of tools define them, so they cannot be listed here.
func corsParams(r *http.Request) string {
	var b strings.Builder
	for _, line := range r.Header["Access-Control-Request-Headers"] {
		for name := range strings.SplitSeq(line, ",") {
			name = strings.TrimSpace(name)
			if rest, ok := strings.CutPrefix(strings.ToLower(name), "mcp-param-"); ok && mcp.IsToken(rest) {
				b.WriteString(", " + name)
			}
		}
	}
	return b.String()
}

func isUnix(addr string) bool { return strings.HasPrefix(addr, "unix:") }

// hostOnly returns the host of HOST, HOST:PORT, [V6] or [V6]:PORT.
func hostOnly(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return strings.TrimSuffix(host, ".")
	}
	return strings.TrimSuffix(strings.Trim(addr, "[]"), ".")
}

// isLoopback reports whether host always is this machine.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// FromOtherSite reports whether r comes from a browser, for another site's page or from a link on
// it. Another port of the same machine is another site. Only browsers send these headers.
func FromOtherSite(r *http.Request) bool {
	if site := field(r.Header, "Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return true
	}
	origin := field(r.Header, "Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}
