package config

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// check refuses two tokens with one name, and an issuer that is there twice.
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

// sameURL tells whether at most a slash at the end is different: two issuers that differ in
// nothing else are one that was written twice.
func sameURL(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// clients checks what says who clients are, of all layers together.
func (l *loader) clients(c *Config, o Options) {
	source, key := l.source, "tls"
	if o.TLS != (ListenTLS{}) {
		source, key = "--tls-cert", ""
	}
	switch t := c.TLS; {
	case (t.Cert == "") != (t.Key == ""):
		l.fail(source, key, "needs both a certificate and a key")
	case t.ClientCA != "" && t.Cert == "":
		l.fail(source, key, "client certificates need a certificate and a key of the server")
	}
	for _, t := range c.Auth.Tokens {
		if t.Name == defaultToken && c.TokenFile != "" {
			l.fail(l.source, tree.Join(t.Key, "name"), "is the name of the token in tokenFile")
		}
	}
	l.ownFiles(c)
}

// defaultToken is the name of the token in tokenFile. Another may have it where there is
// none.
const defaultToken = "default"

// ownFiles checks that no two names share a token, and that no client can pass for a host.
func (l *loader) ownFiles(c *Config) {
	owner := make(map[string]string)
	if c.TokenFile != "" {
		owner[filepath.Clean(c.TokenFile)] = "tokenFile"
	}
	for _, t := range c.Auth.Tokens {
		file := filepath.Clean(t.TokenFile)
		if first, ok := owner[file]; ok {
			l.fail(l.source, tree.Join(t.Key, "tokenFile"), "is also used by %s: a client is identified by its token, so each name needs its own", first)
			continue
		}
		owner[file] = t.Key
	}
	for _, link := range c.Links {
		if _, ok := owner[filepath.Clean(link.TokenFile)]; ok && link.Accept {
			l.fail(l.source, tree.Join(link.Key, "tokenFile"), "is also the token file of clients: a client could pass for a host")
		}
	}
}

// Proves tells whether clients on HTTP have to prove who they are.
func (f *Frontend) Proves() bool {
	return f.TokenFile != "" || len(f.Auth.Tokens)+len(f.Auth.JWT) > 0 || f.TLS.ClientCA != ""
}

// Open returns the addresses to listen at where others can come who prove nothing.
func (f *Frontend) Open() (addresses []string) {
	for _, a := range f.Listen {
		if !f.Proves() && !isLocal(a) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// overheard tells whether tokens can be read on their way to an address. Something that
// ends TLS may be there; then we are known by an https URL. Of tokenFile nothing is said:
// there is no other word for it than insecure.
func (f *Frontend) overheard(address string) bool {
	return len(f.Auth.Tokens)+len(f.Auth.JWT) > 0 && !isLocal(address) && f.TLS.Cert == "" && !strings.HasPrefix(f.PublicURL, "https:")
}

// listening checks who can reach us.
func (l *loader) listening(c *Config, o Options) {
	source, key := l.source, "listen"
	ways := map[string]string{
		source:               "tokenFile, auth or tls.clientCA), or set insecure: true",
		"--listen":           "--token-file, --tls-client-ca, or auth in a configuration), or give --insecure",
		envPrefix + "LISTEN": "MCP_PROXY_TOKEN_FILE, or auth or tls.clientCA in a configuration), or set MCP_PROXY_INSECURE=true",
	}
	switch {
	case len(o.Listen) > 0:
		source, key = "--listen", ""
	case os.Getenv(envPrefix+"LISTEN") != "":
		source, key = envPrefix+"LISTEN", ""
	}
	if len(c.Listen) == 0 {
		l.fail(source, key, "needs an address")
	}
	for _, a := range c.Listen {
		switch {
		case !isLocal(a) && !c.Proves() && !c.Insecure:
			l.fail(source, key, "%s is reachable from other machines: require authentication (%s", tree.Quote(a), ways[source])
		case c.overheard(a):
			l.warn(source, key, "tokens to %s are sent unencrypted: set tls, or an https publicURL if a proxy in front terminates TLS", tree.Quote(a))
		}
	}
}
