package forms

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// Placeholders that other programs fill in for each of their users, or from their own
// configuration.
var (
	capitals       = lazyregexp.New(`\{\{[A-Z][A-Z0-9_]*\}\}`)
	anyPlaceholder = lazyregexp.New(`\{\{[^{}]*\}\}`)
)

// writtenAs maps keys of entries to our names for them.
var writtenAs = map[string]string{
	"serverUrl": "url", "httpUrl": "url", // Windsurf, Gemini CLI
	"environment":   "env",     // opencode
	"http_headers":  "headers", // Codex
	"transportType": "type", "transport": "type", "transport_type": "type",
	"env_file": "envFile",
}

// servers converts the entries of a section. They may have the keys of any program.
func (c *conversion) servers(section *tree.Node) (*tree.Node, tree.Problems) {
	section.Members = slices.DeleteFunc(section.Members, func(m tree.Member) bool { return c.unused(m.Key, m.Value) })
	for _, m := range section.Members {
		if m.Value.IsA(tree.Object | tree.Null) {
			if c.beforeServer != nil {
				c.beforeServer(m.Key, m.Value)
			}
			c.entry(m.Key, m.Value)
		}
		m.Value.Foreign = true
	}
	return section, c.problems
}

// unused reports whether an entry is off, or a list of servers excludes it. Nothing else of
// such an entry is read, since its variables are often unset.
func (c *conversion) unused(name string, n *tree.Node) bool {
	off := c.off(n)
	off = c.off(n.Get("options")) || off // in files of TBXark/mcp-proxy
	for _, names := range c.only {
		off = off || !slices.Contains(names, name)
	}
	return off || slices.ContainsFunc(c.never, func(never string) bool { return strings.EqualFold(never, name) })
}

// off removes the switches from an entry, and reports whether one of them is off.
func (c *conversion) off(n *tree.Node) bool {
	if !n.IsA(tree.Object) {
		return false
	}
	off := c.truth(n.Take("disabled"), false)
	on := c.truth(n.Take("enabled"), true)
	active := c.truth(n.Take("isActive"), true)
	return off || !on || !active
}

func (c *conversion) truth(n *tree.Node, otherwise bool) bool {
	if n == nil {
		return otherwise
	}
	b, err := strconv.ParseBool(n.Text)
	if err != nil || !n.IsA(tree.Boolean) {
		c.wrong(n, "must be true or false, not %s", n.Describe())
		return otherwise
	}
	return b
}

// An entry is one server during its conversion.
type entry struct {
	*conversion
	*tree.Node
	allow, deny []*tree.Node // globs on its tools
}

func (c *conversion) entry(name string, n *tree.Node) {
	placeholder := c.placeholder
	if n.Has("customUserVars") { // of LibreChat
		placeholder = anyPlaceholder
	}
	n.Walk(func(n *tree.Node) {
		if n.Kind == tree.Text && placeholder.MatchString(n.Text) {
			c.wrong(n, "has a {{PLACEHOLDER}}, which is not filled in here: write ${NAME} for a variable")
		}
	})
	e := entry{conversion: c, Node: n}
	e.rename()
	e.commandLine()
	for _, key := range entryKeys {
		if at := n.Take(key.name); at != nil {
			key.read(&e, at)
		}
	}
	if c.cwd != nil && n.Has("command") && !n.Has("cwd") {
		n.Set("cwd", c.cwd)
	}
	e.denyOthers(name)
	e.setTools()
}

// rename replaces the names of keys by ours.
func (e *entry) rename() {
	if u := e.Get("httpUrl"); u != nil && !e.Has("type") {
		e.Set("type", text("http", u))
	}
	if t := e.Get("transport"); t.IsA(tree.Object) { // of Cline
		e.Take("transport")
		e.Members = append(e.Members, t.Members...)
	}
	if client := e.Take("oauthClient"); client != nil { // Cline keeps its tokens in oauth
		e.Set("oauth", client)
	}
	for i, m := range e.Members {
		key, ok := writtenAs[m.Key]
		switch {
		case ok && e.Has(key):
			e.wrong(m.Value, "has the same meaning as %s, which is also set", key)
			e.Members[i].Value.Kind = 0
		case ok:
			e.Members[i].Key = key
		}
	}
	e.Members = slices.DeleteFunc(e.Members, func(m tree.Member) bool { return m.Value.Kind == 0 })
}

