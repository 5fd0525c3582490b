package config

import (
	"net/url"
	"strconv"
	"strings"
)

// Admin is where operators look in, besides the Unix socket that each command has anyway.
type Admin struct {
	Listen    []string // HOST:PORT or unix:///path
	TokenFile string   // path of the bearer token that operators on TCP send; empty: they get probes and metrics alone
	Payloads  bool     // operators on a Unix socket may see and record what is in messages
}

func (l *loader) readAdmin(v value) {
	v.strict(fields{
		"listen":    into(&l.cfg.Admin.Listen, address.list),
		"tokenFile": into(&l.cfg.Admin.TokenFile, value.filePath),
		"payloads":  into(&l.cfg.Admin.Payloads, truth.read),
	})
}

// operators checks who can look in.
func (l *loader) operators(c *Config) {
	onTCP := false
	for _, a := range c.Admin.Listen {
		unix := strings.HasPrefix(a, "unix:")
		onTCP = onTCP || !unix
		if !unix && !isLocal(a) && c.Admin.TokenFile != "" {
			l.warn(l.source, "admin.listen", "the token can be read on its way to %s: whoever has it sees clients, servers and their last words", quote(a))
		}
	}
	if c.Admin.TokenFile != "" && !onTCP {
		l.fail(l.source, "admin.tokenFile", "has a meaning only with a HOST:PORT in admin.listen: who can use a Unix socket needs no token")
	}
}

// Traces says where traces of calls go. The zero value: where the environment says.
type Traces struct {
	Endpoint    string            // base URL of a collector (OTLP over HTTP); empty: the environment's, else none
	HeadersFrom map[string]string // header name to the path of a file that holds its value
	TLS         TLS
	Off         bool     // nowhere, whatever the environment says; no file says so
	Sample      *float64 // part of the traces without a parent that is recorded, 0 to 1; nil: what the environment says, else all
}

var (
	collector = scalar[string]{what: "an http or https URL such as http://127.0.0.1:4318, without a user, ? or #", kinds: text, parse: check(isCollector), secret: true}
	part      = scalar[float64]{what: "a number from 0 to 1 such as 0.1", kinds: number, parse: parsePart}
)

func isCollector(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL("http", "https")(s) && u.User == nil && !strings.ContainsAny(s, "?#")
}

func parsePart(s string) (float64, bool) {
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && f >= 0 && f <= 1
}

func (l *loader) readTraces(v value) {
	t := &l.cfg.Traces
	var sample float64
	v.strict(fields{
		"endpoint":    into(&t.Endpoint, collector.read),
		"headersFrom": into(&t.HeadersFrom, value.headersFrom),
		"tls":         into(&t.TLS, value.tls),
		"sample":      into(&sample, part.read),
	})
	if v.node.has("sample") {
		t.Sample = &sample
	}
	if t.Endpoint == "" {
		return
	}
	switch secure := strings.HasPrefix(t.Endpoint, "https:"); {
	case !secure && t.TLS != (TLS{}):
		l.fail(l.source, join(v.key, "tls"), "has a meaning only with an https endpoint")
	case !secure && len(t.HeadersFrom) > 0 && !isSecureURL(t.Endpoint):
		l.warn(l.source, join(v.key, "headersFrom"), "can be read on their way to the endpoint: it is http, on another machine")
	}
}
