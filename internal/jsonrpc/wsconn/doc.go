// Package wsconn is WebSockets (RFC 6455) in both roles, for two uses: a [Conn]
// of messages, and the carrier of a link.
//
//	Config.Accept ◄── upgrade ── Config.Dial       a message is a text frame
//	      Conn    ◄═════════════►   Conn           subprotocol "mcp", optional
//
//	AcceptCarrier ◄── upgrade ── DialCarrier       bytes in binary frames
//	    net.Conn  ◄═════════════►  net.Conn        subprotocol "mcp-proxy-link"
//
// On a Conn the connection is the session: its end, whichever way, is the peer's
// end, and there is no half-close. Bytes that are not a message cost that
// message; what breaks the framing ends the connection:
//
//	1000   a client closes; or the answer to the peer's 1000
//	1001   a server closes
//	1002   frames that break the protocol
//	1003   a binary frame on a Conn, a text frame on a carrier
//	1007   text that is not UTF-8
//	1008   with CloseAs: the peer may not go on; a large message that took too long
//	1009   a message over the limit, a carrier's frame over 1 MiB
//	1013   a large message for which there is no place
//
// The package starts no goroutines. A Conn's pings come from a timer; a carrier
// sends none, since links have a heartbeat.
//
// Invariants:
//   - Frames are written whole and one after the other, under framer.writing,
//     which is held across the write: that is what it is for. The reader never
//     waits for it, except to send a close frame.
//   - A client masks every frame with a fresh random key, in a buffer of ours and
//     never in the caller's.
//   - Nothing is compressed, so what the peer sends is as large as it seems.
//   - After a close frame nothing more is written.
package wsconn
