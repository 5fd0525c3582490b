package config

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/subosito/gotenv"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// transports are the keys of which an upstream has exactly one, each with the keys that are only valid
// beside it.
var transports = []struct {
	key    string
	beside []string
}{
	{"command", []string{"args", "env", "inheritEnv", "cwd", "spare"}},
	{"url", []string{"headers", "headersFrom", "forwardHeaders", "tls", "auth", "maxConcurrent"}},
}

// check refuses an upstream without a transport or with several, and keys of another transport.
func (u *Upstream) check(v value) {
	if isPath(u.Command) {
		u.Command = v.resolve(u.Command)
	}
	if u.Name == ReservedName {
		v.wrong(reserved)
	}
	u.checkTransport(v)
	if !u.Shared {
		v.misplaced("roots", "is only valid with session: shared")
	}
	if scheme := parseEndpoint(u.URL).scheme; u.MaxConcurrent > 0 && (scheme == "ws" || scheme == "wss") {
		v.misplaced("maxConcurrent", "is only valid with an http or https url")
	}
	if u.Shared && u.Spare > 0 {
		v.misplaced("spare", "is only valid with session: isolated")
		u.Spare = 0
	}
	u.checkCredentials(v)
	u.checkForwarded(v)
	u.checkType(v)
	if v.node.Foreign { // misplaced keys are only warnings there: drop their values
		if u.URL == "" {
			u.Remote = Remote{}
		}
		if u.Command == "" {
			u.Process = Process{}
		}
	}
	u.readEnvFile(v)
}

func (u *Upstream) checkTransport(v value) {
	var is []string
	for _, t := range transports {
		if v.node.Has(t.key) {
			is = append(is, t.key)
		}
	}
	switch {
	case len(is) > 1:
		v.wrong("has both %s", strings.Join(is, " and "))
	case len(is) == 1:
		for _, m := range v.node.Members {
			for _, t := range transports {
				if t.key != is[0] && slices.Contains(t.beside, m.Key) {
					v.misplaced(m.Key, "is only valid with %s", t.key)
				}
			}
		}
	case !v.node.Has("replay") && !v.slips():
		v.wrong("needs command or url")
	}
}

// slips reports whether an upstream has a slip in the place of command or url, which structure has reported.
func (v value) slips() bool {
	known := keysOf(reflect.TypeFor[Upstream]())
	return slices.ContainsFunc(v.node.Members, func(m tree.Member) bool { return isSlip(v.node, m.Key, known) })
}

// isSlip reports whether a key of an object looks like a misspelt command or url, and the object has neither.
func isSlip(of *tree.Node, key string, known []string) bool {
	near := Nearest(key, known)
	return (near == "command" || near == "url") && !of.Has("command") && !of.Has("url")
}

// checkCredentials refuses auth beside the header Authorization, which auth sets.
func (u *Upstream) checkCredentials(v value) {
	if !v.node.Has("auth") {
		return
	}
	for _, key := range []string{"headers", "headersFrom"} {
		for _, m := range v.node.Get(key).Each() {
			if strings.EqualFold(m.Key, "Authorization") {
				value{v.reader, m.Value}.wrong("excludes auth, which sets that header")
			}
		}
	}
}

// checkType checks that type agrees with command or url, and with the scheme of the URL.
func (u *Upstream) checkType(v value) {
	if u.Type == "" {
		return
	}
	needs, other := "url", "command"
	if u.Type == "stdio" {
		needs, other = other, needs
	}
	at := v.get("type")
	scheme := parseEndpoint(u.URL).scheme
	switch {
	case v.node.Has(other) && !v.node.Has(needs):
		at.wrong("%s needs %s, not %s", at.node.Describe(), needs, other)
	case u.URL != "" && (u.Type == "ws") != strings.HasPrefix(scheme, "ws") && u.Type != "stdio": // stdio with both keys is reported as such
		at.wrong("%s is not valid with a URL of %s", at.node.Describe(), scheme)
	case u.Type == "sse" && u.Era == "modern":
		at.wrong("%s is only valid in the legacy era", at.node.Describe())
	}
}

// readEnvFile reads variables for the server from a file of lines NAME=value. Those in env
// take precedence.
func (u *Upstream) readEnvFile(v value) {
	if u.EnvFile == "" {
		return
	}
	at := v.get("envFile")
	data, err := v.readFile(u.EnvFile)
	if err != nil {
		at.wrong("%v", err)
		return
	}
	const dollar = "\uE000" // replaces $ while gotenv parses the file, which would expand variables
	all, err := gotenv.StrictParse(bytes.NewReader(bytes.ReplaceAll(data, []byte("$"), []byte(dollar))))
	if err != nil {
		at.wrong("is not a file of lines NAME=value")
		return
	}
	env := make(map[string]string)
	for name, text := range all {
		env[name] = strings.ReplaceAll(text, dollar, "$")
	}
	maps.Copy(env, u.Env)
	u.Env = env
}

func (t *TLS) check(v value) {
	if (t.Cert == "") != (t.Key == "") {
		v.wrong("needs both cert and key")
	}
}

func (a *UpstreamAuth) check(v value) {
	if v.node.Has("oauth") == v.node.Has("clientCredentials") {
		v.wrong("needs either oauth or clientCredentials")
	}
}

func (o *OAuth) check(v value) {
	o.Scopes = nilIfEmpty(o.Scopes)
	switch {
	case o.ClientSecretFile == "":
	case o.ClientID == "":
		v.wrong("clientSecretFile needs clientId")
	case strings.HasPrefix(o.ClientID, "https://"): // a client with a metadata document is public
		v.wrong("clientSecretFile is not valid with a clientId that is a URL")
	}
}

func (c *ClientCredentials) check(v value) {
	c.Scopes = nilIfEmpty(c.Scopes)
	files := slices.DeleteFunc([]string{c.ClientSecretFile, c.PrivateKeyFile, c.AssertionFile}, func(s string) bool { return s == "" })
	if len(files) != 1 {
		v.wrong("needs one of clientSecretFile, privateKeyFile and assertionFile")
	}
	if c.ClientID == "" && c.AssertionFile == "" { // an assertion names the client
		v.wrong("needs clientId")
	}
}

// nilIfEmpty returns nil for an empty list: then we request the scopes that the server names.
func nilIfEmpty(scopes []string) []string {
	if len(scopes) == 0 {
		return nil
	}
	return scopes
}

// distinctNames refuses two upstreams with the same name or prefix: a tool or a policy could be meant for either. Where
// one begins with the other, rules refuses it if there are policies.
func (r *reader) distinctNames(all []Upstream) {
	owner := make(map[string]string)
	for _, u := range all {
		for i, name := range u.names() {
			key := [...]string{u.Key, tree.Join(u.Key, "prefix")}[i]
			if first, ok := owner[name]; ok {
				r.fail(r.source, key, "is also the name or the prefix of %s", first)
				continue
			}
			owner[name] = u.Key
		}
	}
}

// names returns the name of an upstream, which policies use, and its prefix if that differs.
func (u *Upstream) names() []string {
	if u.Prefix == nil || *u.Prefix == "" || *u.Prefix == u.Name {
		return []string{u.Name}
	}
	return []string{u.Name, *u.Prefix}
}
