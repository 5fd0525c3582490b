// Package frontend is how clients reach the proxy: it turns stdin and stdout, a
// WebSocket, or an HTTP session into a [jsonrpc.Conn] and hands it to a Serve
// function, one Conn for each client.
//
//	stdin, stdout ──────────────────────────────► Stdio ───────┐
//	                                                           │
//	/ws /ws/NAME ────┐                         ┌► wsconn.Conn ─┤
//	/mcp /mcp/NAME ──┼─► Guard ─► HTTP.route ──┼► session ─────┼─Conn─► Serve
//	/sse /message ───┘                         └► session ─────┘
//
// On stdio and on a WebSocket the connection is the session. Streamable HTTP has
// no connection: a session is what the client's requests have in common, a
// header, and each message to the client must find the response that carries it.
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
// Goroutines: one runs Serve for each HTTP or WebSocket session. Responses are
// written by the goroutines of net/http that handle the requests. stdio.go names
// its own.
//
// Invariants:
//   - Who takes a request out of session.pending answers it: Send, a cancel, or
//     the end of the session. So each POST gets one ending, and late ones none.
//   - A message goes out on one stream only, in the order of Send.
//   - Each queue is bounded. While a connected client does not read its stream,
//     Send waits, for at most 30 s a write; then the client counts as cut off.
//     What waits for one that is cut off pushes out the oldest, 256 events or
//     4 MiB a session; a question pushed out is answered with an error, so that
//     no upstream waits for a client that never saw it.
//   - session.mu guards its streams too, and is not held across I/O.
//
// The package does not look into messages, except for the id and method of
// requests, the version in initialize, and what notifications/cancelled cancels.
// It knows one era, that of sessions: version 2026-07-28 is refused.
package frontend
