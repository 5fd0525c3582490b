package forms

import (
	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// Claude Desktop, Claude Code, and all programs that write mcpServers in the same way: Cursor,
// Windsurf, Cline, Roo.
var claude = form{
	name: "Claude",
	detect: func(f *File) bool {
		return f.section() == "mcpServers" && !isGemini(f) && !isLibreChat(f) && !isTBXark(f)
	},
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		c.readLists()
		return c.servers(f.Take("mcpServers"))
	},
}

// mcpRule matches a permission for tools of servers.
var mcpRule = lazyregexp.New(`^(mcp__|Mcp\()`)

// readLists reads and removes the lists of servers that programs have beside mcpServers.
func (c *conversion) readLists() {
	for _, key := range []string{"enabledMcpjsonServers", "allowMCPServers"} {
		c.onlyThese(c.Take(key))
	}
	for _, key := range []string{"disabledMcpjsonServers", "disabledMcpServers", "excludeMCPServers"} {
		c.neverThese(c.Take(key))
	}
	for _, key := range []string{"allowedMcpServers", "deniedMcpServers"} {
		c.refuse(c.Take(key), notRead)
	}
	for _, rule := range c.items(c.Take("permissions").Get("deny")) {
		if mcpRule.MatchString(rule.Text) {
			c.wrong(rule, noRule)
		}
	}
}
