package forms

import (
	"slices"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// Zed. The permissions and the profile of its agent may deny tools.
var zed = form{
	name:   "Zed",
	detect: func(f *File) bool { return f.section() == "context_servers" },
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		servers, agent := f.Take("context_servers"), f.Take("agent")
		c.zedPermissions(agent.Get("tool_permissions"), servers)
		c.zedProfile(agent)
		servers.Members = slices.DeleteFunc(servers.Members, func(m tree.Member) bool {
			if !extension(m.Value) || c.unused(m.Key, m.Value) {
				return false
			}
			c.warn(m.Value, "left out: the command is in an extension of Zed")
			return true
		})
		return c.servers(servers)
	},
}

// extension reports whether an entry is for a server that an extension of Zed runs.
func extension(n *tree.Node) bool {
	return n.IsA(tree.Object) && !n.Has("command") && !n.Has("url") && (n.Has("settings") || n.Get("source").Is("extension"))
}

// zedPermissions refuses permissions that deny tools of servers.
func (c *conversion) zedPermissions(permissions, servers *tree.Node) {
	if standard := permissions.Get("default"); standard.Is("deny") {
		c.wrong(standard, noRule)
	}
	prefixes := func(server string) []string { return []string{"mcp:" + server + ":"} }
	for _, m := range c.members(permissions.Get("tools")) {
		denies := m.Value.Get("default").Is("deny") || len(m.Value.Get("always_deny").All()) > 0
		if denies && c.concerns(literal(m.Key), servers, prefixes) {
			c.wrong(m.Value, noRule)
		}
	}
}

// zedProfile refuses a default profile of the agent that does not allow all tools of all servers.
func (c *conversion) zedProfile(agent *tree.Node) {
	name, at := "write", agent
	if n := agent.Get("default_profile"); n.IsA(tree.Text) {
		name, at = n.Text, n
	}
	profile := agent.Get("profiles").Get(name)
	all := profile.Get("enable_all_context_servers")
	switch {
	case profile == nil && name == "write":
	case profile == nil || !all.Is("true") && (name != "write" || all != nil) || switchesOff(profile.Get("context_servers")):
		if profile != nil {
			at = profile
		}
		c.wrong(at, "is a profile without some of the tools, which is not read here: name the tools in disabledTools of their servers")
	}
}

// switchesOff reports whether something below n is false.
func switchesOff(n *tree.Node) (off bool) {
	if n != nil {
		n.Walk(func(n *tree.Node) { off = off || n.Is("false") })
	}
	return off
}
