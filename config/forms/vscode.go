package forms

import (
	"path/filepath"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// VS Code. Its mcp.json has the servers in servers, its settings in mcp.servers.
var vscode = form{
	name: "VS Code",
	detect: func(f *File) bool {
		return f.section() == "servers" || f.section() == "mcp" && !isOpencode(f)
	},
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		c.access(f.Take("chat.mcp.access"))
		c.access(f.Take("chat.mcp.enabled"))
		f.Take("inputs")
		if dir, err := filepath.Abs(filepath.Dir(f.Path)); err == nil && dir != f.Dir && f.Has("servers") {
			c.cwd = text(f.Dir, f.Node)
		}
		if servers := f.Take("servers"); servers != nil {
			return c.servers(servers)
		}
		return c.servers(f.Take("mcp").Get("servers"))
	},
}
