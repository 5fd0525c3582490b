package forms

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// Gemini CLI. It has mcpServers, its own lists beside them, and variables written as $NAME.
var gemini = form{
	name:   "Gemini CLI",
	detect: isGemini,
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		mcp, other, sandbox := f.Take("mcp"), f.Take("tools"), f.Take("sandbox")
		c.readLists()
		c.members(mcp)
		c.onlyThese(mcp.Get("allowed"))
		c.neverThese(mcp.Get("excluded"))
		if at := mcp.Get("serverCommand"); at != nil {
			c.warn(at, "left out: it is not an entry of mcpServers")
		}
		if other.IsA(tree.List) {
			c.wrong(other, "lists tools, which is not read here: name them at their servers")
		}
		for _, list := range []*tree.Node{f.Take("excludeTools"), other.Get("exclude")} {
			for _, name := range c.names(list) {
				c.denied = append(c.denied, denial{list, name, geminiPrefixes}, denial{list, literal(name), noPrefix})
			}
		}
		if at := other.Get("sandbox"); at != nil {
			sandbox = at
		}
		on := sandbox
		if sandbox.Has("enabled") {
			on = sandbox.Get("enabled")
		}
		servers := f.Take("mcpServers")
		servers.Walk(func(n *tree.Node) {
			if n.Kind == tree.Text {
				n.Text = geminiVariable.ReplaceAllString(n.Text, "$${$1}")
			}
		})
		servers, _ = c.servers(servers)
		commands := slices.ContainsFunc(servers.Each(), func(m tree.Member) bool { return m.Value.Has("command") })
		if commands && on.IsA(tree.Text|tree.Boolean) && !on.Is("false") && !on.Is("") {
			c.wrong(sandbox, noSandbox)
		}
		return servers, c.problems
	},
}

var geminiVariable = lazyregexp.New(`\$([A-Za-z_][A-Za-z0-9_]*)`)

// isGemini detects the keys that only Gemini CLI writes.
func isGemini(f *File) bool {
	if f.section() != "mcpServers" {
		return false
	}
	entries := slices.ContainsFunc(f.Get("mcpServers").Each(), func(m tree.Member) bool {
		return slices.ContainsFunc([]string{"httpUrl", "trust", "includeTools", "excludeTools"}, m.Value.Has)
	})
	dir, err := filepath.Abs(filepath.Dir(f.Path))
	return entries || err == nil && filepath.Base(dir) == ".gemini" ||
		slices.ContainsFunc([]string{"mcp", "tools", "sandbox", "excludeTools"}, f.Has)
}

// geminiPrefixes returns the prefixes of several versions. The newest keeps dots and colons, and adds mcp_ only to a
// name that does not begin with it.
func geminiPrefixes(server string) (all []string) {
	for _, name := range []string{plain(server), unfitForGemini.ReplaceAllString(server, "_")} {
		all = append(all, "mcp_"+name+"_", name+"__")
		if strings.HasPrefix(name, "mcp_") {
			all = append(all, name+"_")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var unfitForGemini = lazyregexp.New(`[^A-Za-z0-9_.:-]`)

func noPrefix(string) []string { return []string{""} }