// commandLine splits a command that includes its arguments.
func (e *entry) commandLine() {
	switch c := e.Get("command"); {
	case c.IsA(tree.List) && len(c.Items) > 0: // the whole command line
		args := append(slices.Clone(c.Items[1:]), e.Get("args").All()...)
		e.Set("args", &tree.Node{Kind: tree.List, Items: args, At: c.At})
		e.Set("command", c.Items[0])
	case c.IsA(tree.Object): // of older versions of Zed
		e.Take("command")
		for _, m := range c.Members {
			if m.Key == "path" {
				m.Key = "command"
			}
			e.Set(m.Key, m.Value)
		}
	}
}

// denyOthers adds the tools of a server that the rest of the file denies.
func (e *entry) denyOthers(server string) {
	for _, d := range e.denied {
		for _, prefix := range d.prefixes(server) {
			for _, rest := range restsOf(d.pattern, prefix) {
				if rest == "*" {
					e.warn(d.at, "denies all tools of %s", tree.Printable(server))
				}
				e.deny = append(e.deny, text(rest, d.at))
			}
		}
	}
}

// setTools sets our key tools to all restrictions of tools.
func (e *entry) setTools() {
	set := &tree.Node{Kind: tree.Object, At: e.At}
	for _, m := range []struct {
		key   string
		items []*tree.Node
	}{{"allow", e.allow}, {"deny", e.deny}} {
		if len(m.items) > 0 {
			set.Set(m.key, &tree.Node{Kind: tree.List, Items: m.items, At: e.At})
		}
	}
	if len(set.Members) > 0 {
		e.Set("tools", set)
	}
}

// entryKeys are the keys of other programs' entries, in the order in which they are read.
var entryKeys = []struct {
	name string
	read func(e *entry, at *tree.Node)
}{
	{"source", func(*entry, *tree.Node) {}},
	{"tools", (*entry).readTools},
	{"disabledTools", (*entry).denyNames}, {"disabled_tools", (*entry).denyNames}, {"excludeTools", (*entry).denyNames},
	{"enabledTools", (*entry).allowNames}, {"enabled_tools", (*entry).allowNames}, {"includeTools", (*entry).allowNames},
	{"options", (*entry).readOptions},

	{"sandbox", refuseSandbox}, {"sandboxEnabled", refuseSandbox}, {"allowHosts", refuseSandbox},
	{"apiKey", refuseAuth}, {"obo", refuseAuth}, {"authProviderType", refuseAuth},
	{"proxy", func(e *entry, at *tree.Node) {
		e.wrong(at, "is not read here: HTTPS_PROXY and HTTP_PROXY are, for all servers")
	}},
	{"headersHelper", func(e *entry, at *tree.Node) {
		e.wrong(at, "is not run here: write the headers to files, and name those with headersFrom")
	}},

	{"env_vars", (*entry).inherit},
	{"env_http_headers", func(e *entry, at *tree.Node) {
		for _, m := range e.members(at) {
			e.headerFromEnv(m.Key, "", m.Value)
		}
	}},
	{"bearer_token_env_var", func(e *entry, at *tree.Node) { e.headerFromEnv("Authorization", "Bearer ", at) }},
	{"startup_timeout_sec", timeout("startTimeout", time.Second)},
	{"startup_timeout_ms", timeout("startTimeout", time.Millisecond)},
	{"initTimeout", timeout("startTimeout", time.Millisecond)},
	{"tool_timeout_sec", timeout("requestTimeout", time.Second)},

	{"auth", (*entry).readAuth},
	{"oauth", (*entry).login},
	{"requiresOAuth", func(e *entry, at *tree.Node) {
		if e.truth(at, false) && !e.Has("auth") {
			e.setLogin(&tree.Node{Kind: tree.Object, At: at.At})
		}
	}},
	{"scopes", func(e *entry, at *tree.Node) {
		if at = e.scopes(at); at.Empty() {
			return
		}
		if !e.Get("auth").Has("oauth") {
			e.setLogin(&tree.Node{Kind: tree.Object, At: at.At})
		}
		e.Get("auth").Get("oauth").Set("scopes", at)
	}},
}

