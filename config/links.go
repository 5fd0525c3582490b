package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// check refuses keys that contradict each other, and links without encryption to other machines.
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

// checkAccepted checks a link that its host dials: the proxy's listener has the settings for TLS.
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
	if len(to.path) > maxSocketPath {
		v.get("dial").wrong(longSocket, maxSocketPath)
	}
	if to.exposed() {
		v.get("dial").wrong("%s to another machine can be read and changed on the way: dial %s", to.scheme, to.safer())
	}
}

// check compares links with each other.
func (c *Config) check(v value) {
	v.distinctTokens(c.Links)
	v.boundNames(c.Links)
}

// distinctTokens refuses a token file that two accepting links share: only its token identifies a
// host.
func (r *reader) distinctTokens(links []Link) {
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

// boundNames warns if several hosts that dial us may announce any name.
func (r *reader) boundNames(links []Link) {
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

// An endpoint is the part of a URL on which the rules for encryption depend.
type endpoint struct {
	scheme string
	host   string // without the port; empty for unix and for all interfaces
	path   string // of a Unix socket
}

// parseEndpoint returns the endpoint of a URL; the zero value if the URL is invalid.
func parseEndpoint(s string) endpoint {
	u, err := url.Parse(s)
	if err != nil {
		return endpoint{}
	}
	e := endpoint{scheme: u.Scheme, host: u.Hostname()}
	if u.Scheme == "unix" {
		e.path = u.Path
	}
	return e
}

// maxSocketPath is how many bytes the path of a Unix socket may have here.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// longSocket is the mistake of a longer one.
const longSocket = "the path of a socket may have %d bytes"

func (e endpoint) web() bool       { return e.scheme == "ws" || e.scheme == "wss" }
func (e endpoint) encrypted() bool { return slices.Contains([]string{"tls", "wss", "https"}, e.scheme) }

// private reports whether no other machine can read messages, wherever the other end is.
func (e endpoint) private() bool { return e.scheme == "unix" || e.encrypted() }

// remote reports whether the other end is, or may be, another machine.
func (e endpoint) remote() bool { return e.scheme != "unix" && !isLoopback(e.host) }

// exposed reports whether others can read messages on the way.
func (e endpoint) exposed() bool { return e.remote() && !e.encrypted() }

// safer returns the encrypted scheme of the same transport.
func (e endpoint) safer() string {
	if e.web() {
		return "wss"
	}
	return "tls"
}
