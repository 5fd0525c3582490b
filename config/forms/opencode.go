package forms

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// Both versions of opencode. The servers are in mcp, or one level deeper. Variables are written as
// {env:NAME}, and names of tools are <server>_<tool>.
var opencode = form{
	name:   "opencode",
	detect: func(f *File) bool { return f.section() == "mcp" && isOpencode(f) },
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		servers := opencodeServers(f.Take("mcp"))
		tools := f.Take("tools")
		for _, m := range c.members(tools) {
			if m.Value.Is("false") {
				c.denied = append(c.denied, denial{m.Value, m.Key, opencodePrefixes})
			}
		}
		c.opencodePermissions(f.Take("permission"), f.Take("permissions"), servers)
		c.opencodeAgents(f, servers)
		for _, policy := range c.items(f.Take("experimental").Get("policies")) {
			if policy.Get("effect").Is("deny") && !policy.Get("action").Is("provider.use") {
				c.wrong(policy, noRule)
			}
		}
		servers.Walk(func(n *tree.Node) {
			if n.Kind == tree.Text {
				n.Text = openVariable.ReplaceAllString(strings.ReplaceAll(n.Text, "${", "$${"), "$${$1}")
			}
		})
		c.beforeServer = func(_ string, n *tree.Node) {
			eras := map[string]string{"legacy": "legacy", "auto": "auto", "2026-07-28": "modern"}
			if p := n.Get("protocol"); p.IsA(tree.Text) && eras[p.Text] != "" {
				n.Set("era", text(eras[p.Text], n.Take("protocol")))
			}
		}
		return c.servers(servers)
	},
}

var openVariable = lazyregexp.New(`\{((?:env|file):[^{}]+)\}`)

// isOpencode reports whether a file is of opencode, and not the settings of VS Code: both may have mcp.servers.
func isOpencode(f *File) bool {
	if s := f.Get("$schema"); s.IsA(tree.Text) && strings.Contains(s.Text, "opencode.ai") || !f.Get("mcp").Has("servers") {
		return true
	}
	return strings.HasPrefix(filepath.Base(f.Path), "opencode.") ||
		slices.ContainsFunc(f.Get("mcp").Get("servers").Each(), func(m tree.Member) bool {
			kind := m.Value.Get("type")
			return kind.Is("local") || kind.Is("remote")
		})
}

// opencodeServers returns the servers of a file of either version, or of both.
func opencodeServers(mcp *tree.Node) *tree.Node {
	servers := mcp.Get("servers")
	if !servers.IsA(tree.Object) {
		return mcp
	}
	for _, m := range mcp.Members {
		if m.Value.Has("type") && !servers.Has(m.Key) {
			servers.Members = append(servers.Members, m)
		}
	}
	return servers
}

func opencodePrefixes(server string) []string { return []string{plain(server) + "_"} }

// opencodePermissions refuses permissions that deny tools of servers: a map by tool in the first
// version, a list in the second. A permission to ask the user first concerns the client alone, and
// one for some arguments of a tool concerns opencode's own tools.
func (c *conversion) opencodePermissions(first, second, servers *tree.Node) {
	if first.IsA(tree.Text) { // one permission for all tools
		first = &tree.Node{Kind: tree.Object, At: first.At, Members: []tree.Member{{Key: "*", Value: first}}}
	}
	for _, m := range c.members(first) {
		denies := m.Value.Is("deny") || m.Value.Get("*").Is("deny")
		if denies && c.concerns(m.Key, servers, opencodePrefixes) {
			c.wrong(m.Value, noRule)
		}
	}
	for _, rule := range c.items(second) {
		action := rule.Get("action")
		denies := rule.Get("effect").Is("deny") && rule.Get("resource").Is("*") && action.IsA(tree.Text)
		if denies && c.concerns(action.Text, servers, opencodePrefixes) {
			c.wrong(rule, noRule)
		}
	}
}

// opencodeAgents refuses rules of the default agent that deny tools of
// servers.
func (c *conversion) opencodeAgents(f *File, servers *tree.Node) {
	name := "build"
	if n := f.Take("default_agent"); n.IsA(tree.Text) {
		name = n.Text
	}
	for _, key := range []string{"mode", "agent", "agents"} {
		agent := f.Take(key).Get(name)
		for _, m := range c.members(agent.Get("tools")) {
			if m.Value.Is("false") && c.concerns(m.Key, servers, opencodePrefixes) {
				c.wrong(m.Value, noRule)
			}
		}
		c.opencodePermissions(agent.Get("permission"), agent.Get("permissions"), servers)
	}
}
