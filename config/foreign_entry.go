package config

import (
	"bytes"
	"maps"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/subosito/gotenv"
)

// writtenAs are keys of entries that mean one of ours.
var writtenAs = map[string]string{
	"serverUrl": "url", "httpUrl": "url", // Windsurf, Gemini CLI
	"environment":   "env",     // opencode
	"http_headers":  "headers", // Codex
	"transportType": "type", "transport": "type", "transport_type": "type",
}

// readServers reads the servers of another program: entries may have keys that mean
// nothing here, and any name.
func (f *foreign) readServers(v value) {
	v.each(func(name string, v value) {
		if f.unused(name, v) {
			return
		}
		if f.extension(v.node) {
			v.warn(v.source, v.key, "left out: the command is in an extension of Zed")
			return
		}
		if f.section.adapt != nil {
			f.section.adapt(f, name, v.node)
		}
		f.rewrite(v.node)
		f.entry(name, v)
	})
}

// extension reports whether an entry is for what an extension of Zed runs.
func (f *foreign) extension(n *node) bool {
	return f.section.key == "context_servers" && !n.has("command") && !n.has("url") && (n.has("settings") || n.get("source").is("extension"))
}

// rewrite brings an entry into the form of mcpServers.
func (f *foreign) rewrite(n *node) {
	if u := n.get("httpUrl"); u != nil && !n.has("type") {
		n.set("type", &node{kind: text, text: "http"})
	}
	if t := n.get("transport"); t.isA(object) { // as Cline has it
		n.drop("transport")
		n.members = append(n.members, t.members...)
	}
	if client := n.get("oauthClient"); client != nil { // Cline keeps its tokens in oauth
		n.set("oauth", client)
		n.drop("oauthClient")
	}
	for i, m := range n.members {
		if key, ok := writtenAs[m.key]; ok && !n.has(key) {
			n.members[i].key, n.members[i].written = key, m.key
		}
	}
	switch c := n.get("command"); {
	case c.isA(list) && len(c.items) > 0: // the whole command line
		n.set("args", &node{kind: list, items: append(c.items[1:len(c.items):len(c.items)], n.get("args").all()...)})
		n.set("command", c.items[0])
	case c.isA(object): // as Zed had it
		for _, m := range c.members {
			if m.key == "path" {
				m.key = "command"
			}
			n.set(m.key, m.value)
		}
	}
	if f.gemini {
		n.texts(func(s string) string { return geminiVariable.ReplaceAllString(s, "$${$1}") })
	}
}

// entry reads one server.
func (f *foreign) entry(name string, v value) {
	u := newUpstream(name, v)
	ours := u.fields()
	known := maps.Clone(ours)
	f.known(known, u)
	v.object(known, func(key string, v value) {
		if near := Nearest(key, restricting); near != "" {
			v.wrong("unknown key; did you mean %s?", near)
			return
		}
		v.ignore(key, ours)
	})
	misplaced := func(v value, format string, args ...any) {
		v.warn(v.source, v.key, format, args...)
	}
	if slip := v.slip(known); slip != "" {
		v.pick(slip, func(v value) { v.wrong("unknown key%s", DidYouMean(slip, known.keys())) })
	} else {
		v.transport(misplaced)
	}
	for _, a := range u.afterwards() {
		v.pick(a.key, a.read)
	}
	v.sharedOnly(u.Shared, misplaced)
	v.oneCredential()
	if u.Auth != (UpstreamAuth{}) && u.sends("Authorization") && !v.node.has("auth") && !v.node.has("oauth") {
		v.wrong("has a login of a person and a header Authorization: remove one of them")
	}
	if u.URL == "" {
		u.Auth = UpstreamAuth{} // it was misplaced
	}
	if u.Command != "" && u.Cwd == "" {
		u.Cwd = f.cwd
	}
	v.typeFits(u)
	v.placeholders(f.placeholder(v.node))
	f.checkDomain(v, u)
	f.outside(u)
	f.deny(name, u)
	f.entries = append(f.entries, entry{Upstream: *u, foreign: true})
}

// restricting are keys of which a slip must not go unnoticed.
var restricting = []string{
	"disabled", "enabled", "disabledTools", "disabled_tools", "enabledTools", "enabled_tools", "includeTools", "excludeTools",
	"sandbox", "sandboxEnabled", "allowHosts",
}

