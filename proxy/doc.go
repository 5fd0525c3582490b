// Package proxy is mcp-proxy as a library. It serves MCP clients from the servers of a
// configuration, and takes care of all that is behind that: processes, remote servers,
// links to hosts elsewhere, and an end that loses nothing. A program that embeds it
// imports this package and config, and nothing else.
//
//	config ─► New ─► Proxy
//
//	 Handler ──► frontend ─┐                 ┌─ within ═ Ring ══════ hosting ─► processes,
//	 Serve                 ├─► Router ─dial──┤                       remote servers
//	 ServeStdio, Client ───┘  (sessions)     └─ links ═══ sockets ══ hosting ─► the same, elsewhere
//
//	config ─► NewHost ─► Host, the hosting elsewhere
//
// A Proxy joins two halves. The Router in front has a session for each client; the
// hosting behind runs the servers. Between them is always a link, in memory for what
// runs here, on a socket for what runs elsewhere, so that both close and fail alike. The
// links keep the Router's set of upstreams true to what the hosts announce.
//
// # Files
//
// Each type has its own state, and its file says all about it:
//
//	proxy.go       Proxy: New, clients, Reload, Shutdown
//	host.go        Host: NewHost, where it meets its proxies
//	hosting.go     the half with the servers, of both; upstreams.go turns the configuration
//	               into what the parts want
//	links.go       links to hosts elsewhere, and one set of upstreams of all; remotelink.go is
//	               one of them, and the link within the process; claims.go says which host
//	               may have which names
//	front.go       the handler of all paths; clients.go is who may use it, and for what
//	web.go         listeners, the server at them, and TLS, also of links and remote servers
//	credentials.go how we prove who we are to servers and hosts
//	operators.go   where operators look in, and what collects for them; snapshot.go is what
//	               they see
//	required.go    the upstreams that readiness waits for
//	client.go      a client in the same program, and what it sees
//	trial.go       each upstream started by itself, for doctor and in a proxy that runs
//	shutdown.go    the time of a shutdown, and who gets how much of it
//	check.go       what will fail later and can be seen now
//	options.go     Options, Hooks and Snapshot
//
// # The end
//
// Clients come first: no new requests, then those in flight finish, then what is left is
// told. Their streams end, then the links, then the servers, then the listeners. Each is
// waited for before the next. The time for all this is one budget, the deadline of the
// ctx that Shutdown gets; the part that servers need to stop is kept for them. To cancel
// that ctx is to end by force, which takes a second.
//
// # Invariants
//
//   - Nothing runs before Handler, Serve, ServeStdio or Client is called, and nothing is left
//     when Shutdown or Close returns.
//   - A configuration is taken over whole or not at all.
//   - The parts do not know each other. Only this package knows them all.
package proxy
