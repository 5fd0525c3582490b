package config

import (
	"net/url"
	"path/filepath"
	"slices"
)

func (l *loader) readLinks(v value) {
	v.each(func(name string, v value) {
		link := defaultLink()
		link.Name, link.Key = name, v.key
		if !isName(name) {
			v.wrong("is not %s", nameRule)
		}
		v.strict(fields{
			"dial":      into(&link.Dial, dialURL.read),
			"accept":    into(&link.Accept, truth.read),
			"tokenFile": into(&link.TokenFile, value.path),
			"tls":       into(&link.TLS, value.tls),
			"auth":      into(&link.Auth, value.auth),
			"insecure":  into(&link.Insecure, truth.read),
			"required":  into(&link.Required, truth.read),
			"heartbeat": into(&link.Heartbeat, duration1.read),
			"upstreams": into(&link.Upstreams, glob.some),
		})
		switch {
		case v.node.kind&(null|object) == 0: // named already
		case v.node.has("dial") == link.Accept:
			v.wrong("needs either dial or accept: true")
		case link.Accept:
			v.accepted(link)
		case link.Dial != "":
			v.dialled(link)
		}
		l.cfg.Links = append(l.cfg.Links, link)
	})
	l.ownTokens()
	l.ownNames()
}

// accepted checks a link that its host dials: TLS is the listener's business.
func (v value) accepted(link Link) {
	if link.TokenFile == "" {
		v.wrong("accept needs tokenFile")
	}
	v.misplaced("tls", "dial")
	v.misplaced("auth", "dial")
	v.misplaced("insecure", "dial")
}

// dialled checks the keys of a link against the scheme of its URL.
func (v value) dialled(link Link) {
	to := parseEndpoint(link.Dial)
	if !to.web() {
		v.misplaced("tokenFile", "accept, or a ws or wss URL to dial")
		v.misplaced("auth", "a ws or wss URL to dial")
	}
	if link.TokenFile != "" && v.node.has("auth") {
		v.wrong("has both tokenFile and auth")
	}
	if !to.encrypted() {
		v.misplaced("tls", "a tls or wss URL to dial")
	}
	if to.private() {
		v.misplaced("insecure", "a tcp or ws URL to dial; certificates are always verified")
	}
	if to.exposed() && !link.Insecure {
		v.fail(v.source, join(v.key, "dial"), "%s to another machine can be read and changed on the way: dial %s, or set insecure: true", to.scheme, to.safer())
	}
}

// misplaced refuses a key that is there without what gives it a meaning.
func (v value) misplaced(key, needs string) {
	v.pick(key, func(v value) { v.wrong("has a meaning only with %s", needs) })
}

// ownTokens checks that no two accepting links share a token: only the token tells
// their hosts apart.
func (l *loader) ownTokens() {
	owner := make(map[string]string)
	for _, link := range l.cfg.Links {
		if !link.Accept || link.TokenFile == "" {
			continue
		}
		file := filepath.Clean(link.TokenFile)
		if first, ok := owner[file]; ok {
			l.fail(l.source, join(link.Key, "tokenFile"), "is also that of %s: a host is known by its token, so each link needs its own", first)
			continue
		}
		owner[file] = link.Key
	}
}

// ownNames warns of hosts that may announce the same names. Hosts that dial us are known by
// their tokens alone, so each should be held to its own names.
func (l *loader) ownNames() {
	var any []string
	for _, link := range l.cfg.Links {
		if link.Accept && link.Upstreams == nil {
			any = append(any, link.Key)
		}
	}
	if len(any) > 1 {
		l.warn(l.source, any[1], "its host and that of %s may announce any upstream, also under a name of the other: say in upstreams of each link what its host may announce", any[0])
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
