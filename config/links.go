package config

import (
	"net/url"
	"path/filepath"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

const nameRule = "a name of 1 to 32 of A-Z a-z 0-9 _ -, without __"

// check refuses keys that have no meaning beside each other, or would leave messages open.
func (link *Link) check(v value) {
	switch {
	case v.node.Has("dial") == link.Accept:
		v.wrong("needs either dial or accept: true")
	case link.Accept:
		link.checkAccepted(v)
	case link.Dial != "":
		link.checkDialled(v)
	}
}

// checkAccepted checks a link that its host dials: TLS is the listener's business.
func (link *Link) checkAccepted(v value) {
	if link.TokenFile == "" {
		v.wrong("accept needs tokenFile")
	}
	for _, key := range []string{"tls", "auth"} {
		v.misplaced(key, "is only valid with dial")
	}
}

// checkDialled checks the keys of a link against the scheme of its URL.
func (link *Link) checkDialled(v value) {
	to := parseEndpoint(link.Dial)
	if !to.web() {
		v.misplaced("tokenFile", "is only valid with accept, or a ws or wss URL to dial")
		v.misplaced("auth", "is only valid with a ws or wss URL to dial")
	}
	if link.TokenFile != "" && v.node.Has("auth") {
		v.wrong("has both tokenFile and auth")
	}
	if !to.encrypted() {
		v.misplaced("tls", "is only valid with a tls or wss URL to dial")
	}
	if to.exposed() {
		value{v.reader, v.node.Get("dial")}.wrong("%s to another machine can be read and changed on the way: dial %s", to.scheme, to.safer())
	}
}

// check looks at all links together.
func (c *Config) check(v value) {
	v.ownTokens(c.Links)
	v.ownNames(c.Links)
}

// ownTokens checks that no two accepting links share a token: only the token tells
// their hosts apart.
func (r *reader) ownTokens(links []Link) {
	owner := make(map[string]string)
	for _, link := range links {
		if !link.Accept || link.TokenFile == "" {
			continue
		}
		file := filepath.Clean(link.TokenFile)
		if first, ok := owner[file]; ok {
			r.fail(r.source, tree.Join(link.Key, "tokenFile"), "is also used by %s: a host is identified by its token, so each link needs its own", first)
			continue
		}
		owner[file] = link.Key
	}
}

// ownNames warns of hosts that may announce the same names. Hosts that dial us are known by
// their tokens alone, so each should be held to its own names.
func (r *reader) ownNames(links []Link) {
	var any []string
	for _, link := range links {
		if link.Accept && link.Upstreams == nil {
			any = append(any, link.Key)
		}
	}
	if len(any) > 1 {
		r.warn(r.source, any[1], "its host and the host of %s may announce any upstream, even under each other's names: list in upstreams of each link what its host may announce", any[0])
	}
}

// An endpoint is where a link begins or ends, as far as rules depend on it.
type endpoint struct {
	scheme string
	host   string // without the port; empty for unix and for all interfaces
	port   string
}

// parseEndpoint takes a valid URL; for another it returns the zero endpoint.
func parseEndpoint(s string) endpoint {
	u, err := url.Parse(s)
	if err != nil {
		return endpoint{}
	}
	return endpoint{u.Scheme, u.Hostname(), u.Port()}
}

func (e endpoint) web() bool       { return e.scheme == "ws" || e.scheme == "wss" }
func (e endpoint) encrypted() bool { return slices.Contains([]string{"tls", "wss", "https"}, e.scheme) }

// private tells whether nobody else can read, wherever the other end is.
func (e endpoint) private() bool { return e.scheme == "unix" || e.encrypted() }

// remote tells whether other machines are at the other end, or may be.
func (e endpoint) remote() bool { return e.scheme != "unix" && !isLoopback(e.host) }

// exposed tells whether messages can be read on the way.
func (e endpoint) exposed() bool { return e.remote() && !e.encrypted() }

// safer is the scheme of the same link with encryption.
func (e endpoint) safer() string {
	if e.web() {
		return "wss"
	}
	return "tls"
}
