package forms

import "github.com/mcp-proxy/mcp-proxy/config/tree"

// TBXark/mcp-proxy. It has the tokens of its clients in the file itself.
var tbxark = form{
	name:   "TBXark/mcp-proxy",
	detect: isTBXark,
	servers: func(f *File) (*tree.Node, tree.Problems) {
		c := convert(f)
		c.readLists()
		own := f.Take("mcpProxy")
		c.refuseTokens(own.Get("options").Get("authTokens"))
		if at := own.Get("addr"); at != nil {
			c.warn(at, "ignored: listen, or --listen, says where clients connect")
		}
		return c.servers(f.Take("mcpServers"))
	},
}

func isTBXark(f *File) bool {
	return f.section() == "mcpServers" && f.Has("mcpProxy") && !isGemini(f) && !isLibreChat(f)
}
