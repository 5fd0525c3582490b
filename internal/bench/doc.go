// Command bench measures what mcp-proxy costs: how much slower a call becomes,
// how many calls pass, and how much memory a client takes.
//
//	direct      bench ─stdio─► echo
//	relay       bench ─stdio─► relay ─stdio─► echo           the floor of a hop
//	stdio       bench ─stdio─► mcp-proxy stdio ─stdio─► echo
//	websocket   bench ─/ws───► mcp-proxy serve ─stdio─► echo
//	http        bench ─/mcp──► mcp-proxy serve ─stdio─► echo
//
// The server (echo) and the clients (wire.go) write and parse as little as they
// can, so that what stands between them is measured. All targets are measured
// in turn in every round, with fresh processes, so that noise hits them alike;
// the report has the medians of the rounds and, as only ratios travel from one
// machine to another, sets them against the relay's.
//
// With -profile the proxy is built with a profiler compiled in (go build
// -overlay), and the places are printed where its time goes.
package main
