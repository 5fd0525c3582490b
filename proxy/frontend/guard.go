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
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Guard decides which HTTP requests reach a handler, and says who their clients are
// (identify). It is the same for Streamable HTTP, HTTP+SSE and the WebSocket upgrade,
// so their handlers check none of this again.
//
// A web page must not reach a proxy on its reader's machine. If the attacker's own
// name resolves to 127.0.0.1, that name is in Host. A plain cross-site request has the
// page in Origin, or at least Sec-Fetch-Site, if it is for an image or follows a link.
// All are checked on every request. The zero Guard allows loopback names, and asks
// nobody who they are.
type Guard struct {
	// Clients says who they are. Nil asks for nothing: a client on a Unix socket is a
	// user of this system, any other is identity.Nobody.
	Clients Identifier

	// AllowedHosts are allowed besides loopback names and the addresses in
	// Listen: a name for any port, a name:port for that port, "*" for all.
	AllowedHosts []string

	// AllowedOrigins are allowed besides loopback origins: scheme://host[:port],
	// or "*" for all. Their pages may also read what they get (CORS).
	AllowedOrigins []string

	Listen   []string // where the server listens: HOST:PORT or unix:///path
	Insecure bool     // Listen may go beyond loopback without Clients

	Refused func(*identity.Refusal) // told of each request that is refused for who sent it; nil: nobody is
}

// ErrExposed is returned by [Guard.Check] for a proxy that anyone on the network
// could use.
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

// A caller is who sends a request, as far as the Guard can tell, and which upstream
// its path names, "" for all.
type caller struct {
	who      *identity.Identity
	upstream string
}

// connKey is what modern requests that share a connection have in common.
func (c caller) connKey() connKey { return connKey{c.who.Principal, c.upstream} }

// A connKey is a principal, and which upstream a path names, "" for all.
type connKey struct {
	principal identity.Principal
	upstream  string
}

// identify checks a request and says who its client is. If the request is refused, it
// has been answered and ok is false: 403 for a foreign Host or Origin, 400 for a header
// that comes twice, what Clients says. A CORS preflight, which carries no token, has been
// answered with 204.
func (g *Guard) identify(w http.ResponseWriter, r *http.Request) (who *identity.Identity, ok bool) {
	if g.Admit(w, r) != nil {
		return nil, false
	}
	if !g.checkOrigin(w, r) {
		refuse(w, http.StatusForbidden, "Origin is not allowed")
		return nil, false
	}
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return nil, false
	}
	who, why := g.clients().Identify(r)
	if why != nil {
		g.Refuse(w, r, why)
	}
	return who, why == nil
}

// Admit is the part of g for handlers that check Origin and token themselves. It
// returns why r is refused, and has then answered it: 403 to a foreign Host, 400 to
// a header that comes twice.
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

// OwnPage checks a request of a page that is ours, or for it, and says who its client is, or
// why it is refused. If ok is false it has been answered: what another site shows or sends may
// not have it, whatever AllowedOrigins say, and nothing is answered with CORS. Otherwise one of
// who and why is nil, and what the client can do about why is in the header already.
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

// onceOnly are headers that must not come twice. One component may read the first
// and another the last, and the second then serves what the first did not allow.
// net/http refuses a second Host, and HTTP.route a second version.
var onceOnly = []string{"Origin", "Authorization", headerSession}

// What Admit returns.
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

// Names reports whether r comes by an address, or by a name that somebody has listed: a name
// that "*" alone lets in may be any web page's own.
func (g *Guard) Names(r *http.Request) bool {
	if _, err := netip.ParseAddr(hostOnly(r.Host)); err == nil {
		return true
	}
	any := func(allowed string) bool { return allowed == "*" }
	listed := &Guard{AllowedHosts: slices.DeleteFunc(slices.Clone(g.AllowedHosts), any), Listen: g.Listen}
	return listed.hostAllowed(r)
}

// isLocalAddr reports whether host is the address on which the connection came in:
// that is what listening at 0.0.0.0 means. An attacker's name that resolves to the
// address is in Host itself. Browsers do not reach Unix sockets.
func isLocalAddr(r *http.Request, host string) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch local := local.(type) {
	case *net.UnixAddr:
		return true
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

// checkOrigin reports whether r's Origin is allowed, and adds the CORS headers if
// it is. Only browsers send an Origin. They leave it out for images, links and the like, and
// then Sec-Fetch-Site says that another site wants them. Older ones send neither.
func (g *Guard) checkOrigin(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
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
		h.Set("Access-Control-Allow-Headers", corsHeaders+corsParams(r))
		h.Set("Access-Control-Max-Age", corsMaxAge)
	}
	return true
}

// isLocalOrigin reports whether origin is a page that this machine serves itself.
func isLocalOrigin(origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && isLoopback(u.Hostname())
}

// corsParams returns the Mcp-Param headers that a preflight asks for, to be
// appended. The schemas of tools name them, so nobody can list them here.
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

// isLoopback reports whether host always means this machine.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// FromOtherSite reports whether a browser sends r for a page that is not ours, or follows a
// link on one. Another port of the same machine is another site. Nothing but a browser sends
// these headers.
func FromOtherSite(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}
