// Package jsonrpc has the types that the whole proxy shares: a message, its id, its errors, the
// Conn that carries messages, and two collections that the users of a Conn need, a [Table] of
// requests that wait for an answer and a [Queue] of messages that wait to be sent.
//
//	bytes ──Decode──► Message ──Append──► bytes
//	                    │
//	     Conn: Recv ────┴──── Send        stdio lines, WebSocket, HTTP session,
//	                                      yamux stream, subprocess, Pipe
//
// A proxy must not change what it forwards, so a Message keeps params, results and errors as the
// bytes that came. Decode reads only the envelope. [Find] locates the few members that routing
// needs, and [Replace] splices new bytes in their place. Everything else stays untouched: unknown
// members, big numbers, escapes, and duplicate keys deep inside a result.
//
// Bytes that decide a route are read strictly. Otherwise a peer that reads them differently would
// act on another request than the one that was routed. A message must be valid UTF-8 and nest at
// most 1000 levels deep. Neither its envelope nor an object passed to Find may have a duplicate of
// an interpreted key, or a key that differs from one only in case: encoding/json takes the last of
// them, others take the first.
//
// Invariants:
//   - A Message that Decode returned is never written to; it may be shared.
//   - Every end of a Conn satisfies errors.Is(err, [ErrClosed]), except the
//     half-close, which is io.EOF.
//   - The package starts a goroutine only for a Queue that sends (Start) and to go on reading (Receive),
//     and keeps neither for an idle Conn in memory that can rest.
//
// It does not route or time out, and it knows no MCP method.
package jsonrpc
