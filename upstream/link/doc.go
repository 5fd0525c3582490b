// Package link joins the two halves of mcp-proxy: the proxy's sessions on one
// side, the host of the upstreams on the other. It is both ends of a yamux
// session over any net.Conn, the carrier.
//
//	proxy ──Open──► Client ═══ carrier ═══ Server ──Handle──► host
//	                │   one stream per (client × upstream)  │
//	         Redial │   and a control stream               │ Accept
//	                └─► Endpoint.Dial ─────► Endpoint.Listen ◄─┘      or the other way round
//
// In one process the carrier is a [Ring]; a socket works the same way, so that
// an upstream in this process and one far away close, fail and push back alike.
// An [Endpoint] is where sockets meet: Unix, TCP, TLS or WebSocket. Either end may
// dial: a host behind a NAT dials its proxy.
//
// # On a stream
//
// A stream carries lines. Lines that begin with {"mcp-proxy" are the link's own,
// all others are JSON-RPC messages:
//
//	proxy → host   {"mcp-proxy":1,"upstream":"files","key":"…","era":"legacy"}
//	host → proxy   {"mcp-proxy":1,"ok":true}
//	          or   {"mcp-proxy":1,"refused":"upstream changed"}
//	both ways      messages, one a line
//	               {"mcp-proxy":1,"re":7}     the next message belongs to request 7
//	host → proxy   {"mcp-proxy":1,"closed":{"cause":"signal: killed","delivered":true,"event":"k3v9x2ma"}}
//	               with "says":"did not start: …" and "lasting":true where that is known
//
// An upstream cannot forge such a line: every message is decoded and encoded
// anew on its way, and an encoded message begins with {"jsonrpc".
//
// # On the control stream
//
// It is the first that the proxy opens, and lives as long as the link:
//
//	proxy → host   {"mcp-proxy":1,"control":true,"versions":[1]}
//	host → proxy   {"mcp-proxy":1,"ok":true,"version":1}
//	          or   {"mcp-proxy":1,"refused":"no common version of the link: …"}
//	host → proxy   {"mcp-proxy":1,"upstreams":[{"name":"files","settings":{…}}]}
//	               at once, and whenever they change
//	proxy → host   {"mcp-proxy":1,"rejected":[{"name":"files","why":"…","event":"…"}]}
//	               those of them that clients do not get, whenever that changes
//	both ways      {"mcp-proxy":1,"beat":true}      answered with
//	               {"mcp-proxy":1,"beat":false}
//	               {"mcp-proxy":1,"closed":{"cause":"replaced by a newer link","delivered":true}}
//	               the last line, before the link ends
//
// Since each end asks for answers when it needs them, the two may have different
// heartbeats. A peer is dead when not a single byte has come from it for some
// time, of whatever stream: a slow carrier full of data is not a dead one. Time in which
// this process did not run does not count (jsonrpc.Watchdog).
//
// Both ends that are in one process are Trusted: they have no control stream, do
// not check messages again, and never give each other up. Nothing that clients do
// ends their link. From others each message is decoded strictly.
//
// # Ends
//
//	the proxy closes      the host's Recv fails with a *jsonrpc.ClosedError
//	the host closes       the proxy receives what was sent before, then the
//	                      *jsonrpc.ClosedError that the closing line tells
//	the carrier is lost   both get one with the cause "link lost"
//	a link takes leave    as if the carrier were lost, after what was said
//	                      last on closed streams has arrived
//
// A host that closes sends its closing line and waits for the proxy to close
// too: yamux forgets what a slow peer has not read yet when it gives up on a
// stream that only one side closed.
//
// After a lost link Open waits a second for the next one and then fails at
// once. Redial dials until its ctx ends, after 250 ms at first and 30 s at the
// most. A host may meet many proxies at once; a proxy uses the newest link to
// its host and ends the one before, whose carrier may be half dead.
//
// # Goroutines
//
// Each Serve runs yamux's two, and one for each stream that is being opened (Client)
// or closed (both). A Server runs one for each stream, in which its handler works. On a
// socket there is one that writes ([coalescer]), and on the control stream one that
// reads, one that writes and one that watches for silence. Serve waits for all of
// them. Redial and Accept run a Serve for each link and wait for it. A listener for
// WebSockets runs an HTTP server until its Close.
//
// # Bounds
//
// A stream holds at most yamux's window of 256 KiB that nobody has read, and one
// message. From another process, 16 messages over 64 KiB are read at a time on a link. The
// others wait, for as long as a minute, and each has a minute then; a stream with one that is
// late ends. A proxy has as many streams as Client.Streams says, and opens 256 of
// them at a time. A host takes 4096 on a link from elsewhere, or Server.Streams, and
// refuses more; 512 refusals that go unread end the link. It has 64 links: one more takes the place of the one
// that has been without a hello for longest, or is closed. An announcement
// has 1000 names, 16 KiB of settings each and 1 MiB in all; more ends the link.
// Hellos have time limits, as has TLS. Causes from the other side are cut to 200
// bytes. A ping ends the link: yamux's answers could be piled up.
//
// # Invariants
//
//   - A stream is never closed before its hello is answered: yamux would lose
//     one of its credits for opening streams for good. An opening that takes
//     too long ends the link.
//   - The accept loop only accepts.
//   - Before yamux hears that the link has ended, whoever waits for a stream is
//     interrupted, and the carrier is closed: yamux's Close would let every
//     blocked reader spin, which with thousands of them takes minutes.
//   - Whatever a peer still sends on a closed stream is read and dropped, so
//     that its writers do not wait for a reader who left.
//   - A frame on a socket has at most 16 KiB of data, so that a large message
//     lets those of other streams pass.
//   - A link is up, and replaces another, only when the hello on its control
//     stream is answered: a stranger who connects harms nobody.
//
// The package decides on no address: whether a link may leave this machine
// without TLS is the configuration's business. It knows no MCP method.
package link
