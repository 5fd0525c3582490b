package config

import "strings"

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
