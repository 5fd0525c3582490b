// Command mcp-proxy fans one MCP client out to several MCP servers.
//
//	mcp-proxy serve   --config F [--listen HOST:PORT | unix:///path]…  [-- CMD ARGS…]
//	mcp-proxy stdio   --config F                                       [-- CMD ARGS…]
//	mcp-proxy connect URL
//	mcp-proxy host    --config F --listen URL | --dial URL             [-- CMD ARGS…]
//	mcp-proxy check   [F]
//	mcp-proxy version
//
// This is the only place where the packages meet:
//
//	config ──► engine: proxy ──link.Client ═ Ring ═══ link.Server──► upstream.Host   (hosting)
//	              ▲      └─────link.Client ═ socket ═ link.Server──► upstream.Host   (host, elsewhere)
//	           serve: frontend.HTTP        stdio, connect: frontend.Stdio
//
// An upstream.Host runs commands itself; remote servers it reaches by remote.Server,
// which is given to it here. links.go makes one set of upstreams of those that run
// here and those that hosts elsewhere announce.
//
// A client's session ends first, then its streams, then the host's processes,
// then the link: each Serve has returned before the next is told to end. Only
// main exits.
package main
