// Package link joins the two halves of mcp-proxy: the sessions of the proxy, and the host
// of the upstreams. It implements both ends of a yamux session over any net.Conn, the
// carrier.
//
//	proxy ──Open──► Client ═══ carrier ═══ Server ──Handle──► host
//	                │   one stream per (client × upstream)  │
//	         Redial │   and a control stream               │ Accept
//	                └─► Endpoint.Dial ─────► Endpoint.Listen ◄─┘      or the other way round
//
// An [Endpoint] is the address of a socket: Unix, TCP, TLS or WebSocket. Either end may dial:
// a host behind a NAT dials its proxy.
//
// In one process a [Local] joins the halves: a stream is two bounded queues of messages, which
// are not written as lines and read again. Its streams are opened, refused and closed, fail and
// push back as those of a link do.
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
//	               {"mcp-proxy":1,"re":7}     the next message is Related to request 7
//	host → proxy   {"mcp-proxy":1,"closed":{"cause":"signal: killed","delivered":true,"event":"k3v9x2ma"}}
//	               and "says":"did not start: …" and "lasting":true if known
//
// An upstream cannot forge such a line: every message is decoded and encoded again, and
// an encoded message begins with {"jsonrpc".
//
// A stream may be of bytes instead, between two programs that know what they mean:
//
//	dialler → other   {"mcp-proxy":1,"bytes":true}
//	other → dialler   {"mcp-proxy":1,"ok":true}, or refused
//	both ways         bytes; the dialler sends first
//
// # On the control stream
//
// The proxy opens it first, and it lives as long as the link:
//
//	proxy → host   {"mcp-proxy":1,"control":true,"versions":[1]}
//	host → proxy   {"mcp-proxy":1,"ok":true,"version":1}
//	          or   {"mcp-proxy":1,"refused":"no common version of the link: …"}
//	host → proxy   {"mcp-proxy":1,"upstreams":[{"name":"files","settings":{…}}]}
//	               at once, and whenever they change
//	proxy → host   {"mcp-proxy":1,"rejected":[{"name":"files","why":"…","event":"…"}]}
//	               the upstreams that clients do not get, whenever that changes
//	both ways      {"mcp-proxy":1,"beat":true}      answered with
//	               {"mcp-proxy":1,"beat":false}
//	               {"mcp-proxy":1,"closed":{"cause":"replaced by a newer link","delivered":true}}
//	               the last line, before the link ends
//
// Each end asks for answers when it needs them, so that the two may have different
// heartbeats. A peer counts as dead when no byte of any stream has come from it for some
// time: a slow carrier full of data is not dead. Time in which this process did not run
// does not count (jsonrpc.Watchdog).
//
// Messages from the other side are decoded strictly. Headers of clients do not travel on a
// link, only on a Local.
//
// # Ends
//
//	the proxy closes      the host's Recv fails with a *jsonrpc.ClosedError
//	the host closes       the proxy receives what was sent before, then the
//	                      *jsonrpc.ClosedError of the closing line
//	the carrier is lost   both get one with the cause "link lost"
//	one end closes        the same, after the last messages on closed streams
//	the link              have arrived
//
// A host that closes a stream sends the closing line and waits until the proxy closes,
// too: when yamux times out a stream that only one side closed, data that a slow peer has
// not read are lost.
//
// After a lost link Open waits a second for the next one and then fails at
// once. Redial dials until its ctx ends, with pauses from 250 ms to 30 s. A host may
// serve many proxies at once. A proxy uses the newest link to its host and ends the
// previous one, whose carrier may be half dead. A host that learns of that was replaced by another
// one, and waits 30 s before it dials again.
//
// A Server may stand between a proxy and a host ([Server.Through]): it joins each stream of
// its own link with one on the link of a Client, byte by byte, so that the two ends talk as if there
// were one link. When the link behind is lost, it ends the one in front before its streams.
//
// # Goroutines
//
// Each Serve runs yamux's two, and one for each stream that is being opened (Client)
// or closed (both). A Server calls its handler in a goroutine for each stream, and has another one
// for each that it joins with one behind it. A carrier has one that writes ([coalescer]), and
// the control stream one that reads, one that writes and one that watches for silence. Serve
// waits for all of them. Redial and Accept run a Serve for each link and wait for it. A
// listener for WebSockets runs an HTTP server until its Close. A Local calls its handler in one, too, and
// waits for the ends of the streams.
//
// # Bounds
//
// A stream holds at most yamux's window of 256 KiB of unread data, and one message; that of a
// Local as much in each direction. At most 16 messages over 64 KiB are read at a time on a
// link. Further ones wait for up to a minute, and each then has a minute to arrive; a stream
// whose message is late ends. A proxy opens 256 streams at a time. A host accepts 4096 or
// Server.Streams on a link, and refuses more; 512 unread refusals end the link. It has 64
// links: one more evicts the one that has been without a hello for longest, or is closed. A
// Local has as many streams as Local.SetStreams allows. An announcement has at most
// 1000 names, 16 KiB of settings each and 1 MiB in all; a larger one ends the link.
// Hellos and TLS handshakes have time limits. Causes from the other side are cut to 200
// bytes. A ping ends the link, since the number of yamux's answers has no bound.
//
// # Invariants
//
//   - A stream is never closed before its hello is answered: otherwise yamux would lose
//     one of its credits for opening streams for good. If the answer takes too long, the
//     link ends.
//   - The accept loop only accepts.
//   - When the link ends, all reads and writes on streams are interrupted, and the
//     carrier is closed, before yamux notices: yamux's Close lets every blocked reader
//     spin, which takes minutes with thousands of them.
//   - Data that a peer sends on a closed stream are read and dropped, so that its writers
//     do not block.
//   - A frame has at most 16 KiB of data, so that a large message does not hold up other
//     streams.
//   - A link is up, and replaces another, only when the hello on its control stream was
//     answered: a stranger's connection has no effect.
//
// The package accepts any address: the configuration decides whether a link may leave the
// machine without TLS. It knows no MCP method.
package link