// refuseSandbox refuses a sandbox, which would keep a server from files and networks: there is none
// here.
func refuseSandbox(e *entry, at *tree.Node) {
	if at.IsA(tree.Object|tree.List) || at.Is("true") {
		e.wrong(at, noSandbox)
	}
}

// refuseAuth refuses ways to authenticate that do not exist here.
func refuseAuth(e *entry, at *tree.Node) {
	if !at.Is("dynamic_discovery") { // the default here, too
		e.wrong(at, "is not read here: name a header in headers or headersFrom, or use auth")
	}
}

// refuseTokens refuses tokens of clients in the file itself: without them, all clients could
// connect.
func (c *conversion) refuseTokens(at *tree.Node) {
	if len(c.items(at)) > 0 {
		c.wrong(at, "is not read here: write each token to a file of its own, and name that with tokenFile or auth.tokens")
	}
}

// timeout returns the reader of a number of units, which sets key.
func timeout(key string, unit time.Duration) func(*entry, *tree.Node) {
	return func(e *entry, at *tree.Node) {
		n, err := strconv.ParseFloat(at.Text, 64)
		if at.Kind != tree.Number || err != nil || !(n > 0 && n < 1e9) {
			e.wrong(at, "must be a number above zero, not %s", at.Describe())
			return
		}
		e.Set(key, text(max(1, time.Duration(n*float64(unit))).String(), at))
	}
}

// inherit reads which of our variables the server gets: a list of names, or of maps with a name.
func (e *entry) inherit(at *tree.Node) {
	for i, item := range at.Items {
		if item.Kind == tree.Object {
			at.Items[i] = item.Get("name")
			if at.Items[i] == nil {
				e.wrong(item, "needs name")
			}
		}
	}
	if own := e.Get("inheritEnv"); own.IsA(tree.List) {
		at.Items = append(own.Items, at.Items...)
	}
	at.Items = slices.DeleteFunc(at.Items, func(n *tree.Node) bool { return n == nil })
	e.Set("inheritEnv", at)
}

// headerFromEnv sets a header to the value of the variable that at names, after the text before.
func (e *entry) headerFromEnv(header, before string, at *tree.Node) {
	if at.Kind != tree.Text || strings.ContainsAny(at.Text, "${}") {
		e.wrong(at, "must be the name of a variable")
		return
	}
	headers := e.Get("headers")
	if !headers.IsA(tree.Object) {
		headers = &tree.Node{Kind: tree.Object, At: at.At}
		e.Set("headers", headers)
	}
	for _, m := range headers.Members {
		if strings.EqualFold(m.Key, header) {
			e.wrong(at, "sets the header %s, which is also in headers", header)
			return
		}
	}
	headers.Set(header, text(before+"${"+at.Text+"}", at))
}

// readAuth reads auth: ours, or a registered client, as other programs write it.
func (e *entry) readAuth(at *tree.Node) {
	if at.Has("oauth") || at.Has("clientCredentials") {
		e.Set("auth", at)
		return
	}
	e.login(at)
}

