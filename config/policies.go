package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// check refuses an empty allow, which would mean "all" although its author may expect "none",
// and scopes for clients that cannot have any.
func (p *Policy) check(v value) {
	for _, key := range []string{"tools", "prompts", "resources"} {
		if allow := v.node.Get(key).Get("allow"); allow.Empty() {
			value{v.reader, allow}.wrong(`is empty: leave it out to allow all, or write deny: ["*"]`)
		}
	}
	if by := p.Who.proofs(); len(by) == 1 && by[0] != "any" && by[0] != "issuer" && v.node.Has("scopes") {
		v.get("scopes").wrong("is only valid with who: any, or an issuer of JWT: no other client has scopes")
	}
}

// set reads one of the three words that may replace the map.
func (w *Who) set(word string) {
	*w = Who{Any: word == "any", Anonymous: word == "anonymous", Operator: word == "operator"}
}

// check refuses a rule that no client can match: a client is identified in one way only.
func (w *Who) check(v value) {
	if slices.ContainsFunc(v.problems, func(p Problem) bool { return strings.HasPrefix(p.Key, v.node.At) }) {
		return
	}
	if claims := v.node.Get("claims"); claims.Empty() {
		value{v.reader, claims}.wrong("needs a claim and its value, or it would match all clients of the issuer")
		return
	}
	jwt := w.Principal != "" || w.Claims != nil
	switch proofs := w.proofs(); {
	case len(proofs) > 1:
		v.wrong("no client is identified by %s at once", strings.Join(proofs, " and "))
	case len(proofs) == 0 && jwt:
		v.wrong("principal and claims are only valid with issuer")
	case len(proofs) == 0:
		v.wrong("must be any, or have one of anonymous, operator, token, user, certificate and issuer")
	case jwt && proofs[0] != "issuer":
		v.wrong("principal and claims belong to a JWT: they are not valid with %s", proofs[0])
	}
}

// proofs returns the ways of authentication that a rule names. The issuer beside a certificate is
// part of that.
func (w Who) proofs() (names []string) {
	for _, p := range []struct {
		name string
		set  bool
	}{
		{"any", w.Any}, {"anonymous", w.Anonymous}, {"operator", w.Operator}, {"token", w.Token != ""},
		{"user", w.User != ""}, {"certificate", w.Certificate != ""},
	} {
		if p.set {
			names = append(names, p.name)
		}
	}
	if w.Issuer != "" && !slices.Equal(names, []string{"certificate"}) {
		names = append(names, "issuer")
	}
	return names
}

// OperatorMay reports whether the client on stdio may do anything: a policy matches it, or
// there are no policies.
func (c *Config) OperatorMay() bool {
	return len(c.Policies) == 0 || slices.ContainsFunc(c.Policies, func(p Policy) bool { return p.Who.Any || p.Who.Operator })
}

// covers reports whether w matches all clients that other matches.
func (w Who) covers(other Who) bool {
	for name, value := range w.Claims {
		if other.Claims[name] != value {
			return false
		}
	}
	same := func(mine, others string) bool { return mine == "" || mine == others }
	return w.Any || !other.Any &&
		(!w.Anonymous || other.Anonymous) && (!w.Operator || other.Operator) &&
		same(w.Token, other.Token) && same(w.User, other.User) && same(w.Certificate, other.Certificate) &&
		same(w.Issuer, other.Issuer) && same(w.Principal, other.Principal)
}

// rules checks each policy against the others, and against the clients in the configuration.
func (r *reader) rules(c *Config) {
	for i, p := range c.Policies {
		r.knownClients(c, p)
		for _, first := range c.Policies[:i] {
			if first.Who.covers(p.Who) {
				r.fail(r.source, p.Key, "never applies: %s comes first and matches the same clients", first.Key)
				break
			}
		}
		r.idleGlobs(c, p)
	}
	if len(c.Policies) > 0 {
		r.ambiguousNames(c)
	}
}

// ambiguousNames refuses upstreams that globs cannot tell apart: tools of a_ match a__*, too.
func (r *reader) ambiguousNames(c *Config) {
	for _, u := range c.Upstreams {
		if i := slices.IndexFunc(c.Upstreams, func(other Upstream) bool { return u.Name == other.Name+"_" }); i >= 0 {
			r.fail(r.source, u.Key, "needs another name: policies for %s__* would match it, too", c.Upstreams[i].Name)
		}
	}
}

