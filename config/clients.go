package config

import (
	"path/filepath"
	"strings"
	"time"
)

// readAuth reads who clients are, besides the one token of tokenFile.
func (l *loader) readAuth(v value) {
	v.strict(fields{
		"tokens": func(v value) { v.every(l.readToken) },
		"jwt":    func(v value) { v.every(l.readIssuer) },
	})
}

func (l *loader) readToken(v value) {
	t := NamedToken{Key: v.key}
	v.strict(fields{
		"name":      into(&t.Name, tokenName.read),
		"tokenFile": into(&t.TokenFile, value.filePath),
	})
	v.needs("name", "tokenFile")
	for _, other := range l.cfg.Auth.Tokens {
		if t.Name != "" && other.Name == t.Name {
			v.wrong("has the same name as %s: a client is known by its name", other.Key)
		}
	}
	l.cfg.Auth.Tokens = append(l.cfg.Auth.Tokens, t)
}

func (l *loader) readIssuer(v value) {
	i := Issuer{Key: v.key, Algorithms: []string{"RS256", "ES256", "EdDSA"}, Principal: "sub", Skew: 30 * time.Second}
	v.strict(fields{
		"issuer":     into(&i.Issuer, issuerURL.read),
		"audience":   into(&i.Audience, value.audience),
		"jwksURL":    into(&i.JWKSURL, value.otherURL),
		"jwksFile":   into(&i.JWKSFile, value.path),
		"algorithms": into(&i.Algorithms, algorithm.some),
		"principal":  into(&i.Principal, nonEmpty.read),
		"scopes":     into(&i.Scopes, scope.list),
		"skew":       into(&i.Skew, skew.read),
	})
	v.needs("issuer", "audience")
	if i.JWKSURL != "" && i.JWKSFile != "" {
		v.wrong("has both jwksURL and jwksFile")
	}
	for _, other := range l.cfg.Auth.JWT {
		if i.Issuer != "" && sameURL(other.Issuer, i.Issuer) {
			v.wrong("has the same issuer as %s", other.Key)
		}
	}
	l.cfg.Auth.JWT = append(l.cfg.Auth.JWT, i)
}

// audience takes one text too, as tokens themselves may.
func (v value) audience() ([]string, bool) {
	if v.keys != nil {
		nonEmpty.read(v)
	}
	if v.node.kind == text {
		s, ok := nonEmpty.read(v)
		return []string{s}, ok
	}
	return nonEmpty.some(v)
}

// sameURL tells whether at most a slash at the end is different: two issuers that differ in
// nothing else are one that was written twice.
func sameURL(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

func (v value) listenTLS() (t ListenTLS, ok bool) {
	v.strict(fields{
		"cert":     into(&t.Cert, value.path),
		"key":      into(&t.Key, value.path),
		"clientCA": into(&t.ClientCA, value.path),
	})
	return t, true
}

// flags sets what flags of serve say above all other layers. Files of TLS count one by one.
func (t *ListenTLS) flags(o ListenTLS) {
	for _, f := range []struct{ to, from *string }{{&t.Cert, &o.Cert}, {&t.Key, &o.Key}, {&t.ClientCA, &o.ClientCA}} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
}

// clients checks what says who clients are, of all layers together.
func (l *loader) clients(c *Config, o Options) {
	source, key := l.source, "tls"
	if o.TLS != (ListenTLS{}) {
		source, key = "--tls-cert", ""
	}
	switch t := c.TLS; {
	case (t.Cert == "") != (t.Key == ""):
		l.fail(source, key, "certificate and key come together")
	case t.ClientCA != "" && t.Cert == "":
		l.fail(source, key, "clients can have certificates only if we have one: a certificate and its key are needed")
	}
	for _, t := range c.Auth.Tokens {
		if t.Name == defaultToken && c.TokenFile != "" {
			l.fail(l.source, join(t.Key, "name"), "is that of the token in tokenFile")
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
			l.fail(l.source, join(t.Key, "tokenFile"), "is also that of %s: a client is known by its token, so each name needs its own", first)
			continue
		}
		owner[file] = t.Key
	}
	for _, link := range c.Links {
		if _, ok := owner[filepath.Clean(link.TokenFile)]; ok && link.Accept {
			l.fail(l.source, join(link.Key, "tokenFile"), "is also that of the clients, who must not pass for a host")
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
