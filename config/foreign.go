package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// A section is where another program keeps its servers. Each is read like mcpServers, which
// most programs have, after its entries were brought into that form.
type section struct {
	key   string
	named string                                 // whose it is, in lines about it
	adapt func(f *foreign, name string, n *node) // brings an entry into the form of mcpServers; nil: it is
}

// sections are all of them. A file has one, or mcpServers.
var sections = []section{
	{"mcpServers", "mcpServers", nil},
	{"servers", "VS Code", nil},
	{"context_servers", "Zed", nil},
	{"mcp_servers", "Codex", nil},
	{"mcp", "opencode", (*foreign).opencode},
	{"registry", "a Docker catalog", (*foreign).docker},
}

// A foreign file is one that another program reads, too. What it says about its servers
// counts, and so does what keeps them, or their tools, from being used.
type foreign struct {
	*loader
	section section

	only     []string  // names of servers that may be used; nil: all
	never    []string  // names of servers that must not be
	domains  []string  // that remote servers must be at; nil: anywhere
	denied   []string  // tools of any server that must not be used: names, not globs
	verdicts []verdict // that deny tools
	gemini   bool      // $NAME is a variable
}

// A verdict of opencode is about all tools that its pattern matches as <server>_<tool>.
type verdict struct {
	value          // where it is
	pattern string // in which * matches anything
}

// foreignIn returns how a file is read that other programs have written; nil for one of ours.
func (l *loader) foreignIn(root *node) *foreign {
	for _, s := range sections {
		if s.key == "mcp" && root.has("mcpServers") || !root.has(s.key) {
			continue
		}
		f := &foreign{loader: l, section: s}
		f.dir = f.workspace()
		f.gemini = s.key == "mcpServers" && (root.has("mcp") || geminiEntries(root.get(s.key)))
		return f
	}
	return nil
}

// read reads the whole file. known are our own keys, which may stand beside the servers.
func (f *foreign) read(file value, known fields) {
	first := fields{ // since they say how the servers are read
		"inputs":                 f.readInputs,
		"allowMCPServers":        into(&f.only, str.list),
		"excludeMCPServers":      into(&f.never, str.list),
		"enabledMcpjsonServers":  into(&f.only, str.list),
		"disabledMcpjsonServers": into(&f.never, str.list),
		"mcpProxy":               f.readTBXark,
		"mcpSettings":            func(v value) { v.pick("allowedDomains", into(&f.domains, str.list)) },
		"mcp":                    f.readMCP,
		"tools":                  f.readTools,
		"permission":             f.readPermissions,
	}
	delete(first, f.section.key)
	file.object(first, func(string, value) {})
	for key := range first {
		known[key] = func(value) {}
	}
	known[f.section.key] = f.readSection

	var others []string
	file.object(known, func(key string, v value) {
		near := DidYouMean(key, known.keys())
		switch {
		case v.misspelt(key, known):
		case near != "":
			v.warn(v.source, v.key, "unknown key, ignored%s", near)
		default:
			others = append(others, key)
		}
	})
	if len(others) > 0 {
		f.warn(f.source, "", "other settings, ignored: %s", shortened(others))
	}
}

// shortened is a list for a line.
func shortened(all []string) string {
	const most = 5
	if n := len(all) - most; n > 1 {
		return fmt.Sprintf("%s and %d others", strings.Join(all[:most], ", "), n)
	}
	return strings.Join(all, ", ")
}

// readSection reads the servers. VS Code keeps them one level deeper in its settings.
func (f *foreign) readSection(v value) {
	if f.section.key == "mcp" && v.node.has("servers") {
		f.section = section{key: "mcp", named: "VS Code"}
		v.pick("inputs", f.readInputs)
		v.pick("servers", f.readServers)
		return
	}
	f.readServers(v)
}

// readMCP reads what Gemini CLI keeps beside mcpServers.
func (f *foreign) readMCP(v value) {
	v.pick("allowed", into(&f.only, str.list))
	v.pick("excluded", into(&f.never, str.list))
}

// unused reports why an entry is not used: it is off, or a list of servers leaves it out.
func (f *foreign) unused(name string, v value) bool {
	return v.disabled() || f.only != nil && !slices.Contains(f.only, name) || slices.Contains(f.never, name)
}

// checkDomain refuses a remote server that is at none of the domains that may be used.
func (f *foreign) checkDomain(v value, u *Upstream) {
	at, err := url.Parse(u.URL)
	if f.domains == nil || u.URL == "" || err != nil {
		return
	}
	host := at.Hostname()
	for _, d := range f.domains {
		base, below := strings.CutPrefix(d, "*.")
		if strings.EqualFold(host, base) || below && strings.HasSuffix(strings.ToLower(host), "."+strings.ToLower(base)) {
			return
		}
	}
	v.wrong("is at none of mcpSettings.allowedDomains")
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