// login reads a client as other programs write it in oauth or auth. It keeps the scopes, since
// without them we would ask for more. A secret in the file itself is ignored with a
// warning.
func (e *entry) login(at *tree.Node) {
	switch {
	case e.Has("auth"):
		e.wrong(at, "is set twice, as auth and as oauth")
		return
	case at.Kind == tree.Boolean && !e.truth(at, false):
		return
	case at.Kind == tree.Boolean || at.Is("oauth"):
		at = &tree.Node{Kind: tree.Object, At: at.At}
	case at.Kind == tree.Text:
		e.wrong(at, `must be a map or "oauth": a token goes into headers, as Authorization: "Bearer …"`)
		return
	case at.Has("enabled") && !e.truth(at.Take("enabled"), true):
		return
	}
	for i, m := range at.Members {
		switch m.Key {
		case "CLIENT_ID", "client_id":
			at.Members[i].Key = "clientId"
		case "scope", "scopes":
			at.Members[i] = tree.Member{Key: "scopes", Value: e.scopes(m.Value)}
		}
	}
	e.setLogin(at)
}

func (e *entry) setLogin(client *tree.Node) {
	client.Foreign = true
	e.Set("auth", &tree.Node{Kind: tree.Object, At: client.At, Members: []tree.Member{{Key: "oauth", Value: client}}})
}

// scopes returns a list of scopes, which may be one text with spaces.
func (e *entry) scopes(at *tree.Node) *tree.Node {
	if at.Kind != tree.Text {
		return at
	}
	all := &tree.Node{Kind: tree.List, At: at.At}
	for scope := range strings.FieldsSeq(at.Text) {
		all.Items = append(all.Items, text(scope, at))
	}
	return all
}

var special = lazyregexp.New(`[*?\\[\]\\\\]`)

// literal returns the glob that matches only name.
func literal(name string) string { return special.ReplaceAllString(name, `\$0`) }

// denyNames reads the names of tools that must not be used.
func (e *entry) denyNames(at *tree.Node) {
	for _, n := range e.names(at) {
		e.deny = append(e.deny, text(literal(n), at))
	}
}

// allowNames reads the names of the only tools that may be used. It refuses an empty list, which
// would allow all tools here, but none in the other program.
func (e *entry) allowNames(at *tree.Node) {
	if at.Empty() {
		e.wrong(at, "is empty: leave it out to allow all tools, or disable the server")
		return
	}
	for _, n := range e.names(at) {
		n, _, _ = strings.Cut(n, "(") // Gemini CLI ignores arguments after a name
		e.allow = append(e.allow, text(literal(n), at))
	}
}

// readTools reads tools: ours, or as other programs write it, a list of globs or a map of tools
// that may be off.
func (e *entry) readTools(at *tree.Node) {
	switch {
	case at.Kind == tree.List && len(at.Items) == 0:
		e.wrong(at, "must not be empty")
	case at.Kind == tree.List:
		e.allow = append(e.allow, at.Items...)
	case at.Has("allow") || at.Has("deny"):
		e.allow = append(e.allow, e.items(at.Take("allow"))...)
		e.deny = append(e.deny, e.items(at.Take("deny"))...)
		for _, m := range at.Members {
			e.wrong(m.Value, "unknown key")
		}
	case e.isMap(at):
		for _, m := range at.Members {
			if off := m.Value.IsA(tree.Object) && e.off(m.Value); off || !m.Value.IsA(tree.Object) && !e.truth(m.Value, true) {
				e.deny = append(e.deny, text(literal(m.Key), m.Value))
			}
		}
	}
}

// readOptions reads the options of an entry of TBXark/mcp-proxy.
func (e *entry) readOptions(at *tree.Node) {
	e.refuseTokens(at.Get("authTokens"))
	filter := at.Get("toolFilter")
	if filter == nil || !e.isMap(filter) {
		return
	}
	list := filter.Get("list")
	switch mode := filter.Get("mode"); {
	case mode == nil || mode.Is("allow"):
		if list != nil {
			e.allowNames(list)
		}
	case mode.Is("block"):
		e.denyNames(list)
	default:
		e.wrong(mode, "must be allow or block, not %s", mode.Describe())
	}
}
