// Package frontend is how clients reach the proxy: it turns stdin and stdout, a
// WebSocket, or HTTP into a [jsonrpc.Conn] and hands it to a Serve function.
//
//	stdin, stdout ──────────────────────────────► Stdio ───────┐
//	                                                           │
//	/ws /ws/NAME ────┐                         ┌► wsconn.Conn ─┤
//	/sse /message ───┼─► Guard ─► HTTP.route ──┼► session ─────┼─Conn─► Serve
//	/mcp /mcp/NAME ──┘                         ├► session ─────┘
//	                                           └► trunk ────────Conn─► ServePrincipal
//
// On stdio and on a WebSocket the connection is the session. HTTP has no
// connection: what its requests have in common is, in the legacy era, a session
// that a header names, and in the modern era nothing but whose they are. Each POST
// says of which era it is (modern.go).
//
// Legacy: each message to the client must find the response that carries it.
//
//	POST ─► inbound ─► Recv ──┐               Send ─┬─ response ──► POST that asked
//	                          └─►  Serve  ──────┘   ├─ Related ───► that POST's stream
//	                                                └─ other ─────► standalone stream
//
// A POST's stream goes out as plain JSON if its responses are all there within
// 50 ms and nothing precedes them, else as server-sent events. An event stream
// outlives its connection: a client that was cut off resumes with a GET and
// Last-Event-ID. To drop the connection of a POST is therefore not to cancel;
// DELETE, expiry and the end of Serve are what ends a session, and then every
// request that still waits gets the one error. The transport of 2024-11-05 is a
// session whose single stream is its life.
//
// Modern: a POST is checked against its headers (ladder.go), but for those that
// repeat arguments, which go along for who knows the tool. It gets an id of its own,
// and waits on the trunk that all clients share who are the same principal and use
// the same path.
//
//	POST ─► ladder ─► waiter ─► queue ─► Recv ──┐            Send ─┬─ id ──────► waiter ─► POST
//	                                            └► ServePrincipal ─┘  Related,
//	                                                                  subscription
//
// JSON and events are as above, but there is no stream besides those of POSTs and
// nothing can be resumed: a POST that is dropped is a request that is cancelled.
//
// Goroutines: one runs Serve for each HTTP or WebSocket session, one runs
// ServePrincipal for each trunk. Responses are written by the goroutines of net/http
// that handle the requests. stdio.go names its own.
//
// Invariants:
//   - Who takes a request out of session.pending answers it: Send, a cancel, or
//     the end of the session. So each POST gets one ending, and late ones none.
//     The same holds for trunk.waiting; a POST that is gone takes its own out.
//   - A message goes out on one stream only, in the order of Send.
//   - Each queue is bounded. While a connected client does not read its stream,
//     Send to a session waits, for at most 30 s a write; then the client counts as
//     cut off. What waits for one that is cut off pushes out the oldest, 256 events
//     or 4 MiB a session; a question pushed out is answered with an error, so that
//     no upstream waits for a client that never saw it. Send to a trunk never
//     waits, since others use it: a request for which more than 4 MiB of
//     notifications came up unread is answered with an error and cancelled.
//     All responses that wait to be read share one bound (unread.go).
//   - There are never two trunks of one principal on one path.
//   - session.mu guards its streams too, trunk.mu its waiters; neither is held
//     across I/O.
//
// The package does not look into messages, except for the id and method of
// requests, the version in initialize, what notifications/cancelled cancels, and
// what the modern era repeats in headers.
package frontend
