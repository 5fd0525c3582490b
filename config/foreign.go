package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// A section is where another program keeps its servers. Each is read like mcpServers, which
// most programs have, after its entries were brought into that form.
type section struct {
	key   string
	adapt func(f *foreign, name string, n *node) // brings an entry into the form of mcpServers; nil: it is
}

// ofOpencode tells opencode's section from that of VS Code's settings.
func (s section) ofOpencode() bool { return s.key == "mcp" && s.adapt != nil }

// sections are all of them. A file has one, or mcpServers.
var sections = []section{
	{"mcpServers", nil},
	{"servers", nil},         // VS Code
	{"context_servers", nil}, // Zed
	{"mcp_servers", nil},     // Codex
	{"mcp", (*foreign).opencode},
	{"registry", (*foreign).docker},
}

// A foreign file is one that another program reads, too. What it says about its servers
// counts, and so does what keeps them, or their tools, from being used.
type foreign struct {
	*loader
	section section

	only     [][]string // names of servers that may be used: those that are in all lists
	never    []string   // names of servers that must not be
	domains  []string   // that remote servers must be at; none: anywhere
	denied   []string   // tools of any server that must not be used: names, not globs
	verdicts []verdict  // about tools, in the order in which they count
	profile  []verdict  // and those of the profile that Zed begins with
	sandbox  *value     // the key that keeps all commands in one; nil: none does
	gemini   bool       // $NAME is a variable
	cwd      string     // where servers run that do not say it; "": where we do
}

// foreignIn returns how a file is read that other programs have written; nil for one of ours.
func (l *loader) foreignIn(root *node) *foreign {
	for _, s := range sections {
		if !root.has(s.key) {
			continue
		}
		f := &foreign{loader: l, section: s}
		f.gemini = s.key == "mcpServers" && (filepath.Base(l.dir) == ".gemini" || root.has("mcp") || geminiEntries(root.get(s.key)))
		if s.key == "mcp" && root.get("mcp").has("servers") && !l.isOpencode(root) {
			f.section = section{key: "mcp"} // settings of VS Code
		}
		if above := f.workspace(); above != f.dir {
			f.dir = above
			if s.key == "servers" { // as VS Code does
				f.cwd = above
			}
		}
		return f
	}
	return nil
}

// read reads the whole file. known are our own keys, which may stand beside the servers.
func (f *foreign) read(file value, known fields) {
	ours := known.keys()
	first := f.beside() // since they say how the servers are read
	delete(first, f.section.key)
	file.object(first, func(string, value) {})
	if f.section.ofOpencode() {
		f.readAgents(file)
	}
	for key := range first {
		known[key] = func(value) {}
	}
	known[f.section.key] = f.readSection

	var others []string
	file.object(known, func(key string, v value) {
		near := DidYouMean(key, ours)
		switch {
		case v.misspelt(key, known):
		case Nearest(key, guarding) != "":
			v.wrong("unknown key; did you mean %s?", Nearest(key, guarding))
		case near != "":
			v.warn(v.source, v.key, "unknown key, ignored%s", near)
		default:
			others = append(others, printable(key))
		}
	})
	if len(others) > 0 {
		f.warn(f.source, "", "other settings, ignored: %s", shortened(others))
	}
}

// beside are the keys beside the servers that say which of them, and which of their tools,
// may be used.
func (f *foreign) beside() fields {
	keys := fields{
		"inputs":                 f.readInputs,
		"allowMCPServers":        f.readOnly,
		"excludeMCPServers":      f.readNever,
		"enabledMcpjsonServers":  f.readOnly,
		"disabledMcpjsonServers": f.readNever,
		"disabledMcpServers":     f.readNever,
		"allowedMcpServers":      refuseList,
		"deniedMcpServers":       refuseList,
		"chat.mcp.access":        f.readAccess,
		"chat.mcp.enabled":       f.readAccess,
		"excludeTools":           f.readDenied,
		"mcpProxy":               f.readTBXark,
		"mcpSettings":            func(v value) { v.pick("allowedDomains", into(&f.domains, nonEmpty.list)) },
		"interface":              func(v value) { v.pick("mcpServers", func(v value) { v.pick("use", f.readAccess) }) },
		"mcp":                    f.readMCP,
		"tools":                  f.readTools,
		"sandbox":                f.readSandbox,
		"permissions":            f.readPermissions,
	}
	switch {
	case f.section.ofOpencode():
		maps.Copy(keys, f.opencodeRules())
		for _, key := range agentKeys {
			keys[key] = func(value) {} // after these
		}
		keys["experimental"] = func(v value) { v.pick("policies", func(v value) { v.every(refusePolicy) }) }
	case f.section.key == "context_servers":
		keys["agent"] = f.readAgent
	}
	return keys
}

