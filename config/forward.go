package config

import (
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// A ForwardedHeader is a header of a client's HTTP request that an upstream gets. The names are in
// canonical form.
type ForwardedHeader struct {
	Key      string // its path, for error lines: upstreams.docs.forwardHeaders[0]
	From     string `key:"from" is:"headerName" needed:"true" doc:"its name in the client's request"`
	To       string `key:"to" is:"headerName" shown:"'from'" doc:"its name in requests to the server"`
	Identity bool   `key:"identity" doc:"it says who the user is: clients with different values share no session with the server. Always true with 'to: Authorization'"`
}

// set reads an entry that is only a name.
func (h *ForwardedHeader) set(name string) { h.From = name }

// complete brings the names into canonical form, and fills in what follows from them.
func (h *ForwardedHeader) complete() {
	h.From, h.To = http.CanonicalHeaderKey(h.From), http.CanonicalHeaderKey(h.To)
	if h.To == "" {
		h.To = h.From
	}
	h.Identity = h.Identity || h.To == authorization
}

const authorization = "Authorization"

// forwardable refuses the name of a header that must not be forwarded.
func (v value) forwardable(name string) {
	switch name = http.CanonicalHeaderKey(name); {
	case strings.HasPrefix(name, "Mcp-"), slices.Contains(ownHeaders, name):
		v.wrong("%s belongs to the protocol, and is never forwarded", name)
	case slices.Contains(hopHeaders, name), strings.HasPrefix(name, "Sec-Websocket-"):
		v.wrong("%s is about one connection, and is never forwarded", name)
	case name == "Cookie":
		v.wrong("cookies are never forwarded")
	}
}

// ownHeaders are the headers that each end of a connection sets itself.
var ownHeaders = []string{
	"Host", "Accept", "Accept-Encoding", "Content-Type", "Content-Length", "Content-Encoding", "Last-Event-Id", "Expect",
}

// hopHeaders are the headers of one connection (RFC 9110, 7.6.1).
var hopHeaders = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// whySetByUs returns why the configuration cannot set a header of requests to a server; "" if it can. Host is that
// of a virtual server. Files of other programs have Accept, Content-Type and MCP-Protocol-Version, which do no harm.
func whySetByUs(name string) string {
	switch name = http.CanonicalHeaderKey(name); {
	case slices.Contains(hopHeaders, name), strings.HasPrefix(name, "Sec-Websocket-"):
		return "is about one connection, and cannot be set"
	case slices.Contains([]string{"Content-Length", "Content-Encoding", "Expect", "Last-Event-Id"}, name),
		slices.Contains([]string{"Mcp-Session-Id", "Mcp-Method", "Mcp-Name"}, name), strings.HasPrefix(name, "Mcp-Param-"):
		return "belongs to the protocol, and cannot be set"
	}
	return ""
}

// checkForwarded checks forwardHeaders against the other keys of an upstream.
func (u *Upstream) checkForwarded(v value) {
	all := v.node.Get("forwardHeaders")
	if len(u.ForwardHeaders) == 0 {
		return
	}
	list := value{v.reader, all}
	identity := false
	for i := range u.ForwardHeaders {
		h := &u.ForwardHeaders[i]
		item := value{v.reader, all.Items[i]}
		item.part("from").forwardable(h.From)
		if h.complete(); h.To != h.From {
			item.part("to").forwardable(h.To)
		}
		u.checkTarget(item.part("to"), *h, u.ForwardHeaders[:i])
		identity = identity || h.Identity
	}
	switch {
	case u.URL == "": // checkTransport refuses it
	case u.Shared:
		list.wrong("excludes session: shared, which has one session for all clients")
	case u.Start == "lazy":
		list.wrong("excludes start: lazy: what the server lists may depend on the headers, and is not kept for other clients")
	case u.Required && identity:
		list.wrong("excludes required with identity: the proxy itself has no such header")
	}
}

// part returns the member of an entry with a key, or the entry if it has none.
func (v value) part(key string) value {
	if v.node.Get(key) == nil {
		return v
	}
	return v.get(key)
}

// checkTarget refuses the target of a header that something else sets.
func (u *Upstream) checkTarget(v value, h ForwardedHeader, before []ForwardedHeader) {
	for _, other := range before {
		if other.To == h.To && h.To != "" {
			v.wrong("%s is the target of %s, too", h.To, other.Key)
			return
		}
	}
	same := func(name string) bool { return strings.EqualFold(name, h.To) }
	for name := range u.Headers {
		if same(name) {
			v.wrong("headers sets %s", h.To)
		}
	}
	for name := range u.HeadersFrom {
		if same(name) {
			v.wrong("headersFrom sets %s", h.To)
		}
	}
	if h.To == authorization && u.Auth != (UpstreamAuth{}) {
		v.wrong("auth sets %s", h.To)
	}
}

// forwarding checks forwardHeaders against the front end, after all layers are merged: the token
// that clients send to us must not reach a server (2025-11-25 basic/authorization, "Token
// Passthrough").
func (r *reader) forwarding(c *Config, o Options) {
	for _, u := range c.Upstreams {
		if o.Host && len(u.ForwardHeaders) > 0 {
			r.fail(r.source, tree.Join(u.Key, "forwardHeaders"), "is only valid for a proxy: a host gets no headers of clients")
			continue
		}
		for _, h := range u.ForwardHeaders {
			if h.From == authorization && (c.TokenFile != "" || len(c.Auth.Tokens)+len(c.Auth.JWT) > 0) {
				r.fail(r.source, h.Key, "Authorization is the token for this proxy (tokenFile or auth), and is never forwarded: clients send the token for the server in another header, as in {from: X-User-Token, to: Authorization}")
			}
		}
	}
}
