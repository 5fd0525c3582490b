// Command mcp-proxy fans one MCP client out to several MCP servers.
//
//	mcp-proxy serve   --config F [--listen HOST:PORT | unix:///path]…  [-- CMD ARGS…]
//	mcp-proxy stdio   --config F                                       [-- CMD ARGS…]
//	mcp-proxy check   --config F
//	mcp-proxy version
//
// This is the only place where the packages meet:
//
//	config ──► engine: proxy ──link.Client ═ Ring ═ link.Server──► upstream.Host
//	              ▲
//	           serve: frontend.HTTP        stdio: frontend.Stdio
//
// A client's session ends first, then its streams, then the host's processes,
// then the link: each Serve has returned before the next is told to end. Only
// main exits.
package main