// knownClients checks that a policy names configured tokens and issuers. The token "default"
// may come from the environment or a flag.
func (r *reader) knownClients(c *Config, p Policy) {
	at := tree.Join(p.Key, "who")
	if name := p.Who.Token; name != "" && name != defaultToken {
		if !slices.ContainsFunc(c.Auth.Tokens, func(t NamedToken) bool { return t.Name == name }) {
			r.fail(r.source, tree.Join(at, "token"), "names no token in auth.tokens")
		}
	}
	if issuer := p.Who.Issuer; issuer != "" && p.Who.Certificate == "" {
		r.knownIssuer(c, p.Who, tree.Join(at, "issuer"))
	}
	r.noClient(c, p.Who, at)
}

// noClient warns about a rule that no client matches. It is no mistake, since the environment or flags
// may change that.
func (r *reader) noClient(c *Config, w Who, at string) {
	tokens := c.TokenFile != "" || len(c.Auth.Tokens)+len(c.Auth.JWT) > 0
	onSocket := func(address string) bool { return strings.HasPrefix(address, "unix:") }
	switch {
	case w.Certificate != "" && c.TLS.ClientCA == "":
		r.warn(r.source, tree.Join(at, "certificate"), "matches no client: tls.clientCA is not set")
	case w.Anonymous && c.Proves():
		r.warn(r.source, at, "matches no client: all clients must authenticate")
	case w.User != "" && tokens:
		r.warn(r.source, tree.Join(at, "user"), "matches no client: clients on Unix sockets need a token, too")
	case w.User != "" && !slices.ContainsFunc(c.Listen, onSocket):
		r.warn(r.source, tree.Join(at, "user"), "matches no client: listen has no Unix socket")
	}
}

// knownIssuer checks the issuer of a rule: it is one of auth.jwt, or the name of a certificate
// authority, which is no URL.
func (r *reader) knownIssuer(c *Config, w Who, at string) {
	for _, i := range c.Auth.JWT {
		if i.Issuer == w.Issuer {
			return
		}
		if sameURL(i.Issuer, w.Issuer) {
			r.fail(r.source, at, "differs from the issuer of %s by a slash at the end", i.Key)
			return
		}
	}
	jwt := w.Principal != "" || w.Claims != nil || strings.Contains(w.Issuer, "://")
	if jwt || c.TLS.ClientCA == "" {
		r.fail(r.source, at, "is not an issuer in auth.jwt")
	}
}

// idleGlobs warns about globs that match nothing, which matters most in deny: names begin with
// the name of the upstream. With links it cannot know all upstreams, and does nothing.
func (r *reader) idleGlobs(c *Config, p Policy) {
	if len(c.Links) > 0 || len(c.Upstreams) == 0 {
		return
	}
	check := func(key, glob string) { // does not show the glob, which may contain the value of a variable
		if !slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return reaches(glob, u.Name+"__") }) {
			r.warn(r.source, key, "matches nothing: names begin with the name of the upstream, as in %s__*", c.Upstreams[0].Name)
		}
	}
	for _, of := range []struct {
		key   string
		globs []string
	}{
		{"tools.allow", p.Tools.Allow}, {"tools.deny", p.Tools.Deny},
		{"prompts.allow", p.Prompts.Allow}, {"prompts.deny", p.Prompts.Deny},
	} {
		for i, glob := range of.globs {
			check(tree.Index(p.Key+"."+of.key, i), glob)
		}
	}
	for _, glob := range slices.Sorted(maps.Keys(p.Scopes)) {
		if !strings.Contains(glob, ":") { // else it is for URIs
			check(tree.Join(p.Key+".scopes", glob), glob)
		}
	}
}

// reaches reports whether a glob may match a name with a prefix, judged by its text before the
// first special character.
func reaches(glob, prefix string) bool {
	head := glob
	if i := strings.IndexAny(glob, `*?[\`); i >= 0 {
		head = glob[:i]
	}
	return strings.HasPrefix(head, prefix) || head != glob && strings.HasPrefix(prefix, head)
}