// known adds the keys of other programs to ours.
func (f *foreign) known(known fields, u *Upstream) {
	nothing := func(value) {}
	maps.Copy(known, fields{
		"type":     into(&u.Type, serverType.read),
		"disabled": nothing, "enabled": nothing, "isActive": nothing, "source": nothing, // before
		"auth":  u.foreignAuth,
		"oauth": u.foreignOAuth,
		"tools": u.foreignTools,

		"disabledTools": u.denyNames, "disabled_tools": u.denyNames, "excludeTools": u.denyNames,
		"enabledTools": u.allowNames, "enabled_tools": u.allowNames, "includeTools": u.allowNames,
		"options":        u.options,
		"sandbox":        refuseSandbox,
		"sandboxEnabled": refuseSandbox,
		"allowHosts":     refuseSandbox,
		"apiKey":         refuseAuth, "obo": refuseAuth, "authProviderType": refuseAuth,
		"proxy": func(v value) {
			v.wrong("is not read here: HTTPS_PROXY and HTTP_PROXY are, for all servers")
		},
		"headersHelper": func(v value) {
			v.wrong("is not run here: write the headers to files, and name those with headersFrom")
		},

		"env_vars":            u.envVars,
		"startup_timeout_sec": timeOf(&u.StartTimeout, time.Second),
		"startup_timeout_ms":  timeOf(&u.StartTimeout, time.Millisecond),
		"initTimeout":         timeOf(&u.StartTimeout, time.Millisecond),
		"tool_timeout_sec":    timeOf(&u.RequestTimeout, time.Second),
	})
	for _, a := range u.afterwards() {
		known[a.key] = nothing
	}
	for alias, key := range writtenAs { // of which there is one already
		known[alias] = func(v value) { v.wrong("means the same as %s, which is there, too", key) }
	}
}

// A keyed reader reads the value of one key.
type keyed struct {
	key  string
	read func(value)
}

// afterwards are keys that add to what others say, wherever those stand in the file.
func (u *Upstream) afterwards() []keyed {
	return []keyed{
		{"envFile", u.envFile}, {"env_file", u.envFile},
		{"env_http_headers", u.headersFromEnv}, {"bearer_token_env_var", u.bearerFrom},
		{"requiresOAuth", u.requiresOAuth}, {"scopes", u.scopes},
	}
}

// timeOf reads a number of units.
func timeOf(to *time.Duration, unit time.Duration) func(value) {
	return func(v value) {
		if n, ok := amount.read(v); ok {
			*to = max(1, time.Duration(n*float64(unit)))
		}
	}
}

const noSandbox = "cannot be done here, and the server would reach more than it should: remove the key if that is intended"

// refuseSandbox refuses what would keep a server from files and networks, and does not
// here.
func refuseSandbox(v value) {
	if v.node.isA(object|list) || v.node.is("true") {
		v.wrong(noSandbox)
	}
}

// refuseAuth refuses ways to prove who we are that only the other program has.
func refuseAuth(v value) {
	if !v.node.is("dynamic_discovery") { // as everywhere
		v.wrong("is not read here: name a header in headers or headersFrom, or use auth")
	}
}

// options reads what TBXark/mcp-proxy calls so.
func (u *Upstream) options(v value) {
	v.pick("authTokens", refuseTokens)
	v.pick("toolFilter", u.toolFilter)
}

// envFile reads variables of the server from a file of lines NAME=value. Those in env
// itself count more.
func (u *Upstream) envFile(v value) {
	name, ok := v.filePath()
	if !ok {
		return
	}
	data, err := v.readFile(name)
	if err != nil {
		v.wrong("%v", err)
		return
	}
	all, err := gotenv.StrictParse(bytes.NewReader(bytes.ReplaceAll(data, []byte("$"), []byte(dollar))))
	if err != nil {
		v.wrong("is not a file of lines NAME=value")
		return
	}
	if u.Env == nil {
		u.Env = make(map[string]string)
	}
	for name, text := range all {
		if _, ok := u.Env[name]; !ok {
			u.Env[name] = strings.ReplaceAll(text, dollar, "$")
		}
	}
}

