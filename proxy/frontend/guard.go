package frontend

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Guard decides which HTTP requests reach a handler. It is the same for
// Streamable HTTP, for the 2024-11-05 transport and for the WebSocket upgrade,
// so the handlers behind it check nothing of this again.
//
// A web page must not reach a proxy on its reader's machine. A name of the
// attacker's that resolves to 127.0.0.1 shows in Host; a plain cross-site
// request shows in Origin. Both are checked, on every request. The zero Guard
// lets in loopback names, without a token.
type Guard struct {
	// Token is what "Authorization: Bearer" must carry; "" asks for none.
	// TokenFrom is asked for it in its place, for each request, since tokens are
	// rotated; an error refuses the request with 503.
	Token     string
	TokenFrom func() (string, error)

	// AllowedHosts are let in besides loopback names and the addresses in
	// Listen: a name for any port, a name:port for that port, "*" for all.
	AllowedHosts []string

	// AllowedOrigins are let in besides loopback origins: scheme://host[:port],
	// or "*" for all. Pages that are let in may also read what they get (CORS).
	AllowedOrigins []string

	Listen   []string // where the server listens: HOST:PORT or unix:///path
	Insecure bool     // Listen may go beyond loopback without a Token
}

// ErrExposed is returned by [Guard.Check] for a proxy that anyone on the network
// could use.
var ErrExposed = errors.New("listening beyond loopback needs a token, or insecure: true")

// Check reports whether it is safe to listen at g.Listen. Who listens calls it
// first.
func (g *Guard) Check() error {
	if g.asksToken() || g.Insecure {
		return nil
	}
	for _, addr := range g.Listen {
		if !isUnix(addr) && !isLoopback(hostOnly(addr)) {
			return ErrExposed
		}
	}
	return nil
}

// Wrap returns a handler that passes on what g lets in. It answers 403 to a
// foreign Host or Origin, 400 to a header that comes twice, 401 without the right
// token, which says whether there was none or a wrong one, and all CORS preflights
// itself (they carry no token).
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Admit(w, r) != nil {
			return
		}
		if !g.admitOrigin(w, r) {
			refuse(w, http.StatusForbidden, "Origin is not allowed")
			return
		}
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if g.admitToken(w, r) {
			next.ServeHTTP(w, r)
		}
	})
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

// onceOnly are headers that must not come twice: of two components that take another
// one each, the second serves what the first did not let in. net/http refuses a
// second Host, and HTTP.route a second version.
var onceOnly = []string{"Origin", "Authorization", headerSession}

// What Admit returns.
var (
	errHost  = errors.New("its Host is not allowed")
	errTwice = errors.New("one of its headers comes twice")
)

// refuse answers a request with an HTTP error status. The body is an error
// response without an id, which the specification allows for all of them.
func refuse(w http.ResponseWriter, status int, reason string) {
	refuseWith(w, status, invalidRequest(reason))
}

func refuseWith(w http.ResponseWriter, status int, err *jsonrpc.Error) {
	writeError(w, status, jsonrpc.ID{}, err)
}

// writeError answers a request with an error, under its id if that is known and
// the client's era wants it.
func writeError(w http.ResponseWriter, status int, id jsonrpc.ID, err *jsonrpc.Error) {
	w.Header()["Content-Type"] = headerJSON
	w.WriteHeader(status)
	w.Write(jsonrpc.NewError(id, err).Append(nil)) // the client may be gone: nobody to tell
}

func invalidRequest(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: " + reason}
}

var headerJSON = []string{"application/json"}

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

// isLocalAddr reports whether host is the address that the connection came in
// on, which is what listening at 0.0.0.0 means. No name can be rebound to make a
// browser send an address. Browsers do not reach Unix sockets either.
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
	corsExposed = "Mcp-Session-Id, Retry-After, WWW-Authenticate"
)

// admitOrigin reports whether r's Origin is let in, and adds the CORS headers
// where they are due. Only browsers send an Origin.
func (g *Guard) admitOrigin(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
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
		h.Set("Access-Control-Max-Age", "7200")
	}
	return true
}

// isLocalOrigin reports whether origin is a page that this machine serves itself.
func isLocalOrigin(origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && isLoopback(u.Hostname())
}

// corsParams returns the Mcp-Param headers that a preflight asks for, to be
// appended: they are named by the schemas of tools.
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

// principal names whose requests those are that a Guard let in, which is all it
// knows of who sent them: all who have the token are one.
func (g *Guard) principal() string {
	if g.asksToken() {
		return "token"
	}
	return "anonymous"
}

func (g *Guard) asksToken() bool { return g.Token != "" || g.TokenFrom != nil }

func (g *Guard) token() (string, error) {
	if g.TokenFrom == nil {
		return g.Token, nil
	}
	token, err := g.TokenFrom()
	if err == nil && token == "" {
		err = errNoToken
	}
	return token, err
}

var errNoToken = errors.New("no token to compare with")

// admitToken reports whether r carries the token, and refuses it otherwise. Hashes
// are compared, so that not even the length shows in the time.
func (g *Guard) admitToken(w http.ResponseWriter, r *http.Request) bool {
	if !g.asksToken() {
		return true
	}
	token, err := g.token()
	if err != nil { // nobody's token can be told from a wrong one
		unavailable(w, "tokens cannot be checked")
		return false
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if given = strings.TrimSpace(given); given == "" || !strings.EqualFold(scheme, "Bearer") {
		w.Header().Set("WWW-Authenticate", `Bearer realm="mcp-proxy"`)
		refuse(w, http.StatusUnauthorized, "a bearer token is required, as in Authorization: Bearer TOKEN")
		return false
	}
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
		return true
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="mcp-proxy", error="invalid_token"`)
	refuse(w, http.StatusUnauthorized, "the bearer token is wrong")
	return false
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
