package config

import (
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// operators checks the addresses for operators.
func (l *loader) operators(c *Config) {
	onTCP := false
	for _, a := range c.Admin.Listen {
		unix := strings.HasPrefix(a, "unix:")
		onTCP = onTCP || !unix
		if !unix && !isLocal(a) && c.Admin.TokenFile != "" {
			l.warn(l.source, "admin.listen", "the token is sent unencrypted to %s: with it anybody sees clients, servers and their last errors", tree.Quote(a))
		}
	}
	if c.Admin.TokenFile != "" && !onTCP {
		l.fail(l.source, "admin.tokenFile", "is only valid with a HOST:PORT in admin.listen: operators on a Unix socket need no token")
	}
}

func (t *Traces) check(v value) {
	if t.Endpoint == "" {
		return
	}
	switch secure := strings.HasPrefix(t.Endpoint, "https:"); {
	case !secure && t.TLS != (TLS{}):
		value{v.reader, v.node.Get("tls")}.wrong("is only valid with an https endpoint")
	case !secure && len(t.HeadersFrom) > 0 && !isSecureURL(t.Endpoint):
		value{v.reader, v.node.Get("headersFrom")}.caution("are sent unencrypted: the endpoint is http, on another machine")
	}
}
