// Command mcp-proxy fans one MCP client out to several MCP servers.
//
//	mcp-proxy serve   --config F [--listen HOST:PORT | unix:///path]…  [--server NAME=CMD]… [-- CMD ARGS…]
//	mcp-proxy stdio   --config F                                       [-- CMD ARGS…]
//	mcp-proxy connect URL
//	mcp-proxy host    --config F --listen URL | --dial URL             [-- CMD ARGS…]
//	mcp-proxy check   [F]
//	mcp-proxy tools   [-- CMD ARGS… | URL]
//	mcp-proxy call    NAME [JSON | key=value…]  [-- CMD ARGS…]
//	mcp-proxy doctor  [-- CMD ARGS… | URL]
//	mcp-proxy login   UPSTREAM|URL, and logout
//	mcp-proxy explain NAME|URI|EVENT  [--as CLIENT]
//	mcp-proxy status, calls, top, tap
//	mcp-proxy healthcheck
//	mcp-proxy schema
//	mcp-proxy version
//
// The program is flags, signals, terminal output and exit codes. Everything else is package
// proxy, which it embeds as any other program could:
//
//	flags ─► config ─► serve          proxy.New: Listen, Serve ──┐
//	                   stdio, connect proxy.New: ServeStdio    ──┼─ a signal ─► Shutdown ─► exit code
//	                   host           proxy.NewHost: Serve     ──┘
//	                   tools, call    proxy.New: Client  ──► Shutdown (direct.go)
//	                   check, doctor  proxy.Inspect, proxy.Diagnose
//
// SIGHUP calls Reload if stdin is no terminal, and so does a changed file with --watch. Each process
// listens at a Unix socket for operators, where status and the like find it (admin_client.go). On a
// terminal the log is lines for people (console.go, log.go, reporter.go). Only main exits.
//
// References between the files run downwards: main.go, the commands, service.go and direct.go, reporter.go
// and admin_client.go, then flags.go, log.go, usage.go, console.go, table.go and output.go.
package main
