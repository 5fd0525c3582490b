// Package wsconn implements both ends of WebSockets (RFC 6455), for two uses: a [Conn] of messages, and the carrier of
// a link.
//
//	Config.Accept ◄── upgrade ── Config.Dial       a message is a text frame
//	      Conn    ◄═════════════►   Conn           subprotocol "mcp", optional
//
//	AcceptCarrier ◄── upgrade ── DialCarrier       bytes in binary frames
//	    net.Conn  ◄═════════════►  net.Conn        subprotocol "mcp-proxy-link"
//
// On a Conn the connection is the session: when it ends the peer has left, and there is no half-close. Invalid messages
// are dropped; invalid frames end the connection:
//
//	1000   a client closes; or the answer to the peer's 1000
//	1001   a server closes
//	1002   invalid frames
//	1003   a binary frame on a Conn, a text frame on a carrier
//	1007   text that is not UTF-8
//	1008   with CloseAs: the peer may not go on; a large message that took too long
//	1009   a message over the limit, a carrier's frame over 1 MiB
//	1013   too many large messages at once
//
// The package starts no goroutines. A Conn's pings come from a timer. A carrier sends none, because links have a
// heartbeat.
//
// Invariants:
//   - Frames are written whole and in order, under framer.writing, which is held across the write. The reader waits for
//     it only to send a close frame.
//   - A client masks every frame with a fresh random key, in our own buffer and not in the caller's.
//   - Nothing is compressed, so a small frame cannot become a large message.
//   - Nothing is written after a close frame.
package wsconn
