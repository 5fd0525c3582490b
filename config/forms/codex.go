package forms

import "github.com/mcp-proxy/mcp-proxy/config/tree"

// Codex. Its key tools is about the tools of the program itself.
var codex = form{
	name:   "Codex",
	detect: func(f *File) bool { return f.section() == "mcp_servers" },
	servers: func(f *File) (*tree.Node, tree.Problems) {
		f.Take("tools")
		return convert(f).servers(f.Take("mcp_servers"))
	},
}