// guarding are keys of a file of which a slip must not go unnoticed.
var guarding = []string{
	"tokenFile", "policies", "limits", "allowedHosts", "allowedOrigins", "excludeTools", "permissions",
	"allowMCPServers", "excludeMCPServers", "enabledMcpjsonServers", "disabledMcpjsonServers", "disabledMcpServers",
}

// shortened is a list for a line.
func shortened(all []string) string {
	const most = 5
	if n := len(all) - most; n > 1 {
		return fmt.Sprintf("%s and %d others", strings.Join(all[:most], ", "), n)
	}
	return strings.Join(all, ", ")
}

// readSection reads the servers. VS Code keeps them one level deeper in its settings, and
// the second version of opencode does.
func (f *foreign) readSection(v value) {
	if f.section.key == "mcp" && v.node.has("servers") {
		v.pick("inputs", f.readInputs)
		v.pick("servers", f.readServers)
		rest := &node{kind: object} // opencode reads what its first version has there, too
		for _, m := range v.node.members {
			if m.value.has("type") {
				rest.members = append(rest.members, m)
			}
		}
		v.node = rest
	}
	f.readServers(v)
}

// readMCP reads what Gemini CLI keeps beside mcpServers.
func (f *foreign) readMCP(v value) {
	v.pick("allowed", f.readOnly)
	v.pick("excluded", f.readNever)
	v.pick("serverCommand", func(v value) { v.warn(v.source, v.key, "left out: it is no entry of mcpServers") })
}

// readAccess reads whether servers may be used at all.
func (f *foreign) readAccess(v value) {
	switch {
	case v.node.is("all") || v.node.is("true"):
	case v.node.is("none") || v.node.is("false"):
		f.only = append(f.only, nil)
		v.warn(v.source, v.key, "keeps all servers of this file from being used")
	default:
		v.wrong("is not read here: disable servers in the file itself")
	}
}

func (f *foreign) readOnly(v value) {
	if names, ok := str.list(v); ok && v.node.kind == list {
		f.only = append(f.only, names)
	}
}

func (f *foreign) readNever(v value) {
	names, _ := str.list(v)
	f.never = append(f.never, names...)
}

// refuseList refuses what says by their commands and URLs which servers may be used.
func refuseList(v value) {
	v.wrong("is not read here: disable servers in the file itself")
}

// unused reports why an entry is not used: it is off, or a list of servers leaves it out.
func (f *foreign) unused(name string, v value) bool {
	off := v.disabled()
	v.pick("options", func(v value) { off = v.disabled() || off }) // as TBXark/mcp-proxy has it
	for _, names := range f.only {
		off = off || !slices.Contains(names, name)
	}
	return off || slices.ContainsFunc(f.never, func(never string) bool { return strings.EqualFold(never, name) })
}

// checkDomain refuses a remote server that is at none of the domains that may be used.
func (f *foreign) checkDomain(v value, u *Upstream) {
	at, err := url.Parse(u.URL)
	if len(f.domains) == 0 || u.URL == "" || err != nil {
		return
	}
	if !slices.ContainsFunc(f.domains, func(domain string) bool { return allows(domain, at) }) {
		v.wrong("is at none of mcpSettings.allowedDomains")
	}
}

// allows reports whether a URL is at a domain, which may have a scheme and a port, and may
// begin with "*." for all below it.
func allows(domain string, at *url.URL) bool {
	if !strings.Contains(domain, "://") {
		domain = "//" + domain
	}
	d, err := url.Parse(domain)
	if err != nil || d.Scheme != "" && d.Scheme != at.Scheme || d.Scheme+d.Port() != "" && portOf(d) != portOf(at) {
		return false
	}
	host := strings.ToLower(at.Hostname())
	base, below := strings.CutPrefix(strings.ToLower(d.Hostname()), "*.")
	return host == base || below && strings.HasSuffix(host, "."+base)
}

// portOf is the port of a URL, that of its scheme if it has none.
func portOf(at *url.URL) string {
	standard := "80"
	if at.Scheme == "https" || at.Scheme == "wss" {
		standard = "443"
	}
	return cmp.Or(at.Port(), standard)
}

// readTBXark reads what TBXark/mcp-proxy keeps beside mcpServers. Its tokens are in the
// file itself.
func (f *foreign) readTBXark(v value) {
	v.pick("options", func(v value) { v.pick("authTokens", refuseTokens) })
	v.pick("addr", func(v value) { v.warn(v.source, v.key, "ignored: listen, or --listen, says where clients connect") })
}

// refuseTokens refuses tokens of clients that are in the file itself: to ignore them would
// let everybody in.
func refuseTokens(v value) {
	if len(v.node.items) > 0 {
		v.wrong("is not read here: write each token to a file of its own, and name that with tokenFile or auth.tokens")
	}
}
