// Package link joins the two halves of mcp-proxy: the proxy's sessions on one
// side, the host of the upstreams on the other. It is both ends of a yamux
// session over any net.Conn, the carrier.
//
//	proxy ──Open──► Client ═══ carrier ═══ Server ──Handle──► host
//	                  one stream per (client × upstream)
//
// In one process the carrier is a [Ring]; a socket works the same way, so that
// an upstream in this process and one far away close, fail and push back alike.
//
// # On a stream
//
// A stream carries lines. Lines that begin with {"mcp-proxy" are the link's own,
// all others are JSON-RPC messages:
//
//	proxy → host   {"mcp-proxy":1,"upstream":"files","key":"…","era":"legacy"}
//	host → proxy   {"mcp-proxy":1,"ok":true}
//	          or   {"mcp-proxy":1,"refused":"unknown upstream"}
//	both ways      messages, one a line
//	               {"mcp-proxy":1,"re":7}     the next message belongs to request 7
//	host → proxy   {"mcp-proxy":1,"closed":{"cause":"signal: killed","delivered":true}}
//
// An upstream cannot forge such a line: every message is decoded and encoded
// anew on its way, and an encoded message begins with {"jsonrpc".
//
// # Ends
//
//	the proxy closes      the host's Recv fails with a *jsonrpc.ClosedError
//	the host closes       the proxy receives what was sent before, then the
//	                      *jsonrpc.ClosedError that the closing line tells
//	the carrier is lost   both get one with the cause "link lost"
//
// A host that closes sends its closing line and waits for the proxy to close
// too: yamux forgets what a slow peer has not read yet when it gives up on a
// stream that only one side closed.
//
// # Goroutines
//
// Each Serve runs yamux's two and, for the moment that they take, one for each
// opening of a stream (Client) and one for each closing (both). A Server runs
// one for each stream, in which its handler works. Serve waits for all of them.
//
// # Invariants
//
//   - A stream is never closed before its hello is answered: yamux would lose
//     one of its credits for opening streams for good. An opening that takes
//     too long ends the link.
//   - The accept loop only accepts.
//   - The carrier is closed before the yamux session, whose Close would spin
//     on every blocked reader.
//   - Whatever a peer still sends on a closed stream is read and dropped, so
//     that its writers do not wait for a reader who left.
//
// The package does not dial, listen, redial or probe a silent peer, and it knows
// no MCP method.
package link
