// Package jsonrpc is the vocabulary of the proxy: a message, its id, the one
// error, the Conn that carries messages, and what everybody keeps beside a Conn: a
// [Table] of what waits for an answer and a [Queue] of what waits to be sent.
//
//	bytes ──Decode──► Message ──Append──► bytes
//	                    │
//	     Conn: Recv ────┴──── Send        stdio lines, WebSocket, HTTP session,
//	                                      yamux stream, subprocess, Pipe
//
// A proxy must not change what it forwards, so a Message keeps params, results
// and errors as the bytes that came. Decode reads only the envelope; [Find]
// locates the few members that routing needs and [Replace] splices new bytes in
// their place. Everything between stays untouched: unknown members, big
// numbers, escapes, duplicate keys deep inside a result.
//
// Where bytes decide a route they are read strictly, because a peer that reads
// them differently would act on another request than the one that was routed:
// a message must be valid UTF-8, at most 1000 levels deep, and neither its
// envelope nor an object passed to Find may hold a duplicate of an interpreted
// key or a key that differs from one only in case (encoding/json would take the
// last of them, others the first).
//
// Invariants:
//   - A Message that Decode returned is never written to; it may be shared.
//   - Every end of a Conn satisfies errors.Is(err, [ErrClosed]), except the
//     half-close, which is io.EOF.
//   - The package starts no goroutines.
//
// It does not route, time out, or know any MCP method.
package jsonrpc