// dollar stands for the sign while files of variables are parsed: it means nothing there.
const dollar = "\uE000"

// envVars reads the names of our variables that the server gets: texts, or maps with a
// name.
func (u *Upstream) envVars(v value) {
	add := func(v value) {
		if name, ok := envName.read(v); ok {
			u.InheritEnv = append(u.InheritEnv, name)
		}
	}
	v.every(func(v value) {
		if v.node.kind == object {
			v.needs("name")
			v.pick("name", add)
			return
		}
		add(v)
	})
}

// bearerFrom reads the name of the variable that has the token of the server.
func (u *Upstream) bearerFrom(v value) { u.headerFromEnv(v, "Authorization", "Bearer ") }

func (u *Upstream) headersFromEnv(v value) {
	v.each(func(header string, v value) { u.headerFromEnv(v, header, "") })
}

func (u *Upstream) headerFromEnv(v value, header, before string) {
	name, ok := envName.read(v)
	if !ok {
		return
	}
	text, set := os.LookupEnv(name)
	switch {
	case !set:
		v.wrong("the variable %s is not set", printable(name))
	case !isHeaderValue(text) || !headerToken.MatchString(header):
		v.wrong("does not fit into a header")
	case u.sends(header):
		v.wrong("sets the header %s, which is there, too", header)
	default:
		if u.Headers == nil {
			u.Headers = make(map[string]string)
		}
		u.Headers[header] = before + text
	}
}

// sends reports whether a header is configured, whatever the case of its letters.
func (u *Upstream) sends(header string) bool {
	for name := range u.Headers {
		if strings.EqualFold(name, header) {
			return true
		}
	}
	return false
}

// requiresOAuth and scopes are a login of a person, as Codex and LibreChat write it.
func (u *Upstream) requiresOAuth(v value) {
	if on, ok := truth.read(v); ok && on && u.Auth.OAuth == nil {
		u.Auth.OAuth = new(OAuth)
	}
}

func (u *Upstream) scopes(v value) {
	if all, ok := v.foreignScopes(); ok && len(all) > 0 {
		if u.Auth.OAuth == nil {
			u.Auth.OAuth = new(OAuth)
		}
		u.Auth.OAuth.Scopes = all
	}
}

var (
	geminiVariable = regexp.MustCompile(`\$([A-Za-z_][A-Za-z0-9_]*)`)
	placeholder    = regexp.MustCompile(`\{\{[A-Z][A-Z0-9_]*\}\}`)
	anyPlaceholder = regexp.MustCompile(`\{\{[^{}]*\}\}`)
)

// geminiEntries reports whether servers are written as Gemini CLI has them.
func geminiEntries(servers *node) bool {
	for _, m := range servers.members {
		for _, key := range []string{"httpUrl", "trust", "includeTools", "excludeTools"} {
			if m.value.has(key) {
				return true
			}
		}
	}
	return false
}

// placeholder matches what another program fills in: LibreChat for each of its users, and
// Docker from its own configuration.
func (f *foreign) placeholder(n *node) *regexp.Regexp {
	if f.section.key == "registry" || n.has("customUserVars") {
		return anyPlaceholder
	}
	return placeholder
}

// placeholders refuses values in which there is one.
func (v value) placeholders(any *regexp.Regexp) {
	switch v.node.kind {
	case text:
		if any.MatchString(v.node.text) {
			v.wrong("has a {{PLACEHOLDER}}, which nobody fills in here: write ${NAME} for a variable")
		}
	case list:
		v.every(func(v value) { v.placeholders(any) })
	case object:
		v.each(func(_ string, v value) { v.placeholders(any) })
	}
}

// opencode brings an entry of opencode into the form of mcpServers.
func (f *foreign) opencode(_ string, n *node) {
	n.texts(func(s string) string {
		s = strings.ReplaceAll(s, "${", "$${")
		return openVariable.ReplaceAllString(s, "$${$1}")
	})
	eras := map[string]string{"legacy": "legacy", "auto": "auto", "2026-07-28": "modern"}
	if p := n.get("protocol"); p.isA(text) && eras[p.text] != "" {
		n.set("era", oneText(eras[p.text]))
		n.drop("protocol")
	}
}

var openVariable = regexp.MustCompile(`\{((?:env|file):[^{}]+)\}`)
