package forms

import "github.com/mcp-proxy/mcp-proxy/config/tree"

// LibreChat.
var libreChat = form{
	name:   "LibreChat",
	detect: isLibreChat,
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		c.readLists()
		c.refuse(f.Take("mcpSettings").Get("allowedDomains"), "is not read here: remove the key if all servers of the file may be used")
		c.access(f.Take("interface").Get("mcpServers").Get("use"))
		return c.servers(f.Take("mcpServers"))
	},
}

func isLibreChat(f *File) bool {
	return f.section() == "mcpServers" && !isGemini(f) && (f.Has("mcpSettings") || f.Has("interface"))
}
