package config

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// check refuses two tokens with the same name, and two issuers with the same URL.
func (a *Auth) check(v value) {
	tokens, issuers := v.node.Get("tokens").All(), v.node.Get("jwt").All()
	for i, t := range a.Tokens {
		for _, other := range a.Tokens[:i] {
			if t.Name != "" && other.Name == t.Name {
				value{v.reader, tokens[i]}.wrong("has the same name as %s: a client is identified by its name", other.Key)
			}
		}
	}
	for i, issuer := range a.JWT {
		for _, other := range a.JWT[:i] {
			if issuer.Issuer != "" && sameURL(other.Issuer, issuer.Issuer) {
				value{v.reader, issuers[i]}.wrong("has the same issuer as %s", other.Key)
			}
		}
	}
}

func (i *Issuer) check(v value) {
	if i.JWKSURL != "" && i.JWKSFile != "" {
		v.wrong("has both jwksURL and jwksFile")
	}
}

// sameURL compares URLs without a slash at the end: two issuers that differ only there are most
// likely the same.
func sameURL(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// clients checks how clients authenticate, after all layers are merged.
func (r *reader) clients(c *Config, o Options) {
	source, key := r.source, "tls"
	if o.TLS != (ListenTLS{}) {
		source, key = "--tls-cert", ""
	}
	switch t := c.TLS; {
	case (t.Cert == "") != (t.Key == ""):
		r.fail(source, key, "needs both a certificate and a key")
	case t.ClientCA != "" && t.Cert == "":
		r.fail(source, key, "client certificates need a certificate and a key of the server")
	}
	for _, t := range c.Auth.Tokens {
		if t.Name == defaultToken && c.TokenFile != "" {
			r.fail(r.source, tree.Join(t.Key, "name"), "is the name of the token in tokenFile")
		}
	}
	r.distinctFiles(c)
}

// defaultToken is the name of the token in tokenFile. Without tokenFile another token may have this
// name.
const defaultToken = "default"

// distinctFiles refuses a token file that is used twice: by two clients, or by clients and a host.
func (r *reader) distinctFiles(c *Config) {
	owner := make(map[string]string)
	if c.TokenFile != "" {
		owner[filepath.Clean(c.TokenFile)] = "tokenFile"
	}
	for _, t := range c.Auth.Tokens {
		file := filepath.Clean(t.TokenFile)
		if first, ok := owner[file]; ok {
			r.fail(r.source, tree.Join(t.Key, "tokenFile"), "is also used by %s: a client is identified by its token, so each name needs its own", first)
			continue
		}
		owner[file] = t.Key
	}
	for _, link := range c.Links {
		if _, ok := owner[filepath.Clean(link.TokenFile)]; ok && link.Accept {
			r.fail(r.source, tree.Join(link.Key, "tokenFile"), "is also the token file of clients: a client could pass for a host")
		}
	}
}

// Proves reports whether clients on HTTP must authenticate.
func (f *Frontend) Proves() bool {
	return f.TokenFile != "" || len(f.Auth.Tokens)+len(f.Auth.JWT) > 0 || f.TLS.ClientCA != ""
}

// Open returns the listen addresses that other machines can reach without authentication.
func (f *Frontend) Open() (addresses []string) {
	for _, a := range f.Listen {
		if !f.Proves() && !isLocal(a) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// cleartext reports whether clients send tokens unencrypted to an address. If a proxy in front
// terminates TLS, the public URL is https. tokenFile alone causes no warning: without it,
// insecure would be needed, which is worse.
func (f *Frontend) cleartext(address string) bool {
	return len(f.Auth.Tokens)+len(f.Auth.JWT) > 0 && !isLocal(address) && f.TLS.Cert == "" && !strings.HasPrefix(f.PublicURL, "https:")
}

// listening checks which addresses other machines can reach.
func (r *reader) listening(c *Config) {
	source, key := r.source, "listen"
	ways := map[string]string{
		source:               "tokenFile, auth or tls.clientCA), or set insecure: true",
		"--listen":           "--token-file, --tls-client-ca, or auth in a configuration), or give --insecure",
		envPrefix + "LISTEN": "MCP_PROXY_TOKEN_FILE, or auth or tls.clientCA in a configuration), or set MCP_PROXY_INSECURE=true",
	}
	if from := c.Given[key]; from != "" {
		source, key = from, ""
	}
	if len(c.Listen) == 0 {
		r.fail(source, key, "needs an address")
	}
	r.sockets(source, key, c.Listen)
	for _, a := range c.Listen {
		switch {
		case !isLocal(a) && !c.Proves() && !c.Insecure:
			r.fail(source, key, "%s is reachable from other machines: require authentication (%s", tree.Quote(a), ways[source])
		case c.cleartext(a):
			r.warn(source, key, "tokens to %s are sent unencrypted: set tls, or an https publicURL if a proxy in front terminates TLS", tree.Quote(a))
		}
	}
}

// sockets refuses an address that is given twice, because the second time it is in use, and a path that is too long
// for a socket.
func (r *reader) sockets(source, key string, addresses []string) {
	for i, a := range addresses {
		if path, ok := strings.CutPrefix(a, "unix://"); ok && len(path) > maxSocketPath {
			r.fail(source, key, longSocket, maxSocketPath)
		}
		if takesOne(a) && slices.Contains(addresses[:i], a) {
			r.fail(source, key, "has %s twice", tree.Quote(a))
		}
	}
}

// takesOne reports whether only one listener can be at an address. At port 0 the system chooses ports.
func takesOne(address string) bool {
	return strings.HasPrefix(address, "unix:") || !strings.HasSuffix(address, ":0")
}

// operators checks the addresses for operators.
func (r *reader) operators(c *Config) {
	r.sockets(r.source, "admin.listen", c.Admin.Listen)
	onTCP := false
	for _, a := range c.Admin.Listen {
		unix := strings.HasPrefix(a, "unix:")
		onTCP = onTCP || !unix
		if !unix && !isLocal(a) && c.Admin.TokenFile != "" {
			r.warn(r.source, "admin.listen", "the token is sent unencrypted to %s: with it anybody sees clients, servers and their last errors", tree.Quote(a))
		}
	}
	if c.Admin.TokenFile != "" && !onTCP {
		r.fail(r.source, "admin.tokenFile", "is only valid with a HOST:PORT in admin.listen: operators on a Unix socket need no token")
	}
}

// check refuses settings of replicas without the key that they share.
func (c *Cluster) check(v value) {
	if c.KeyFile != "" {
		return
	}
	for _, key := range []string{"join", "listen", "advertise", "required"} {
		if v.node.Has(key) {
			v.wrong("needs keyFile, a file that all replicas share")
			return
		}
	}
}

func (t *Traces) check(v value) {
	if t.Endpoint == "" {
		return
	}
	switch secure := strings.HasPrefix(t.Endpoint, "https:"); {
	case !secure && t.TLS != (TLS{}):
		v.get("tls").wrong("is only valid with an https endpoint")
	case !secure && len(t.HeadersFrom) > 0 && !isSecureURL(t.Endpoint):
		v.get("headersFrom").caution("are sent unencrypted: the endpoint is http, on another machine")
	}
}
