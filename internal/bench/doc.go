// Command bench measures what mcp-proxy costs: how much slower a call becomes,
// how many calls pass, and how much memory a client takes.
//
//	direct        bench ─stdio─► echo
//	relay         bench ─stdio─► relay ─stdio─► echo           the floor of a hop
//	stdio         bench ─stdio─► mcp-proxy stdio ─stdio─► echo
//	websocket     bench ─/ws───► mcp-proxy serve ─stdio─► echo
//	http          bench ─/mcp──► mcp-proxy serve ─stdio─► echo
//	unix link     bench ─stdio─► mcp-proxy stdio ═unix:═ mcp-proxy host ─stdio─► echo
//	tcp link      bench ─stdio─► mcp-proxy stdio ═tcp:══ mcp-proxy host ─stdio─► echo
//	remote        bench ─stdio─► mcp-proxy stdio ─/mcp──► echo http
//	remote http   bench ─/mcp──► mcp-proxy serve ─/mcp──► echo http
//	shared        as websocket, with session: shared
//	shared by 50  likewise, the same load from 50 clients
//
// The server (echo) and the clients (wire.go) write and parse as little as they
// can, so that what stands between them is measured. All targets are measured
// in turn in every round, with fresh processes, so that noise hits them alike;
// the report has the medians of the rounds and, as only ratios travel from one
// machine to another, sets each against its base: the relay, or the target that
// differs from it in one thing.
//
// Two WebSocket clients on one Unix link then tell what a stream that stalls
// costs its neighbour, and many of them how much memory each takes, in a proxy
// and in a host.
//
// Then clients look at 12 upstreams that start when they are needed, and that the proxy knows from
// an earlier run: how soon they have the tools, also while one server hangs, what that takes, and how
// soon a first call is answered if a spare process has been started ahead. -lazy measures nothing else.
//
// At last a crowd of WebSocket clients comes all at once to a proxy with several
// shared servers, calls, goes, and comes again to see the proxy end. -crowd 250x20
// measures nothing but one of 250 clients and 20 servers.
//
// -against compares nothing but two binaries, to tell what a change costs. Both run at the same
// time and take turns, in pairs, so that noise hits them alike: calls per second, and processor
// time of the proxies for each call, both with 64 calls at a time. Six rounds of all routes take
// two and a half minutes; arguments choose some of the routes:
//
//	go -C internal/bench run . -against /tmp/old -rounds 6
//	go -C internal/bench run . -against /tmp/old -proxy /tmp/new -rounds 6 stdio "unix link"
//
// -extras compares in the same way what the proxy does besides: clients prove who they are, with
// a static token, with a JWT, and with policies, requests arrive at another replica than that of their
// session, and operators look in, with metrics and a tap.
//
// -light prints what the proxy costs beside floors (floor), programs that do the least a proxy of messages
// can do on the same path, in pairs and with the goals: processor time, context switches and allocations of a call,
// private memory, the binary. Its parts can be chosen, and take a minute or two each; "hooks" compares with a
// build whose hooks are compiled out (bare.go). "record" judges against record.json, as CI does; -record
// writes that again:
//
//	go -C internal/bench run . -light cpu,memory -rounds 6
//
// -replicas 10000 has so many sessions on three replicas, and restarts one of them.
//
// -compare measures nothing but our proxy beside others, and what becomes of calls when
// something goes wrong (docs/benchmarks.md, docs/faults.md). The others are in the directory
// of -peers; without it ours is alone. The server of that is mortal:
//
//	go -C internal/bench run . -compare faults
//
// It needs Linux. With -profile the proxy is built with a profiler compiled in (go build
// -overlay), and the places are printed where its time goes.
package main
