package forms

import "github.com/mcp-proxy/mcp-proxy/config/tree"

// Codex. Its key tools is about the tools of the program itself.
var _ = register(Form{
	Name:   "Codex",
	Detect: func(f *File) bool { return f.section() == "mcp_servers" },
	Servers: func(f *File) (*tree.Node, tree.Problems) {
		f.Take("tools")
		return convert(f).servers(f.Take("mcp_servers"))
	},
})
