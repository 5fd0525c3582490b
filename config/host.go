package config

import (
	"net/url"
	"strings"
	"time"
)

// A HostLink holds the flags of mcp-proxy host: how the host and its proxies connect and
// authenticate.
type HostLink struct {
	Listen    string // URL to listen at (--listen), or
	Dial      string // URL of the proxy to dial (--dial): unix, tcp, tls, ws or wss
	TokenFile string // ws and wss: the bearer token that proxies must send, or that we send
	TLS       TLS    // tls and wss: Cert and Key are ours; with CA a listener asks clients for certificates
	Insecure  bool   // allow a link that others can read or use

	Heartbeat time.Duration // as in Link; zero means 5 s
}

// Check returns nil or [Problems], with a flag as the Source of each. It opens no
// files.
func (h HostLink) Check() error {
	var r reader
	if h.Heartbeat < 0 {
		r.fail("--heartbeat", "", "must not be negative")
	}
	switch {
	case h.Listen != "" && h.Dial != "":
		r.fail("--dial", "", "excludes --listen")
	case h.Listen == "" && h.Dial == "":
		r.fail("--listen", "", "either --listen or --dial is needed")
	case h.Listen != "" && !isListenURL(h.Listen):
		r.fail("--listen", "", "must be unix:///path, or a tcp, tls, ws or wss URL with a port")
	case h.Listen != "":
		h.checkListen(&r, parseEndpoint(h.Listen))
	case !isURL(linkSchemes...)(h.Dial):
		r.fail("--dial", "", "must be %s", rules["dialURL"].what)
	default:
		h.checkDial(&r, parseEndpoint(h.Dial))
	}
	if len(r.problems) > 0 {
		return r.problems
	}
	return nil
}

// isListenURL accepts an empty host, which means all interfaces, and requires a port.
func isListenURL(s string) bool {
	u, err := url.Parse(s)
	if err != nil {
		return false
	}
	if u.Scheme != "unix" && !isHostPort(u.Host, true) {
		return false
	}
	return isURL(linkSchemes...)(strings.Replace(s, "://:", "://localhost:", 1))
}

func (h HostLink) checkListen(r *reader, at endpoint) {
	if at.encrypted() && (h.TLS.Cert == "" || h.TLS.Key == "") {
		r.fail("--listen", "", "%s needs --tls-cert and --tls-key", at.scheme)
	}
	if len(at.path) > maxSocketPath {
		r.fail("--listen", "", longSocket, maxSocketPath)
	}
	h.unusedFlags(r, at)
	if h.Insecure || !at.remote() {
		return
	}
	switch {
	case !at.encrypted():
		r.fail("--listen", "", "messages on %s can be read by other machines: listen on %s, or give --insecure", at.scheme, at.safer())
	case h.TLS.CA == "" && h.TokenFile == "" && at.web():
		r.fail("--listen", "", "is reachable from other machines: give --token-file, --tls-ca or --insecure")
	case h.TLS.CA == "" && !at.web():
		r.fail("--listen", "", "is reachable from other machines: give --tls-ca or --insecure")
	}
}

func (h HostLink) checkDial(r *reader, to endpoint) {
	if (h.TLS.Cert == "") != (h.TLS.Key == "") {
		r.fail("--tls-cert", "", "needs --tls-key, and the other way round")
	}
	if len(to.path) > maxSocketPath {
		r.fail("--dial", "", longSocket, maxSocketPath)
	}
	h.unusedFlags(r, to)
	switch {
	case h.Insecure && to.private():
		r.fail("--insecure", "", "is not valid with a dialled %s URL; certificates are always verified", to.scheme)
	case to.exposed() && !h.Insecure:
		r.fail("--dial", "", "%s to another machine can be read and changed on the way: dial %s, or give --insecure", to.scheme, to.safer())
	}
}

// unusedFlags refuses flags that have no effect at an endpoint, since users expect them to protect
// the link.
func (h HostLink) unusedFlags(r *reader, at endpoint) {
	if h.TokenFile != "" && !at.web() {
		r.fail("--token-file", "", "is only valid with ws and wss")
	}
	if h.TLS != (TLS{}) && !at.encrypted() {
		r.fail("--tls-ca, --tls-cert, --tls-key", "", "are only valid with tls and wss")
	}
}
