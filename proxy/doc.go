// Package proxy is mcp-proxy as a library. It serves MCP clients from the servers of a
// configuration, and runs everything behind them: processes, remote servers, links to hosts
// elsewhere, and a shutdown that loses nothing. A program that embeds it imports this
// package and config, and nothing else.
//
//	config ─► New ─► Proxy
//
//	 Handler ──► frontend ─┐                 ┌─ local ══ queues ════ hosting ─► processes,
//	 Serve                 ├─► Router ─dial──┤                       remote servers
//	 ServeStdio, Client ───┘  (sessions)     └─ links ══ sockets ═══ hosting ─► the same, elsewhere
//
//	config ─► NewHost ─► Host, the hosting elsewhere
//
// A Proxy joins two halves. The Router in front has a session for each client; the
// hosting behind runs the servers. Streams join them, through queues for what runs here, on a
// link for what runs elsewhere, so that both close and fail alike. The links give the Router
// the upstreams that the hosts announce.
//
// # Files
//
// Each type has its own state, and one file says all about it. Files refer downwards in this
// order, except that a Proxy and a Host show operators their own snapshot:
//
//	trial.go       starts each upstream alone, for doctor and in a running proxy
//	kept.go        which lists of earlier runs doctor compares with those of now
//	proxy.go       Proxy: New, clients, Reload, Shutdown
//	host.go        Host: NewHost, its end of links
//	snapshot.go    what operators and browsers see of both
//	front.go       the handler of all paths; who may use it, and for what
//	operators.go   the addresses for operators, metrics and traces
//	hosting.go     the half with the servers
//	required.go    the upstreams that readiness waits for
//	client.go      a client in the same program
//	links.go       all links to hosts elsewhere, and one set of upstreams
//	through.go     links of hosts that have dialled another replica, and which link is used
//	remotelink.go  one link: the names that its host may have, and what it refuses
//	check.go       finds what would fail later
//	upstreams.go   turns the configuration into what the parts want
//	login.go       our own credentials, and logins
//	web.go         listeners and their server
//	tls.go         TLS of clients, links and remote servers, from files that change
//	shutdown.go    the time of a shutdown
//	options.go     Options and Hooks, the version, the log of anonymous peers
//
// # The end
//
// Clients come first: new requests are refused, those in flight finish, and the rest get an
// error. Calls that other replicas have at hosts of this one may finish, too. Then the streams of the clients end, then the links, then the servers, then the
// listeners. Each step waits for the one before. All share one budget of time, the deadline of
// the ctx that Shutdown gets; servers keep the part that they need to stop. Cancelling that
// ctx ends everything by force, which takes a second.
//
// # Invariants
//
//   - Nothing runs before Handler, Serve, ServeStdio or Client is called, and nothing is left
//     when Shutdown or Close returns.
//   - A configuration is taken over whole or not at all.
//   - The parts do not know each other. Only this package knows them all.
package proxy
